"""What both vLLM engines share: names, refusals, and the request and the weights as vLLM wants them. Imports no vLLM."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from training.config import ConfigError, SamplingConfig
from training.engines.base import PromptRequest, Truncation
from training.engines.torch_sampler import CACHE_BYTES, cache_token_bytes
from training.policy import Policy, merged_weights
from training.seeds import derived_seed

WORKER_EXTENSION = "training.engines.vllm_worker.WorkerExtension"
# vLLM packs keys and values in blocks of at most this many tokens.
BLOCK_TOKENS = 128
# Sequences that vLLM samples at the same time.
CONCURRENT = 256

# Nothing is reported to anybody, and vLLM neither pins the trainer's threads to cores nor listens beyond this host.
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # PolicySampler takes the place of this runner's sampler.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}


def require_vllm() -> None:
    """Raises ConfigError that says how to install vLLM, unless it is there."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("sampling.engine", "vLLM is not installed here: run `make vllm`, or take torch")


def engine_options(policy: Policy, config: SamplingConfig) -> dict[str, Any]:
    """How vLLM loads the model, by the names of its EngineArgs."""
    context = policy.context_tokens
    if config.max_prompt_tokens:
        needed = config.max_prompt_tokens + config.max_new_tokens
        context = needed if context is None else min(context, needed)
    on_gpu = policy.device.type == "cuda"
    options: dict[str, Any] = {
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "max_model_len": context,
        "max_num_seqs": CONCURRENT,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": WORKER_EXTENSION,
        "gpu_memory_utilization": config.memory_fraction,
    }
    if not on_gpu:
        # Compiling would take longer than it saves, and memory is asked for by need instead of by share.
        options |= {"enforce_eager": True, "kv_cache_memory_bytes": _cache_bytes(policy, config, context)}
    return options


def _cache_bytes(policy: Policy, config: SamplingConfig, context: int | None) -> int:
    """For every sequence that runs at a time, but no more than the torch sampler takes, and room for one in any case."""
    blocks = -(-(context or config.max_new_tokens) // BLOCK_TOKENS) + 1
    one = blocks * BLOCK_TOKENS * cache_token_bytes(policy)
    return max(2 * one, min(one * min(config.group_size * config.prompts_per_step, CONCURRENT), CACHE_BYTES))


def sampling_options(
    number: int,
    request: PromptRequest,
    truncation: Truncation,
    eos_ids: Sequence[int],
    *,
    temperature: float,
    max_new_tokens: int,
    seed: int,
) -> dict[str, Any]:
    """Request `number` of a call, by the names of vLLM's SamplingParams. Completion i draws from its seed + i."""
    drawn = Truncation(top_k=1) if request.is_greedy else truncation
    return {
        "n": request.count,
        # 32 bits, so that no completion's seed overflows.
        "seed": derived_seed(seed, "request", number) >> 31,
        "temperature": temperature,
        "top_k": drawn.top_k,
        "top_p": drawn.top_p,
        "min_p": drawn.min_p,
        "max_tokens": max_new_tokens,
        "stop_token_ids": list(eos_ids),
        "ignore_eos": True,
        "logprobs": 2,  # the sampled token's, and the entropy in the place of another's
        "detokenize": False,
    }


def checkpoint_weights(policy: Policy) -> dict[str, Tensor]:
    """The policy's weights by the names of its checkpoint, a tied one once."""
    model = policy.model
    tied = set(model.all_tied_weights_keys)
    state = {name: value for name, value in merged_weights(policy).items() if name not in tied}
    return dict(revert_weight_conversion(model, state))


def write_description(policy: Policy, folder: Path) -> None:
    """The model's config.json: all that vLLM needs besides weights."""
    folder.mkdir(parents=True, exist_ok=True)
    policy.model.config.save_pretrained(folder)


def check_vocabulary(policy: Policy, engine_tokens: int, key: str) -> None:
    """Raises ConfigError when engine and policy do not number the same tokens."""
    if engine_tokens != policy.model.config.vocab_size:
        raise ConfigError(
            key,
            f"the engine's vocabulary has {engine_tokens} tokens and the policy's {policy.model.config.vocab_size}; "
            "they must serve the same model",
        )
