"""H7, the policy loss per token, before aggregation. Pure tensor functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.divergences import top_k_divergence

# The exponent of a ratio is clamped here: exp(20) is already past any use.
LOG_RATIO_LIMIT = 20.0
# Values of the clip flag, in the order of training.records.CLIP_FLAGS.
KEPT, CLIPPED_HIGH, CLIPPED_LOW, MASKED = range(4)
RATIO_LEVELS = ("token", "sequence_mean", "sequence_mean_token", "sequence_sum")
# Levels whose ratio is one number per rollout, gradient included.
PER_ROLLOUT_LEVELS = frozenset({"sequence_mean", "sequence_sum"})
DIVERGENCES = ("tv", "kl")


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Loss of every token, `[B, T]`; everything but `token_loss` is detached."""

    token_loss: Tensor  # 0 where the token does not count
    importance_ratio: Tensor  # 1 where the token does not count
    clip_flag: Tensor  # uint8: KEPT, CLIPPED_HIGH, CLIPPED_LOW, MASKED
    clamped_tokens: int  # counted tokens whose log-ratio was beyond the limit


@dataclass(frozen=True, slots=True)
class ImportanceRatio:
    """How much likelier the policy makes what was sampled than the anchor did, `[B, T]`; 1 where nothing counts."""

    log_ratio: Tensor  # nats per token, clamped, with gradient; 0 where the token does not count
    ratio: Tensor  # at the level asked for, with gradient
    counts: Tensor  # bool
    clamped_tokens: int


def importance_ratio(
    policy_logprobs: Tensor, anchor_logprobs: Tensor, loss_mask: Tensor, *, level: str = "token"
) -> ImportanceRatio:
    """`exp(policy - anchor)` per token or per rollout, worked out in log space and clamped at exp(20).

    With d_t the log-ratio of token t and T the counted tokens of its rollout:
    `token` exp(d_t); `sequence_mean` exp(sum d / T), the same for all its tokens (GSPO); `sequence_mean_token` has that value
    and token t's own gradient (GSPO-token); `sequence_sum` exp(sum d), the ratio of the whole completion (RLOO).

    Args:
        policy_logprobs: `[B, T]` nats, with gradient; what stands at masked tokens never matters, NaN included.
        anchor_logprobs: `[B, T]` nats, under the weights that sampled.
        loss_mask: `[B, T]`, True (or 1) where the token counts.
    Raises:
        ValueError: the level is unknown.
    Source: Zheng et al. 2025, arXiv:2507.18071; Ahmadian et al. 2024, arXiv:2402.14740.
    """
    counts = loss_mask.bool()
    # where, not times: 0 * nan is nan, in the gradient too.
    exact = torch.where(counts, policy_logprobs, 0) - torch.where(counts, anchor_logprobs, 0)
    log_ratio = exact.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if level == "token":
        exponent = log_ratio
    elif level in ("sequence_mean", "sequence_mean_token", "sequence_sum"):
        total = exact.sum(dim=1, keepdim=True)
        per_rollout = total if level == "sequence_sum" else total / counts.sum(dim=1, keepdim=True).clamp(min=1)
        exponent = torch.where(counts, per_rollout.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), 0)
        if level == "sequence_mean_token":
            exponent = exponent.detach() + log_ratio - log_ratio.detach()
    else:
        raise ValueError(f"unknown ratio level {level!r}; known: {', '.join(RATIO_LEVELS)}")
    return ImportanceRatio(
        log_ratio=log_ratio,
        ratio=exponent.exp(),
        counts=counts,
        clamped_tokens=int((exact.detach().abs() > LOG_RATIO_LIMIT).sum()),
    )


