"""H6, advantage to token weights, and which tokens count. Pure tensor functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from training.advantages import TIE_TOLERANCE


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


def whitened(advantage: Tensor, loss_mask: Tensor, *, ddof: int = 1) -> TokenWeights:
    """`uniform`, then shifted and scaled to mean 0 and deviation 1 over all counted tokens of the step.

    A long rollout weighs more, so the advantages of rollouts need not sum to 0. Computed in float64. Tokens whose advantages
    differ by at most 1e-6 get exactly 0.

    Args:
        advantage: `[B]`.
        loss_mask: `[B, T]` of the whole step, after all masks.
        ddof: 1 divides squared deviations by n - 1, 0 by n.
    Source: Hu et al. 2025, arXiv:2501.03262; the 1e-8 inside the root as in its users' code.
    """
    plain = uniform(advantage, loss_mask)
    counts = loss_mask.bool()
    values = advantage.double()[:, None].expand(loss_mask.shape)[counts]
    if not values.numel() or values.max() - values.min() <= TIE_TOLERANCE:
        return replace(plain, token_advantages=torch.zeros_like(plain.token_advantages))
    mean = values.mean()
    variance = (values - mean).square().sum() / max(values.numel() - ddof, 1)
    scaled = (advantage.double() - mean) / (variance + 1e-8).sqrt()
    return uniform(scaled, loss_mask)


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


def _whitened(fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    return whitened(fields.advantage, fields.loss_mask, ddof=params["whiten_ddof"])


TOKEN_WEIGHTS: dict[str, Callable[[TokenFields, Mapping[str, Any]], TokenWeights]] = {
    "uniform": _uniform,
    "whitened": _whitened,
}
