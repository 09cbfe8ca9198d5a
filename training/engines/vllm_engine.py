"""Sampling with vLLM in the trainer's process: weights go over in memory, and on a GPU vLLM sleeps while the policy learns."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.config import ConfigError, SamplingConfig
from training.engines.base import PromptRequest, SampledRow, Samples, Truncation, check_room, samples_from_rows
from training.engines.vllm_common import (
    ENVIRONMENT,
    check_vocabulary,
    checkpoint_weights,
    engine_options,
    require_vllm,
    sampling_options,
    write_description,
)
from training.policy import Policy


class VllmEngine:
    """One vLLM beside the policy, on the same device.

    Raises:
        ConfigError: vLLM is missing or cannot serve this model here.
    """

    def __init__(self, policy: Policy, config: SamplingConfig, truncation: Truncation, *, seed: int) -> None:
        require_vllm()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("sampling.engine", "vllm serves a trainer of one process; take vllm_server for several")
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        import vllm

        self.policy = policy
        self.truncation = truncation
        self._sleeps = policy.device.type == "cuda"
        self._is_stale = True
        self._params = vllm.SamplingParams
        with tempfile.TemporaryDirectory() as folder:
            write_description(policy, Path(folder))
            try:
                # Its weights are never read: the policy's come before the first sample. vLLM seeds torch for the whole
                # process, so it gets the run's seed.
                self._llm = vllm.LLM(
                    model=folder,
                    load_format="dummy",
                    enable_sleep_mode=self._sleeps,
                    seed=seed % 2**31,
                    **engine_options(policy, config),
                )
            except (ValueError, RuntimeError, NotImplementedError) as error:
                raise ConfigError("sampling.engine", f"vLLM cannot serve this model here: {error}") from error
        (served,) = self._llm.collective_rpc("score_as_policy")
        check_vocabulary(policy, served["vocabulary_tokens"], "sampling.engine")
        self._context_tokens = served["context_tokens"]
        if self._sleeps:
            self._llm.sleep(level=1)

    def sample(
        self, requests: Sequence[PromptRequest], *, temperature: float, max_new_tokens: int, seed: int
    ) -> Samples:
        """Completions of all requests, their prompts prefilled once.

        Raises:
            SamplingError: a prompt does not fit, or a log-probability is not finite.
        """
        check_room(requests, max_new_tokens, self._context_tokens)
        eos_ids = sorted(self.policy.eos_ids)
        options = [
            sampling_options(
                number,
                request,
                self.truncation,
                eos_ids,
                temperature=temperature,
                max_new_tokens=max_new_tokens,
                seed=seed,
            )
            for number, request in enumerate(requests)
        ]
        if self._sleeps:
            self._llm.wake_up()
        if self._is_stale:
            self._load_weights()
        outputs = self._llm.generate(
            [{"prompt_token_ids": list(request.prompt_ids)} for request in requests],
            [self._params(**one, flat_logprobs=True) for one in options],
            use_tqdm=False,
        )
        if self._sleeps:
            self._llm.sleep(level=1)
        rows = [_row(completion) for output in outputs for completion in output.outputs]
        return samples_from_rows(rows, eos_ids, self.policy.device)

    def weights_changed(self) -> None:
        """They go over when the next sample is asked for."""
        self._is_stale = True

    def close(self) -> None:
        """End vLLM and give its memory back."""
        from vllm.distributed import cleanup_dist_env_and_memory

        self._llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()

    def _load_weights(self) -> None:
        weights = list(checkpoint_weights(self.policy).items())
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        # What it remembers of prompts was computed with the weights before.
        self._llm.reset_prefix_cache()
        self._is_stale = False


def _row(completion: Any) -> SampledRow:
    """The sampled token's log-probability and the entropy alternate (see PolicySampler)."""
    values = completion.logprobs.logprobs
    return SampledRow(list(completion.token_ids), values[0::2], values[1::2])