def clipped_policy_loss(
    policy_logprobs: Tensor,
    sampler_logprobs: Tensor,
    token_advantages: Tensor,
    loss_mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    level: str = "token",
    dual_clip: float = 0.0,
    drift_limit: float = 0.0,
) -> PolicyLoss:
    """`-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)` with ratio = exp(policy - sampler) at `level`.

    A token counts as clipped where the clipped branch is the smaller objective, so where it has no gradient: high for
    A > 0 and ratio > 1 + clip_high, low for A < 0 and ratio < 1 - clip_low. With dual clip the loss under A < 0 is at most
    `-dual_clip A`: high as well for A < 0 and ratio > dual_clip.

    Args:
        policy_logprobs: `[B, T]` nats, with gradient; what stands at masked tokens never matters, NaN included.
        sampler_logprobs: `[B, T]` nats, under the weights that sampled.
        token_advantages: `[B, T]`.
        loss_mask: `[B, T]`, True (or 1) where the token counts.
        level: of `importance_ratio`. A ratio of the whole completion takes one advantage per rollout and wants the
            `rollout_mean` of the tokens, each of which carries the rollout's loss.
        dual_clip: a ratio above 1; 0: none.
        drift_limit: nats; a rollout with A < 0 whose mean of log sampler - log policy is above it loses its gradient, flagged
            low; 0: none.
    Raises:
        ValueError: the shapes differ or are not 2-D, a bound is negative, a dual clip is not above 1, or the advantage
            varies inside a rollout whose ratio does not.
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7; bounds apart as in Yu et al. 2025, arXiv:2503.14476; dual clip: Ye
    et al. 2020, arXiv:1912.09729; drift limit: DeepSeek-V3.2 2025, arXiv:2512.02556.
    """
    _check_shapes(policy_logprobs, sampler_logprobs, token_advantages, loss_mask)
    if clip_low < 0 or clip_high < 0:
        raise ValueError(f"clip bounds are distances from 1 and not negative, got {clip_low} and {clip_high}")
    if dual_clip and dual_clip <= 1:
        raise ValueError(f"dual_clip is a ratio above 1, or 0 for none, got {dual_clip}")
    found = importance_ratio(policy_logprobs, sampler_logprobs, loss_mask, level=level)
    advantages = _counted(token_advantages, found)
    if level in PER_ROLLOUT_LEVELS:
        _check_constant(advantages, found.counts)
    objective = found.ratio * advantages
    clipped_objective = found.ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    is_high = (clipped_objective < objective) & (advantages > 0)
    is_low = (clipped_objective < objective) & (advantages < 0)
    smaller = torch.minimum(objective, clipped_objective)
    if dual_clip:
        floor = torch.where(advantages < 0, dual_clip * advantages, -torch.inf)
        is_high |= smaller < floor
        smaller = torch.maximum(smaller, floor)
    if drift_limit:
        tokens = found.counts.sum(dim=1, keepdim=True).clamp(min=1)
        drift = -found.log_ratio.detach().sum(dim=1, keepdim=True) / tokens
        is_dropped = (drift > drift_limit) & (advantages < 0)
        smaller, is_low, is_high = torch.where(is_dropped, 0, smaller), is_low | is_dropped, is_high & ~is_dropped
    return _policy_loss(found, -smaller, is_high, is_low)


def unclipped_loss(
    policy_logprobs: Tensor,
    sampler_logprobs: Tensor,
    token_advantages: Tensor,
    loss_mask: Tensor,
    *,
    selected: Tensor | None = None,
    penalty: float = 1.0,
) -> PolicyLoss:
    """`-ratio A`, plus `penalty |log ratio|` at `selected` tokens (KL-Cov). Nothing is clipped.

    Args:
        selected: `[B, T]` bool; None: no token.
        penalty: per nat.
    Raises:
        ValueError: the shapes differ or are not 2-D.
    Source: Cui et al. 2025, arXiv:2505.22617.
    """
    _check_shapes(policy_logprobs, sampler_logprobs, token_advantages, loss_mask)
    found = importance_ratio(policy_logprobs, sampler_logprobs, loss_mask)
    loss = -found.ratio * _counted(token_advantages, found)
    if selected is not None:
        loss = loss + torch.where(selected & found.counts, penalty * found.log_ratio.abs(), 0)
    return _policy_loss(found, loss)


def reinforce_loss(
    policy_logprobs: Tensor, sampler_logprobs: Tensor, token_advantages: Tensor, loss_mask: Tensor
) -> PolicyLoss:
    """`-A log policy`, no ratio: right for one update of each batch. The ratio is reported, nothing is clipped.

    All `[B, T]`; raises ValueError when the shapes differ. Source: Williams 1992, "Simple statistical gradient-following
    algorithms".
    """
    _check_shapes(policy_logprobs, sampler_logprobs, token_advantages, loss_mask)
    found = importance_ratio(policy_logprobs, sampler_logprobs, loss_mask)
    logprobs = torch.where(found.counts, policy_logprobs, 0)
    return _policy_loss(found, -_counted(token_advantages, found) * logprobs)


