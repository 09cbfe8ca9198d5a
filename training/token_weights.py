"""H6, advantage to token weights, and which tokens count. Pure tensor functions.

A run names a chain of entries. Each is given what the entries before it made of the rollout's advantage, and changes the
advantages of tokens, their weights, or which tokens the loss treats apart.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from training import mismatch, returns, token_selection
from training.advantages import TIE_TOLERANCE
from training.steps import StepRewards


@dataclass(frozen=True, slots=True)
class TokenWeights:
    """Per-token signal, `[B, T]`; advantages and weights are 0 where the token does not count."""

    token_advantages: Tensor
    token_weights: Tensor
    selected: Tensor | None = None  # bool; tokens that a loss of H7 treats apart
    returns: Tensor | None = None  # what a critic should have said, before any whitening
    forward_tokens: Tensor | None = None  # [B] int64; behind so many tokens the loss reads nothing. None: it reads all


@dataclass(frozen=True, slots=True)
class TokenFields:
    """What every H6 entry is given; `[B, T]` unless said. A column the source lacks is None."""

    advantage: Tensor  # [B]
    loss_mask: Tensor  # bool
    sampler_logprobs: Tensor  # nats
    entropy: Tensor | None = None  # nats
    recomputed_logprobs: Tensor | None = None  # nats
    token_rewards: Tensor | None = None  # reward credited to each token; they sum to the rollout's
    values: Tensor | None = None  # of the critic, before each token
    value_after_last: Tensor | None = None  # [B] of the critic
    is_finished: Tensor | None = None  # [B] bool
    group_index: Tensor | None = None  # [B] int64
    dead_cause: Sequence[str | None] = ()  # per group
    steps: StepRewards | None = None  # of the B rollouts
    seed: int = 0  # of what is drawn in this step

    @property
    def anchor_logprobs(self) -> Tensor:
        """Under the weights that sampled: what the trainer recomputed, else what the sampler said."""
        return self.sampler_logprobs if self.recomputed_logprobs is None else self.recomputed_logprobs

    def need(self, name: str) -> Any:
        """The column `name`.

        Raises:
            ValueError: the source lacks it.
        """
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"hooks.H6 needs {name}, which this run does not have")
        return value


def spread(advantage: Tensor, loss_mask: Tensor) -> TokenWeights:
    """The rollout's advantage on each of its counted tokens, with weight 1; in the precision of `advantage`.

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
        token_advantages=torch.where(counts, advantage[:, None], 0),
        token_weights=counts.to(advantage.dtype),
    )


def whitened(token_advantages: Tensor, loss_mask: Tensor, *, ddof: int = 1) -> Tensor:
    """Shifted and scaled to mean 0 and deviation 1 over all counted tokens of the step, `[B, T]` float64.

    A long rollout weighs more, so the advantages of rollouts need not sum to 0. Tokens whose advantages differ by at most 1e-6
    get exactly 0.

    Args:
        token_advantages: `[B, T]`.
        loss_mask: `[B, T]` of the whole step, after all masks.
        ddof: 1 divides squared deviations by n - 1, 0 by n.
    Source: Hu et al. 2025, arXiv:2501.03262; the 1e-8 inside the root as in its users' code.
    """
    counts = loss_mask.bool()
    values = token_advantages.double()[counts]
    if not values.numel() or values.max() - values.min() <= TIE_TOLERANCE:
        return torch.zeros_like(token_advantages, dtype=torch.float64)
    mean = values.mean()
    variance = (values - mean).square().sum() / max(values.numel() - ddof, 1)
    return torch.where(counts, (token_advantages.double() - mean) / (variance + 1e-8).sqrt(), 0)


def mask_rollouts(loss_mask: Tensor, excluded: Tensor) -> Tensor:
    """`loss_mask` with the tokens of `excluded` rollouts (`[B]` bool: cut at the limit, unscored) taken out.

    Apply before denominators are counted: a masked token must leave both sides of the mean.
    """
    return loss_mask.bool() & ~excluded[:, None]


