"""What other trainers set where a recipe leaves a choice, by `recipe@trainer`; read in their code. Imports no torch."""

from collections.abc import Mapping
from typing import Any

PRESETS: dict[str, Mapping[str, Any]] = {
    "grpo@deepseekmath": {"kl_coefficient": 0.04},
    "grpo@trl": {"eps": 1e-4, "aggregation": "token_mean"},
    "grpo@verl": {"eps": 1e-6, "dual_clip": 3.0, "aggregation": "token_mean"},
    "grpo@slime": {"eps": 1e-6},
    "grpo@openrlhf": {"eps": 1e-9, "aggregation": "token_mean"},
    "grpo@open_instruct": {
        "divide_by_std": False,
        "clip_high": 0.272,
        "kl_coefficient": 0.05,
        "aggregation": "token_mean",
    },
    "dr_grpo@understand_r1_zero": {"constant_tokens": 3000},
    "dapo@skyrl": {"aggregation": "prompt_mean"},
    "rloo@trl": {"kl_coefficient": 0.05},
    "reinforce_plus_plus@verl": {"kl_coefficient": 0.0, "whiten_ddof": 1},
    "reinforce_plus_plus@openrlhf": {"kl_coefficient": 0.01, "whiten_ddof": 0},
    "ppo@trl": {"kl_coefficient": 0.05, "trace_decay": 0.95, "value_clip": 0.2},
    "ppo@verl": {"trace_decay": 1.0, "value_clip": 0.5, "dual_clip": 3.0},
    "ppo@openrlhf": {"kl_coefficient": 0.01, "trace_decay": 1.0, "value_clip": 0.5},
    "a2c@spinningup": {
        "discount": 0.99,
        "trace_decay": 0.97,
        "critic_updates": 80,
        "value_clip": 0.0,
        "whiten_ddof": 0,
    },
    "cispo@trl": {"ratio_low": 0.0, "ratio_high": 5.0},
    "cispo@verl": {"ratio_low": 0.8, "ratio_high": 1.28},
    "cispo@open_instruct": {"ratio_low": 0.8, "ratio_high": 1.272},
    "gmpo@verl": {"log_clip_low": 0.2, "log_clip_high": 0.2},
    "dppo@stable_rl": {"tv_limit": 0.15, "ratio_cap": 10.0},
    "dppo@verl": {"tv_limit": 0.15, "ratio_cap": 3.0},
    "dppo@skyrl": {"tv_limit": 0.2, "ratio_cap": 1e6, "aggregation": "token_mean"},
    "dppo@prime_rl": {"tv_limit": 0.2, "ratio_cap": 1e6, "aggregation": "token_mean"},
    "tis@slime": {"mismatch_cap": 2.0},
    "tis@open_instruct": {"mismatch_cap": 2.0},
    "sequence_mask@skyrl": {"sequence_low": 0.99, "sequence_high": 1.01},
    "offpolicy_mask@slime": {"drift_limit": 1e-4},
    "kl_cov@verl": {"selected_penalty": 0.1},
}
