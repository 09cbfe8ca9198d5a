"""H7, the policy loss per token, before aggregation. Pure tensor functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# The exponent of a ratio is clamped here: exp(20) is already past any use.
LOG_RATIO_LIMIT = 20.0
# Values of the clip flag, in the order of training.records.CLIP_FLAGS.
KEPT, CLIPPED_HIGH, CLIPPED_LOW, MASKED = range(4)


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Loss of every token, `[B, T]`; everything but `token_loss` is detached."""

    token_loss: Tensor  # 0 where the token does not count
    importance_ratio: Tensor  # 1 where the token does not count
    clip_flag: Tensor  # uint8: KEPT, CLIPPED_HIGH, CLIPPED_LOW, MASKED
    clamped_tokens: int  # counted tokens whose log-ratio was beyond the limit


def clipped_policy_loss(
    policy_logprobs: Tensor,
    sampler_logprobs: Tensor,
    token_advantages: Tensor,
    loss_mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> PolicyLoss:
    """`-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)` with ratio = exp(policy - sampler).

    A token counts as clipped where the clipped branch is the smaller objective, so where it has no gradient: high for
    A > 0 and ratio > 1 + clip_high, low for A < 0 and ratio < 1 - clip_low.

    Args:
        policy_logprobs: `[B, T]` nats, with gradient; what stands at masked tokens never matters, NaN included.
        sampler_logprobs: `[B, T]` nats, under the weights that sampled.
        token_advantages: `[B, T]`.
        loss_mask: `[B, T]`, True (or 1) where the token counts.
    Raises:
        ValueError: the shapes differ or are not 2-D, or a bound is negative.
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7; bounds apart as in Yu et al. 2025, arXiv:2503.14476.
    """
    shapes = [tuple(t.shape) for t in (policy_logprobs, sampler_logprobs, token_advantages, loss_mask)]
    if len(set(shapes)) > 1 or policy_logprobs.ndim != 2:
        raise ValueError(f"policy, sampler, advantages and mask must have one shape [B, T], got {shapes}")
    if clip_low < 0 or clip_high < 0:
        raise ValueError(f"clip bounds are distances from 1 and not negative, got {clip_low} and {clip_high}")
    counts = loss_mask.bool()
    # where, not times: 0 * nan is nan, in the gradient too.
    log_ratio = torch.where(counts, policy_logprobs, 0) - torch.where(counts, sampler_logprobs, 0)
    importance_ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    advantages = torch.where(counts, token_advantages, 0).to(importance_ratio.dtype)
    objective = importance_ratio * advantages
    clipped_objective = importance_ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    was_clipped = clipped_objective < objective
    flag = torch.where(was_clipped, torch.where(advantages > 0, CLIPPED_HIGH, CLIPPED_LOW), KEPT)
    return PolicyLoss(
        token_loss=-torch.minimum(objective, clipped_objective),
        importance_ratio=importance_ratio.detach(),
        clip_flag=torch.where(counts, flag, MASKED).to(torch.uint8),
        clamped_tokens=int((log_ratio.detach().abs() > LOG_RATIO_LIMIT).sum()),
    )


@dataclass(frozen=True, slots=True)
class RatioStatistics:
    """How far the policy moved from the sampler, over the counted tokens of a step; shares are of counted tokens."""

    counted_tokens: int
    clip_fraction: float
    clip_high_fraction: float
    clip_low_fraction: float
    ratio_mean: float
    ratio_min: float
    ratio_max: float


def ratio_statistics(importance_ratio: Tensor, clip_flag: Tensor) -> RatioStatistics:
    """Of all micro-batches together: concatenate first. Nothing counted: fractions 0, ratios 1."""
    counted = clip_flag != MASKED
    ratio = importance_ratio[counted].double()
    tokens = ratio.numel()
    high, low = (int((clip_flag == kind).sum()) for kind in (CLIPPED_HIGH, CLIPPED_LOW))
    return RatioStatistics(
        counted_tokens=tokens,
        clip_fraction=(high + low) / max(tokens, 1),
        clip_high_fraction=high / max(tokens, 1),
        clip_low_fraction=low / max(tokens, 1),
        ratio_mean=ratio.mean().item() if tokens else 1.0,
        ratio_min=ratio.min().item() if tokens else 1.0,
        ratio_max=ratio.max().item() if tokens else 1.0,
    )


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What every H7 entry is given; all `[B, T]`. A column the source lacks is None."""

    policy_logprobs: Tensor  # nats, with gradient
    sampler_logprobs: Tensor  # nats
    token_advantages: Tensor
    token_weights: Tensor
    loss_mask: Tensor  # bool
    recomputed_logprobs: Tensor | None = None  # nats
    ref_logprobs: Tensor | None = None  # nats


def _clipped(inputs: LossInputs, params: Mapping[str, Any]) -> PolicyLoss:
    anchor = inputs.sampler_logprobs if inputs.recomputed_logprobs is None else inputs.recomputed_logprobs
    return clipped_policy_loss(
        inputs.policy_logprobs,
        anchor,
        inputs.token_advantages * inputs.token_weights,
        inputs.loss_mask,
        clip_low=params["clip_low"],
        clip_high=params["clip_high"],
    )


LOSSES: dict[str, Callable[[LossInputs, Mapping[str, Any]], PolicyLoss]] = {
    "clipped": _clipped,
}
