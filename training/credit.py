"""What the rollouts of a step teach: H5 compares them, H9 says which enter, H6 spreads the advantage over their tokens."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from training.advantages import TIE_TOLERANCE, GroupAdvantages, ScoredGroups
from training.estimators import ADVANTAGES
from training.rollouts import Rollouts, ScoredRollouts, outcomes_by_group
from training.selection import GroupChoice, Uniform
from training.steps import StepRewards, step_rewards, token_rewards
from training.tasks.base import STEP_END
from training.token_weights import TokenFields, TokenWeights, mask_rollouts, spread, weigh_tokens


@dataclass(frozen=True, slots=True)
class ModelColumns:
    """What further passes over the rollouts said, `[B, T]`; None: nobody asked."""

    ref_logprobs: Tensor | None = None  # nats
    recomputed_logprobs: Tensor | None = None  # nats
    values: Tensor | None = None  # [B, T + 1] before each token and after the last, in reward units
    token_rewards: Tensor | None = None  # float64; None: those of the scores
    top: tuple[Tensor, Tensor] | None = None  # ids and nats [B, T, K] of the likeliest tokens, weights that sampled


@dataclass(frozen=True, slots=True)
class Signal:
    """What the rollouts of a step teach."""

    groups: GroupAdvantages
    choices: list[GroupChoice]
    kept: Tensor  # [B] bool
    advantage: Tensor  # [B] float64; the mean over its tokens where they differ
    loss_mask: Tensor  # [B, T] bool
    weights: TokenWeights  # float32
    strata: Tensor | None  # [B] int64

    def stratum_keys(self, group_index: Tensor) -> list[str | None]:
        """Per group, JSON of the structure of each of its rollouts."""
        if self.strata is None:
            return [None] * len(self.choices)
        rows = [self.strata[group_index == group].tolist() for group in range(len(self.choices))]
        return [json.dumps(row) for row in rows]


def assign_credit(
    rollouts: Rollouts,
    scores: ScoredRollouts,
    columns: ModelColumns,
    parts: Mapping[str, tuple[str, ...]],
    params: Mapping[str, Any],
    selection: Uniform,
    *,
    running_mean: float,
    truncated: str,
    seed: int,
) -> Signal:
    """Advantages of groups, then of tokens.

    Args:
        parts, params: entries per hook and the knobs of all of them.
        running_mean: of the rewards of the steps before.
        truncated: what a completion cut at the limit counts, as in the configuration.
        seed: of what H6 draws in this step.
    """
    rewards = rollouts.by_group(scores.rewards, float("nan"))
    owner, device = rollouts.group_index, rollouts.lengths.device
    strata = _strata(rollouts, scores, params["stratum"]) if "stratum" in params else None
    steps = step_rewards(scores.scored, rollouts.lengths) if "process" in (*parts["H5"], *parts["H6"]) else None
    groups = ADVANTAGES[parts["H5"][0]](
        ScoredGroups(
            rewards=rewards,
            valid=rewards.isfinite(),
            correct=rollouts.by_group(scores.correct, False),
            lengths=rollouts.by_group(rollouts.generated.sum(dim=1), 0),
            running_mean=running_mean,
            is_greedy=rollouts.by_group(rollouts.is_greedy, False),
            strata=None if strata is None else rollouts.by_group(strata, -1),
            steps_differ=None if steps is None else _steps_differ(steps, owner, len(rewards)),
            clusters=rollouts.by_group(_clusters(scores, device), -1),
            tracker_value=_of_prompts([one.tracker_value for one in rollouts.chosen], device),
            base_majority=_of_prompts([one.base_majority for one in rollouts.chosen], device),
        ),
        params,
    )
    choices = [
        choice if selection.accepts(outcomes) or not choice.kept else GroupChoice(False, "not_mixed")
        for choice, outcomes in zip(
            selection.choose_groups(groups.dead_cause), outcomes_by_group(rollouts, scores), strict=True
        )
    ]
    is_group_kept = torch.tensor([choice.kept for choice in choices], device=device)
    is_cut = ~rollouts.is_finished if truncated == "mask" else torch.zeros_like(rollouts.is_finished)
    kept = is_group_kept[owner] & groups.kept[owner, rollouts.numbers] & ~is_cut
    advantage = groups.advantage[owner, rollouts.numbers]
    loss_mask = mask_rollouts(rollouts.generated, ~kept)
    width = loss_mask.shape[1]
    earned = columns.token_rewards if columns.token_rewards is not None else token_rewards(scores.scored, width, device)
    weights = weigh_tokens(
        parts["H6"],
        TokenFields(
            advantage=advantage,
            loss_mask=loss_mask,
            sampler_logprobs=rollouts.sampler_logprobs,
            entropy=rollouts.entropy,
            recomputed_logprobs=columns.recomputed_logprobs,
            token_rewards=earned,
            values=None if columns.values is None else columns.values[:, :-1],
            value_after_last=None
            if columns.values is None
            else columns.values.gather(1, rollouts.lengths[:, None]).squeeze(1),
            is_finished=rollouts.is_finished,
            group_index=owner,
            dead_cause=groups.dead_cause,
            steps=steps,
            seed=seed,
        ),
        params,
    )
    return Signal(
        groups=groups,
        choices=choices,
        kept=kept,
        advantage=_mean_advantage(advantage, weights, loss_mask),
        loss_mask=loss_mask,
        weights=replace(
            weights,
            token_advantages=weights.token_advantages.float(),
            token_weights=weights.token_weights.float(),
        ),
        strata=strata,
    )


def _clusters(scores: ScoredRollouts, device: torch.device) -> Tensor:
    found = [-1 if one.answer_cluster is None else one.answer_cluster for one in scores.scored]
    return torch.tensor(found, device=device)


def _of_prompts(values: Sequence[float | None], device: torch.device) -> Tensor | None:
    """`[P]` float64; None unless every prompt has a value."""
    known = [value for value in values if value is not None]
    return torch.tensor(known, dtype=torch.float64, device=device) if len(known) == len(values) else None


def _mean_advantage(advantage: Tensor, weights: TokenWeights, loss_mask: Tensor) -> Tensor:
    """`advantage` where H6 left it alone, else the mean over the rollout's counted tokens."""
    if torch.equal(weights.token_advantages, spread(advantage, loss_mask).token_advantages):
        return advantage
    tokens = loss_mask.sum(dim=1)
    return torch.where(tokens > 0, weights.token_advantages.double().sum(dim=1) / tokens.clamp(min=1), 0)


