from typing import Any

import pytest

from training import legality
from training.config import ConfigError, RunConfig


def test_the_default_configuration_is_legal() -> None:
    legality.check(RunConfig())
    resolved = legality.resolve(RunConfig())
    assert resolved.params["aggregation"] == "rollout_mean"
    assert resolved.params["constant_tokens"] == RunConfig().sampling.max_new_tokens
    assert resolved.task_params == {"digits": 2, "terms": 2}
    assert resolved.parts["H8"] == ()


def test_a_kl_coefficient_brings_its_term() -> None:
    config = RunConfig.from_dict({"algorithm_params": {"kl_coefficient": 0.04}})
    legality.check(config)
    assert legality.resolve(config).parts["H8"] == ("ref_kl",)


@pytest.mark.parametrize(
    ("raw", "key", "says"),
    [
        ({"algorithm": "grop"}, "algorithm", "did you mean grpo?"),
        ({"task": {"name": "adition"}}, "task.name", "did you mean addition?"),
        ({"task": {"name": "reasoning_gym:chain_sums"}}, "task.name", "did you mean chain_sum?"),
        ({"task": {"params": {"digit": 2}}}, "task.params.digit", "did you mean digits?"),
        ({"task": {"params": {"digits": 0}}}, "task.params.digits", "at least 1"),
        ({"task": {"params": {"digits": 101}}}, "task.params.digits", "at most 100"),
        ({"task": {"params": {"digits": 2.5}}}, "task.params.digits", "a whole number"),
        ({"task": {"params": {"digits": True}}}, "task.params.digits", "a whole number"),
        ({"sampling": {"group_size": 1}}, "sampling.group_size", "at least 2"),
        ({"sampling": {"engine": "vlm"}}, "sampling.engine", "did you mean vllm?"),
        ({"sampling": {"tensor_parallel": 2}}, "sampling.tensor_parallel", "set sampling.engine to vllm_server"),
        ({"sampling": {"engine": "vllm", "server_url": "http://h:1"}}, "sampling.server_url", "or leave it out"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p", "greater than 0"),
        ({"sampling": {"min_p": 1.5}}, "sampling.min_p", "at most 1"),
        ({"algorithm": "tis", "sampling": {"top_p": 0.9}}, "hooks.H6", "sample from all tokens"),
        ({"algorithm_params": {"clip_hgh": 0.1}}, "algorithm_params.clip_hgh", "did you mean clip_high?"),
        ({"algorithm_params": {"clip_high": -0.1}}, "algorithm_params.clip_high", "at least 0"),
        ({"algorithm_params": {"eps": float("nan")}}, "algorithm_params.eps", "finite"),
        (
            {"algorithm_params": {"aggregation": "token_meen"}},
            "algorithm_params.aggregation",
            "did you mean token_mean?",
        ),
        (
            {"algorithm_params": {"kl_coefficient": 0.1, "kl_estimator": "k1"}},
            "algorithm_params.kl_estimator",
            "k2 or k3",
        ),
        ({"algorithm_params": {"eps": 10**400}}, "algorithm_params.eps", "finite"),
        ({"optimizer": {"learning_rate": -(10**400)}}, "optimizer.learning_rate", "finite"),
        ({"hooks": {"H8": ["ref_kl"]}}, "algorithm_params.kl_coefficient", "above 0"),
        ({"algorithm": "rloo", "sampling": {"group_size": 1}}, "sampling.group_size", "vpg, reinforce"),
        ({"algorithm": "maxrl", "sampling": {"group_size": 1}}, "sampling.group_size", "at least 2"),
        ({"algorithm": "vpg", "hooks": {"H5": "group"}, "sampling": {"group_size": 1}}, "sampling.group_size", "2"),
        ({"algorithm": "vpg", "optimizer": {"updates_per_step": 2}}, "optimizer.updates_per_step", "take 1, or"),
        ({"algorithm": "reinforce", "optimizer": {"updates_per_step": 2}}, "optimizer.updates_per_step", "no imp"),
        (
            {"algorithm": "reinforce", "algorithm_params": {"baseline_decay": 1.0}},
            "algorithm_params.baseline_decay",
            "at most 0.9999",
        ),
        (
            {"algorithm": "vpg", "algorithm_params": {"clip_high": 0.2}},
            "algorithm_params.clip_high",
            "of clipped of H7,",
        ),
        (
            {"algorithm_params": {"discount": 0.9}},
            "algorithm_params.discount",
            "return_to_go of H6 or gae of H6, which",
        ),
        ({"algorithm_params": {"dual_clip": 0.9}}, "algorithm_params.dual_clip", "above 1"),
        (
            {"algorithm": "gspo", "algorithm_params": {"aggregation": "token_mean"}},
            "algorithm_params.aggregation",
            "set rollout_mean",
        ),
        (
            {"algorithm": "rloo", "algorithm_params": {"aggregation": "rollout_sum"}},
            "algorithm_params.aggregation",
            "set rollout_mean",
        ),
        (
            {"algorithm": "gmpo", "algorithm_params": {"aggregation": "prompt_mean"}},
            "algorithm_params.aggregation",
            "set rollout_mean",
        ),
        (
            {"algorithm": "reinforce_plus_plus_baseline", "algorithm_params": {"divide_by_std": True}},
            "algorithm_params.divide_by_std",
            "set it to false",
        ),
        ({"hooks": {"H6": "whitened"}}, "algorithm_params.divide_by_std", "a second time"),
        ({"algorithm": "psr", "hooks": {"H6": "whitened"}}, "hooks.H6", "take uniform"),
        ({"algorithm": "maxrl", "hooks": {"H6": "whitened"}}, "hooks.H6", "take uniform"),
        (
            {"algorithm": "psr", "algorithm_params": {"positive_weight": 0}},
            "algorithm_params.positive_weight",
            "both weights are 0",
        ),
        ({"algorithm": "nsr", "hooks": {"H4": ["task", "overlong_penalty"]}}, "hooks.H4", "take overlong_penalty out"),
        ({"hooks": {"H4": ["overlong_penalty"]}}, "hooks.H4", "name task as well"),
        ({"algorithm": "maxrl", "hooks": {"H4": ["task", "overlong_penalty"]}}, "hooks.H4", "as it was judged"),
        ({"algorithm": "dapo", "truncated": "reward_zero"}, "truncated", "take keep or mask"),
        (
            {"algorithm": "dapo", "algorithm_params": {"overlong_buffer_tokens": 65}},
            "algorithm_params.overlong_buffer_tokens",
            "at most the limit (64)",
        ),
        ({"algorithm": "reinforce", "hooks": {"H9": "mixed_only"}}, "hooks.H9", "take uniform"),
        (
            {"algorithm": "cispo", "algorithm_params": {"ratio_high": 0.28}},
            "algorithm_params.ratio_high",
            "at least 1",
        ),
        ({"hooks": {"H7": "cliped"}}, "hooks.H7", "did you mean clipped?"),
        ({"optimizer": {"warmup_steps": 101}}, "optimizer.warmup_steps", "at most steps"),
        ({"task": {"params": {"digits": 1}}}, "eval.prompts", "raise the difficulty or ask for fewer"),
        # The tasks of seed 10 would just do; every run is judged on those of the one seed.
        ({"seed": 10, "eval": {"prompts": 544}}, "eval.prompts", "raise the difficulty or ask for fewer"),
        (
            {"task": {"params": {"digits": 90}}, "sampling": {"max_new_tokens": 8}},
            "sampling.max_new_tokens",
            "91 tokens",
        ),
        ({"task": {"name": "natbool_dag", "params": {"inputs": 2, "fan_in": 3}}}, "task.params.fan_in", "at most"),
    ],
)
def test_refuses_with_the_key_and_a_way_out(raw: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        legality.check(RunConfig.from_dict(raw))
    assert caught.value.key == key
    assert says in caught.value.message


@pytest.mark.parametrize(
    "raw",
    [
        {"algorithm": "gspo_token", "algorithm_params": {"aggregation": "token_mean"}},
        {"algorithm": "grpo", "algorithm_params": {"dual_clip": 3.0}, "optimizer": {"updates_per_step": 4}},
        {"algorithm": "vpg", "hooks": {"H7": "clipped"}, "optimizer": {"updates_per_step": 2}},
        {"algorithm": "reinforce_plus_plus", "sampling": {"group_size": 1}},
    ],
)
def test_takes_what_is_right(raw: dict[str, Any]) -> None:
    legality.check(RunConfig.from_dict(raw))


def test_a_part_that_replaces_another_brings_its_own_knobs() -> None:
    config = RunConfig.from_dict({"hooks": {"H7": "soft_gate"}, "algorithm_params": {"tau_positive": 2.0}})
    params = legality.resolve(config).params
    assert params["tau_positive"] == 2.0
    assert params["tau_negative"] == 1.05
    assert "clip_low" not in params
    # The recipe's own choice for a knob of a part that stays.
    kept = RunConfig.from_dict({"algorithm": "dr_grpo", "hooks": {"H7": "detached_clip"}})
    assert legality.resolve(kept).params["divide_by_std"] is False


def test_a_model_of_ones_own_may_take_fewer_tokens_for_an_answer() -> None:
    legality.check(
        RunConfig.from_dict(
            {"model": {"path": "/models/large"}, "task": {"params": {"digits": 90}}, "sampling": {"max_new_tokens": 40}}
        )
    )