def detached_clip_loss(
    policy_logprobs: Tensor,
    sampler_logprobs: Tensor,
    token_advantages: Tensor,
    loss_mask: Tensor,
    *,
    ratio_low: float = 0.0,
    ratio_high: float = 5.0,
) -> PolicyLoss:
    """`-sg(clip(ratio, ratio_low, ratio_high)) A log policy` (CISPO): a token beyond a bound keeps a bounded gradient.

    The bounds are ratios, not distances from 1. Flags say where a bound was applied. The value means nothing, since it grows
    with -log policy.

    Raises:
        ValueError: the shapes differ or are not 2-D, or 1 is not inside the bounds.
    Source: MiniMax 2025, arXiv:2506.13585.
    """
    _check_shapes(policy_logprobs, sampler_logprobs, token_advantages, loss_mask)
    if not 0 <= ratio_low <= 1 <= ratio_high:
        raise ValueError(f"the bounds are ratios around 1, got {ratio_low} and {ratio_high}")
    found = importance_ratio(policy_logprobs, sampler_logprobs, loss_mask)
    ratio = found.ratio.detach()
    logprobs = torch.where(found.counts, policy_logprobs, 0)
    loss = -ratio.clamp(ratio_low, ratio_high) * _counted(token_advantages, found) * logprobs
    return _policy_loss(found, loss, ratio > ratio_high, ratio < ratio_low)


