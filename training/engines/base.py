"""The one door between the loop and whatever samples."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class SamplingError(ValueError):
    """Nothing sensible can be sampled: says which tensor and where."""


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """`count` completions of one prompt."""

    prompt_ids: Sequence[int]
    count: int
    is_greedy: bool = False  # the likeliest token each time


@dataclass(frozen=True, slots=True)
class Truncation:
    """Which tokens may be drawn; the defaults leave all of them. The likeliest always may."""

    top_k: int = 0  # the k likeliest; 0: all
    top_p: float = 1.0  # the fewest likeliest that together have this probability
    min_p: float = 0.0  # at least this share of the likeliest one's probability


ALL_TOKENS = Truncation()


@dataclass(frozen=True, slots=True)
class Samples:
    """One row a completion, the rows of a request together and in its order. Beyond a row's length stand zeros.

    Log-probabilities and entropy are those that the policy is trained under: of logits / temperature over all tokens,
    also where a truncation or a greedy request drew from fewer.
    """

    token_ids: Tensor  # [B, T] int64, the end-of-sequence token included
    sampler_logprobs: Tensor  # [B, T] float32, nats
    entropy: Tensor  # [B, T] float32, nats
    lengths: Tensor  # [B] int64
    is_finished: Tensor  # [B] bool: ended by itself, not cut at the limit


@dataclass(frozen=True, slots=True)
class SampledRow:
    """One completion as an engine outside of torch hands it over."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    entropy: Sequence[float]


class Engine(Protocol):
    """Samples from the policy's current weights."""

    def sample(
        self, requests: Sequence[PromptRequest], *, temperature: float, max_new_tokens: int, seed: int
    ) -> Samples:
        """Completions of all requests; the same seed, weights and machine give the same tokens."""

    def weights_changed(self) -> None:
        """The policy was updated or restored: the next sample must come from the weights it has then."""

    def close(self) -> None:
        """Let go of processes and memory; nothing is sampled afterwards."""


def check_room(requests: Sequence[PromptRequest], max_new_tokens: int, room: int | None) -> None:
    """Raises SamplingError when a prompt and its completion do not fit `room` tokens."""
    longest = max(len(request.prompt_ids) for request in requests)
    if room is not None and longest + max_new_tokens > room:
        raise SamplingError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones do not fit the model's context of {room}; "
            "lower sampling.max_new_tokens or the task's difficulty"
        )


def samples_from_rows(rows: Sequence[SampledRow], eos_ids: Iterable[int], device: torch.device) -> Samples:
    """The rows as rectangles on `device`.

    Raises:
        SamplingError: a log-probability is not finite.
    """
    lengths = [len(row.token_ids) for row in rows]
    width, ends = max(lengths), set(eos_ids)

    def rectangle(values: Iterable[Sequence[float]], dtype: torch.dtype) -> Tensor:
        padded = [[*row, *([0] * (width - len(row)))] for row in values]
        return torch.tensor(padded, dtype=dtype, device=device)

    for number, row in enumerate(rows):
        for column, logprob in enumerate(row.logprobs):
            if not math.isfinite(logprob):
                raise SamplingError(f"the sampler's log-probability is {logprob} at token {column} of row {number}")
    return Samples(
        token_ids=rectangle((row.token_ids for row in rows), torch.int64),
        sampler_logprobs=rectangle((row.logprobs for row in rows), torch.float32),
        entropy=rectangle((row.entropy for row in rows), torch.float32),
        lengths=torch.tensor(lengths, device=device),
        is_finished=torch.tensor([row.token_ids[-1] in ends for row in rows], device=device),
    )