def _strata(rollouts: Rollouts, scores: ScoredRollouts, stratum: str) -> Tensor:
    """`[B]` the structure of every completion: how many steps it shows, or whether an answer could be read."""
    if stratum == "steps":
        found = [completion.count(STEP_END.encode()) for completion in rollouts.completions]
    else:
        found = [int(one.parsed_answer is not None) for one in scores.scored]
    return torch.tensor(found, device=rollouts.lengths.device)


def _steps_differ(steps: StepRewards, group_index: Tensor, groups: int) -> Tensor:
    """`[P]` bool: the rewards of a group's steps differ by more than 1e-6."""
    out = torch.zeros(groups, dtype=torch.bool, device=group_index.device)
    for group in range(groups):
        rows = group_index == group
        found = steps.values[rows][steps.exists[rows]]
        out[group] = found.numel() > 1 and bool(found.max() - found.min() > TIE_TOLERANCE)
    return out


def drop_reasons(rollouts: Rollouts, scores: ScoredRollouts, signal: Signal) -> list[str | None]:
    """Why each rollout stayed out of the update; None for one that entered it."""
    if bool(signal.kept.all()):
        return [None] * len(scores.scored)
    reasons: list[str | None] = []
    owner = rollouts.group_index
    selected = signal.groups.kept[owner, rollouts.numbers].tolist()
    rows: Sequence[tuple[bool, bool, int, bool]] = list(
        zip(signal.kept.tolist(), selected, owner.tolist(), rollouts.is_greedy.tolist(), strict=True)
    )
    for (kept, is_selected, prompt, is_greedy), one in zip(rows, scores.scored, strict=True):
        own_reason = (
            "baseline"
            if is_greedy
            else "truncated"
            if is_selected
            else "unselected"
            if one.spans
            else one.drop_reason or "unscored"
        )
        reasons.append(None if kept else signal.choices[prompt].drop_reason or own_reason)
    return reasons