def soft_gate_loss(
    policy_logprobs: Tensor,
    sampler_logprobs: Tensor,
    token_advantages: Tensor,
    loss_mask: Tensor,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> PolicyLoss:
    """`-(4 / tau) sigmoid(tau (ratio - 1)) A` (SAPO): the gradient fades smoothly as the ratio leaves 1, nothing is cut.

    `tau_positive` for A > 0, `tau_negative` else. The slope by the ratio at 1 is -A; the value there is -2 A / tau.

    Raises:
        ValueError: the shapes differ or are not 2-D, or a tau is not above 0.
    Source: Gao et al. 2025, arXiv:2511.20347.
    """
    _check_shapes(policy_logprobs, sampler_logprobs, token_advantages, loss_mask)
    if tau_positive <= 0 or tau_negative <= 0:
        raise ValueError(f"tau must be above 0, got {tau_positive} and {tau_negative}")
    found = importance_ratio(policy_logprobs, sampler_logprobs, loss_mask)
    advantages = _counted(token_advantages, found)
    tau = torch.where(advantages > 0, torch.full_like(advantages, tau_positive), tau_negative)
    return _policy_loss(found, -4 / tau * torch.sigmoid(tau * (found.ratio - 1)) * advantages)


def geometric_mean_loss(
    policy_logprobs: Tensor,
    sampler_logprobs: Tensor,
    token_advantages: Tensor,
    loss_mask: Tensor,
    *,
    log_clip_low: float = 0.4,
    log_clip_high: float = 0.4,
) -> PolicyLoss:
    """`-A exp(mean over tokens of the clipped log-ratio)` at every token of a rollout (GMPO); wants `rollout_mean`.

    The clip is one-sided and in log space: `min(log ratio, log_clip_high)` for A > 0, `max(log ratio, -log_clip_low)` else.
    A clipped token has no gradient but keeps its part of the mean.

    Raises:
        ValueError: the shapes differ or are not 2-D, a bound is negative, or the advantage varies inside a rollout.
    Source: Zhao et al. 2025, arXiv:2507.20673, with the clip of its released code.
    """
    _check_shapes(policy_logprobs, sampler_logprobs, token_advantages, loss_mask)
    if log_clip_low < 0 or log_clip_high < 0:
        raise ValueError(f"log clip bounds are distances from 0 and not negative, got {log_clip_low}, {log_clip_high}")
    found = importance_ratio(policy_logprobs, sampler_logprobs, loss_mask)
    advantages = _counted(token_advantages, found)
    _check_constant(advantages, found.counts)
    is_high = (advantages > 0) & (found.log_ratio > log_clip_high)
    is_low = (advantages < 0) & (found.log_ratio < -log_clip_low)
    clipped = torch.where(
        advantages > 0, found.log_ratio.clamp(max=log_clip_high), found.log_ratio.clamp(min=-log_clip_low)
    )
    tokens = found.counts.sum(dim=1, keepdim=True).clamp(min=1)
    mean = torch.where(found.counts, clipped, 0).sum(dim=1, keepdim=True) / tokens
    return _policy_loss(found, -advantages * mean.exp(), is_high, is_low)


def divergence_masked_loss(
    policy_logprobs: Tensor,
    sampler_logprobs: Tensor,
    token_advantages: Tensor,
    loss_mask: Tensor,
    *,
    divergence: str = "tv",
    limit: float = 0.15,
    ratio_cap: float = 10.0,
    distance: Tensor | None = None,
) -> PolicyLoss:
    """`-keep sg(min(ratio, ratio_cap)) A log policy` (DPPO): what limits a token is the change of its probability.

    With q and m the probability of the sampled token under policy and sampler, a token is dropped when its divergence is above
    `limit` and it moved where A pushes it: high for A > 0 and q > m, low for A < 0 and q < m. The divergence is between the
    two-way distributions (token, any other): `tv` |q - m|; `kl` m log(m / q) + (1 - m) log((1 - m) / (1 - q)).

    Args:
        distance: `[B, T]` a divergence worked out elsewhere, over more tokens; replaces `divergence`.
    Raises:
        ValueError: the shapes differ or are not 2-D, the divergence is unknown, the limit is negative or the cap below 1.
    Source: Qi et al. 2026, arXiv:2602.04879, and its released code for the cap.
    """
    _check_shapes(policy_logprobs, sampler_logprobs, token_advantages, loss_mask)
    if limit < 0 or ratio_cap < 1:
        raise ValueError(f"limit must not be negative and ratio_cap at least 1, got {limit} and {ratio_cap}")
    found = importance_ratio(policy_logprobs, sampler_logprobs, loss_mask)
    advantages = _counted(token_advantages, found)
    logprobs = torch.where(found.counts, policy_logprobs, 0)
    policy = logprobs.detach().exp()
    sampler = torch.where(found.counts, sampler_logprobs, 0).exp()
    if distance is not None:
        distance = torch.where(found.counts, distance, 0)
    elif divergence == "tv":
        distance = (policy - sampler).abs()
    elif divergence == "kl":
        others = (1 - sampler) * ((1 - sampler + 1e-8) / (1 - policy + 1e-8)).log()
        distance = others - sampler * found.log_ratio.detach()
    else:
        raise ValueError(f"unknown divergence {divergence!r}; known: {', '.join(DIVERGENCES)}")
    is_high = (distance > limit) & (advantages > 0) & (policy > sampler)
    is_low = (distance > limit) & (advantages < 0) & (policy < sampler)
    loss = -found.ratio.detach().clamp(max=ratio_cap) * advantages * logprobs
    return _policy_loss(found, torch.where(is_high | is_low, 0, loss), is_high, is_low)


def _check_shapes(policy: Tensor, sampler: Tensor, advantages: Tensor, mask: Tensor) -> None:
    shapes = [tuple(t.shape) for t in (policy, sampler, advantages, mask)]
    if len(set(shapes)) > 1 or policy.ndim != 2:
        raise ValueError(f"policy, sampler, advantages and mask must have one shape [B, T], got {shapes}")


def _check_constant(advantages: Tensor, counts: Tensor) -> None:
    highest = torch.where(counts, advantages, -torch.inf).amax(dim=1)
    lowest = torch.where(counts, advantages, torch.inf).amin(dim=1)
    if bool((highest > lowest).any()):
        raise ValueError("a loss of whole completions needs one advantage per rollout; take a token-level loss")


def _counted(token_advantages: Tensor, found: ImportanceRatio) -> Tensor:
    return torch.where(found.counts, token_advantages, 0).to(found.ratio.dtype)


def _policy_loss(
    found: ImportanceRatio, token_loss: Tensor, is_high: Tensor | None = None, is_low: Tensor | None = None
) -> PolicyLoss:
    flag = torch.full_like(found.counts, KEPT, dtype=torch.uint8)
    if is_high is not None and is_low is not None:
        flag = torch.where(is_high, CLIPPED_HIGH, torch.where(is_low, CLIPPED_LOW, flag))
    return PolicyLoss(
        token_loss=token_loss,
        importance_ratio=found.ratio.detach(),
        clip_flag=torch.where(found.counts, flag, MASKED).to(torch.uint8),
        clamped_tokens=found.clamped_tokens,
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
    selected: Tensor | None = None  # bool; tokens that H6 picked for the loss to treat apart
    policy_entropy: Tensor | None = None  # nats, with gradient
    # Of the likeliest tokens under the weights that sampled, [B, T, K] nats, detached.
    top_sampler_logprobs: Tensor | None = None
    top_policy_logprobs: Tensor | None = None


Tensors = tuple[Tensor, Tensor, Tensor, Tensor]


def _proximal(inputs: LossInputs) -> Tensors:
    """Policy, anchor, weighted advantages and mask; the anchor is what the trainer recomputed, if it did."""
    anchor = inputs.sampler_logprobs if inputs.recomputed_logprobs is None else inputs.recomputed_logprobs
    return inputs.policy_logprobs, anchor, inputs.token_advantages * inputs.token_weights, inputs.loss_mask


def _clipped(inputs: LossInputs, params: Mapping[str, Any]) -> PolicyLoss:
    return clipped_policy_loss(
        *_proximal(inputs),
        clip_low=params["clip_low"],
        clip_high=params["clip_high"],
        level=params["ratio_level"],
        dual_clip=params["dual_clip"],
        drift_limit=params["drift_limit"],
    )


def _unclipped(inputs: LossInputs, params: Mapping[str, Any]) -> PolicyLoss:
    return unclipped_loss(*_proximal(inputs), selected=inputs.selected, penalty=params["selected_penalty"])


def _trust_region(inputs: LossInputs, params: Mapping[str, Any]) -> PolicyLoss:
    """What the trust-region step improves; its size is limited by the step, not by the loss."""
    return unclipped_loss(*_proximal(inputs))


def _reinforce(inputs: LossInputs, params: Mapping[str, Any]) -> PolicyLoss:
    return reinforce_loss(*_proximal(inputs))


def _detached_clip(inputs: LossInputs, params: Mapping[str, Any]) -> PolicyLoss:
    return detached_clip_loss(*_proximal(inputs), ratio_low=params["ratio_low"], ratio_high=params["ratio_high"])


def _soft_gate(inputs: LossInputs, params: Mapping[str, Any]) -> PolicyLoss:
    return soft_gate_loss(*_proximal(inputs), tau_positive=params["tau_positive"], tau_negative=params["tau_negative"])


def _geometric_mean(inputs: LossInputs, params: Mapping[str, Any]) -> PolicyLoss:
    return geometric_mean_loss(
        *_proximal(inputs), log_clip_low=params["log_clip_low"], log_clip_high=params["log_clip_high"]
    )


def _divergence_masked(inputs: LossInputs, params: Mapping[str, Any]) -> PolicyLoss:
    policy_logprobs, _, advantages, loss_mask = _proximal(inputs)
    kind, distance = params["divergence"], None
    measure = kind.removeprefix("topk_")
    if kind != measure:
        if inputs.top_sampler_logprobs is None or inputs.top_policy_logprobs is None:
            raise ValueError(f"{kind} needs the likeliest tokens of every place, which this run does not have")
        distance = top_k_divergence(inputs.top_policy_logprobs, inputs.top_sampler_logprobs, kind=measure)
    # Whatever was recomputed, the trust region is around the weights that sampled.
    return divergence_masked_loss(
        policy_logprobs,
        inputs.sampler_logprobs,
        advantages,
        loss_mask,
        divergence=measure,
        distance=distance,
        limit=params[f"{measure}_limit"],
        ratio_cap=params["ratio_cap"],
    )


LOSSES: dict[str, Callable[[LossInputs, Mapping[str, Any]], PolicyLoss]] = {
    "clipped": _clipped,
    "reinforce": _reinforce,
    "detached_clip": _detached_clip,
    "soft_gate": _soft_gate,
    "geometric_mean": _geometric_mean,
    "divergence_masked": _divergence_masked,
    "unclipped": _unclipped,
    "trust_region": _trust_region,
}