def weigh_tokens(entries: Sequence[str], fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    """The rollouts' advantages through the chain of `entries`.

    Raises:
        ValueError: an entry needs a column that is missing; names both.
    """
    weights = spread(fields.advantage, fields.loss_mask)
    for name in entries:
        weights = TOKEN_WEIGHTS[name](weights, fields, params)
    return weights


def _uniform(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    return weights


def _whitened(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    scaled = whitened(weights.token_advantages, fields.loss_mask, ddof=params["whiten_ddof"])
    return replace(weights, token_advantages=scaled)


def _return_to_go(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    """H5's baseline is what it took from the rollout's reward."""
    rewards = fields.need("token_rewards")
    to_go = returns.return_to_go(rewards, fields.loss_mask, discount=params["discount"])
    baseline = rewards.sum(dim=1) - fields.advantage
    return replace(weights, token_advantages=torch.where(fields.loss_mask, to_go - baseline[:, None], 0))


def _gae(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    rewards, values = fields.need("token_rewards"), fields.need("values")
    last = None
    if params["bootstrap_truncated"]:
        last = torch.where(fields.need("is_finished"), 0, fields.need("value_after_last"))
    found = returns.gae(
        rewards,
        values,
        fields.loss_mask,
        discount=params["discount"],
        trace_decay=params["trace_decay"],
        value_after_last=last,
    )
    return replace(weights, token_advantages=found.advantages, returns=found.returns)


def _process(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    steps = fields.need("steps")
    to_go = returns.process_advantages(steps, fields.need("group_index"), fields.loss_mask, eps=params["eps"])
    return replace(weights, token_advantages=to_go)


def _weighed(weights: TokenWeights, factor: Tensor) -> TokenWeights:
    return replace(weights, token_weights=weights.token_weights * factor)


def _ends_first(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    factor = token_selection.ends_weight(fields.loss_mask, strength=params["ends_strength"])
    return replace(weights, token_advantages=weights.token_advantages * factor)


def _dead_entropy(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    added = token_selection.dead_group_entropy_advantages(
        fields.need("entropy"),
        fields.loss_mask,
        fields.need("group_index"),
        fields.dead_cause,
        fields.need("is_finished"),
        strength=params["entropy_strength"],
    )
    return replace(weights, token_advantages=weights.token_advantages + added)


def _top_entropy(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    kept = token_selection.top_entropy(fields.need("entropy"), fields.loss_mask, share=params["entropy_share"])
    return _weighed(weights, kept)


def _sampled_tokens(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    return _weighed(
        weights, token_selection.sampled_tokens(fields.loss_mask, share=params["token_share"], seed=fields.seed)
    )


def _prefix_cut(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    factor = token_selection.prefix_cut(fields.loss_mask, shortest=params["shortest_cut"], seed=fields.seed)
    place = torch.arange(1, factor.shape[1] + 1, device=factor.device)
    return replace(_weighed(weights, factor), forward_tokens=(place * (factor > 0)).amax(dim=1))


def _covariance_drop(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    dropped = token_selection.covariance_band(
        fields.anchor_logprobs,
        weights.token_advantages,
        fields.loss_mask,
        low=params["covariance_low"],
        high=params["covariance_high"],
        share=params["covariance_share"],
        seed=fields.seed,
    )
    return _weighed(weights, ~dropped)


def _covariance_top(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    selected = token_selection.covariance_top(
        fields.anchor_logprobs, weights.token_advantages, fields.loss_mask, share=params["covariance_share"]
    )
    return replace(weights, selected=selected)


def _truncated_mismatch(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    ratio = mismatch.mismatch_ratio(
        fields.need("recomputed_logprobs"), fields.sampler_logprobs, fields.loss_mask, level=params["mismatch_level"]
    )
    return _weighed(weights, ratio.clamp(max=params["mismatch_cap"]))


def _bounded_mismatch(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    ratio = mismatch.mismatch_ratio(fields.need("recomputed_logprobs"), fields.sampler_logprobs, fields.loss_mask)
    return _weighed(weights, mismatch.bounded(ratio, low=params["mismatch_low"], high=params["mismatch_high"]))


def _sequence_mismatch(weights: TokenWeights, fields: TokenFields, params: Mapping[str, Any]) -> TokenWeights:
    recomputed = fields.need("recomputed_logprobs")
    keep = mismatch.sequence_kept(
        recomputed,
        fields.sampler_logprobs,
        fields.loss_mask,
        low=params["sequence_low"],
        high=params["sequence_high"],
    )
    ratio = mismatch.mismatch_ratio(recomputed, fields.sampler_logprobs, fields.loss_mask)
    return _weighed(weights, ratio.clamp(max=params["mismatch_cap"]) * keep[:, None])


TOKEN_WEIGHTS: dict[str, Callable[[TokenWeights, TokenFields, Mapping[str, Any]], TokenWeights]] = {
    "uniform": _uniform,
    "return_to_go": _return_to_go,
    "gae": _gae,
    "process": _process,
    "whitened": _whitened,
    "ends_first": _ends_first,
    "dead_entropy": _dead_entropy,
    "top_entropy": _top_entropy,
    "sampled_tokens": _sampled_tokens,
    "prefix_cut": _prefix_cut,
    "covariance_drop": _covariance_drop,
    "covariance_top": _covariance_top,
    "truncated_mismatch": _truncated_mismatch,
    "bounded_mismatch": _bounded_mismatch,
    "sequence_mismatch": _sequence_mismatch,
}
