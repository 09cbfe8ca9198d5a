"""What runs inside vLLM's worker: scores of the distribution that the policy is trained under. Imports vLLM.

vLLM names it by path (`worker_extension_cls`), in the trainer's process and in a server alike.
"""

from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops
from vllm.model_executor.layers import utils as layer_utils
from vllm.platforms import current_platform
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

if current_platform.is_cpu():
    # oneDNN, and for bfloat16 the kernels for AMX, pack a copy of the weights when the model is loaded. A tied output head
    # then keeps that copy whatever is loaded later, without an error, and samples come from a mixture of old and new weights.
    _custom_ops._supports_onednn = False
    layer_utils.check_cpu_sgl_kernel = lambda *shape_and_type: False


class PolicySampler(Sampler):
    """vLLM's sampler, whose log-probabilities are of logits / temperature over all tokens, followed by their entropy.

    vLLM's own are either of the logits without temperature or of what top-p, top-k and min-p left.
    """

    def sample(
        self, logits: Tensor, sampling_metadata: SamplingMetadata, logprobs_mode_override: Any = None
    ) -> tuple[Tensor, Tensor | None]:
        # Every request has a temperature: a greedy one is sampled with top-k 1.
        temperature = sampling_metadata.temperature
        logprobs = None
        if temperature is not None:
            logprobs = (logits.float() / temperature[: logits.shape[0], None]).log_softmax(dim=-1)
        sampled, theirs = super().sample(logits, sampling_metadata, logprobs_mode_override)
        return sampled, theirs if logprobs is None else logprobs

    @staticmethod
    def gather_logprobs(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> LogprobsTensors:
        taken = logprobs.gather(-1, token_ids[:, None])
        entropy = -torch.where(logprobs > -torch.inf, logprobs.exp() * logprobs, 0).sum(dim=-1, keepdim=True)
        # The entropy needs an id of its own, since vLLM keeps the pair in a dict.
        ids = torch.stack([token_ids, token_ids + 1], dim=-1).to(torch.int32)
        ranks = torch.zeros_like(token_ids)
        return LogprobsTensors(ids, torch.cat([taken, entropy], dim=-1), ranks)


class WorkerExtension:
    """Further methods of vLLM's worker, for `collective_rpc`."""

    model_runner: Any

    def score_as_policy(self) -> dict[str, int]:
        """From now on sample with PolicySampler; returns what the trainer compares with its policy."""
        theirs = self.model_runner.sampler
        if not isinstance(theirs, PolicySampler):
            self.model_runner.sampler = PolicySampler(theirs.logprobs_mode, theirs.use_fp64_gumbel)
        config = self.model_runner.model_config
        return {"vocabulary_tokens": config.get_vocab_size(), "context_tokens": config.max_model_len}
