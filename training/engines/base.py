"""The one door between the loop and whatever samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class SamplingError(ValueError):
    """Nothing sensible can be sampled: says which tensor and where."""


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """`count` completions of one prompt."""

    prompt_ids: Sequence[int]
    count: int


@dataclass(frozen=True, slots=True)
class Samples:
    """One row a completion, the rows of a request together and in its order. Beyond a row's length stand zeros."""

    token_ids: Tensor  # [B, T] int64, the end-of-sequence token included
    sampler_logprobs: Tensor  # [B, T] float32, nats, of logits / temperature
    entropy: Tensor  # [B, T] float32, nats, of the same distribution
    lengths: Tensor  # [B] int64
    is_finished: Tensor  # [B] bool: ended by itself, not cut at the limit


class Engine(Protocol):
    """Samples from the policy's current weights."""

    def sample(
        self, requests: Sequence[PromptRequest], *, temperature: float, max_new_tokens: int, seed: int
    ) -> Samples:
        """Completions of all requests; the same seed, weights and machine give the same tokens."""
