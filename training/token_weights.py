"""H6, advantage to token weights, and which tokens count. Pure tensor functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenWeights:
    """Per-token signal, `[B, T]` float32; both are 0 where the token does not count."""

    token_advantages: Tensor
    token_weights: Tensor


def uniform(advantage: Tensor, loss_mask: Tensor) -> TokenWeights:
    """The rollout's advantage on each of its counted tokens, with weight 1.

    Args:
        advantage: `[B]`.
        loss_mask: `[B, T]`.
    """
    if loss_mask.ndim != 2 or advantage.shape != loss_mask.shape[:1]:
        raise ValueError(
            f"advantage must be [B] and loss_mask [B, T], got {list(advantage.shape)} and {list(loss_mask.shape)}"
        )
    counts = loss_mask.bool()
    return TokenWeights(
        token_advantages=torch.where(counts, advantage[:, None].float(), 0),
        token_weights=counts.float(),
    )


def mask_rollouts(loss_mask: Tensor, excluded: Tensor) -> Tensor:
    """`loss_mask` with the tokens of `excluded` rollouts (`[B]` bool: cut at the limit, unscored) taken out.

    Apply before denominators are counted: a masked token must leave both sides of the mean.
    """
    return loss_mask.bool() & ~excluded[:, None]


@dataclass(frozen=True, slots=True)
class TokenFields:
    """What every H6 entry is given. A column the source lacks is None."""

    advantage: Tensor  # [B]
    loss_mask: Tensor  # [B, T] bool
    sampler_logprobs: Tensor  # [B, T] nats
    entropy: Tensor | None = None  # [B, T] nats


def _uniform(fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    return uniform(fields.advantage, fields.loss_mask)


TOKEN_WEIGHTS: dict[str, Callable[[TokenFields, Mapping[str, Any]], TokenWeights]] = {
    "uniform": _uniform,
}
