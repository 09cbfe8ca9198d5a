"""H5 by name: from what is known of the groups of a step to their advantages."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from training import advantages_tracked, group_objectives
from training.advantages import (
    TIE_TOLERANCE,
    GroupAdvantages,
    ScoredGroups,
    baseline_advantages,
    described,
    group_advantages,
    leave_one_out_advantages,
    length_weighted_advantages,
    max_likelihood_advantages,
    signed_advantages,
)

Params = Mapping[str, Any]


def _group(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    return group_advantages(
        groups.rewards,
        groups.valid,
        correct=groups.correct,
        divide_by_std=params["divide_by_std"],
        ddof=params["ddof"],
        eps=params["eps"],
    )


def _centred(groups: ScoredGroups) -> GroupAdvantages:
    return group_advantages(groups.rewards, groups.valid, correct=groups.correct, divide_by_std=False)


def _leave_one_out(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    return leave_one_out_advantages(_centred(groups))


def _length_weighted(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    return length_weighted_advantages(_centred(groups), groups.lengths)


def _max_likelihood(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    return max_likelihood_advantages(_centred(groups), eps=params["eps"])


def _no_baseline(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    return baseline_advantages(groups, 0.0)


def _batch_mean(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    return baseline_advantages(groups, groups.reward_mean)


def _running_mean(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    """`running_mean` as it was before this step; Williams 1992 with the decay of the step's mean reward."""
    decay, before = params["baseline_decay"], groups.running_mean
    after = before if math.isnan(groups.reward_mean) else decay * before + (1 - decay) * groups.reward_mean
    return replace(baseline_advantages(groups, before), running_mean=after)


def _signed(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    return signed_advantages(
        groups, positive_weight=params["positive_weight"], negative_weight=params["negative_weight"]
    )


def _critic(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    """The reward itself: what it is compared with is said token by token, so no group is dead for being equal."""
    out = baseline_advantages(groups, 0.0)
    causes = tuple("unscored" if cause == "unscored" else None for cause in out.dead_cause)
    return replace(out, dead_cause=causes)


def _greedy_baseline(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    """Reward minus the reward of the prompt's greedy completion, which does not train itself.

    Without a scored greedy completion nothing of the prompt trains.

    Source: Li et al. 2024, ReMax, arXiv:2310.10505.
    """
    if groups.is_greedy is None or not bool(groups.is_greedy.any(dim=1).all()):
        raise ValueError("greedy_baseline needs a greedy completion of every prompt; set hooks.H3 to with_greedy")
    scored = groups.rewards.isfinite() & groups.valid
    baseline = torch.where(groups.is_greedy, groups.rewards.double(), 0).sum(dim=1)
    has_baseline = baseline.isfinite() & (scored & groups.is_greedy).any(dim=1)
    sampled = scored & ~groups.is_greedy & has_baseline[:, None]
    difference = groups.rewards.double() - baseline[:, None]
    advantage = torch.where(sampled & (difference.abs() > TIE_TOLERANCE), difference, 0)
    return described(groups, advantage, sampled)


def _process(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    """Signal wherever the rewards of steps differ; H6's process spreads them."""
    if groups.steps_differ is None:
        raise ValueError("process needs the rewards of steps, which this run does not have")
    plain = group_advantages(groups.rewards, groups.valid, correct=groups.correct, eps=params["eps"])
    alive = (groups.steps_differ & (plain.size_got > 1)).tolist()
    causes = zip(plain.dead_cause, alive, strict=True)
    return replace(plain, dead_cause=tuple(None if is_alive else cause or "same_score" for cause, is_alive in causes))


def _each_group(
    groups: ScoredGroups, advantages: Callable[[int, Tensor, Tensor], Tensor], *, smallest: int = 2
) -> GroupAdvantages:
    """`advantages(prompt, rewards, columns)` of the scored rollouts of every group of at least `smallest`.

    A group whose rewards differ by at most 1e-6 gets exactly 0.
    """
    plain = _centred(groups)
    out = torch.zeros_like(plain.advantage)
    for prompt, cause in enumerate(plain.dead_cause):
        columns = (groups.rewards[prompt].isfinite() & groups.valid[prompt]).nonzero()[:, 0]
        if cause is None and len(columns) >= smallest:
            out[prompt, columns] = advantages(prompt, groups.rewards[prompt, columns].double(), columns)
    return replace(plain, advantage=out)


def _tail(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    def of_group(prompt: int, rewards: Tensor, columns: Tensor) -> Tensor:
        weights = group_objectives.tail_weights(rewards, lowest=params["tail_lowest"])
        return weights - weights.mean()

    return _each_group(groups, of_group)


def _best_of_k(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    """A group that lost rollouts and has fewer than k left compares as many as it has."""
    return _each_group(
        groups,
        lambda prompt, rewards, columns: group_objectives.best_of_k_weights(
            rewards, k=min(params["pass_k"], len(rewards))
        ),
    )


def _pass_at_k(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    def of_group(prompt: int, rewards: Tensor, columns: Tensor) -> Tensor:
        right = groups.correct[prompt, columns]
        k = min(params["pass_k"], len(rewards))
        of_right, of_wrong = group_objectives.pass_at_k_advantages(len(rewards), int(right.sum()), k=k)
        return torch.where(right, torch.full_like(rewards, of_right), of_wrong)

    return _each_group(groups, of_group)


def _difficulty(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    """`group`, times a weight that grows with the share of the others: seldom right weighs more, seldom wrong too."""
    plain = _group(groups, params)
    scored = groups.rewards.isfinite() & groups.valid
    share = (scored & groups.correct).sum(dim=1).double() / plain.size_got.clamp(min=1)
    weights = torch.tensor(
        [[group_objectives.difficulty_weight(p), group_objectives.difficulty_weight(1 - p)] for p in share.tolist()],
        dtype=torch.float64,
        device=plain.advantage.device,
    )
    factor = torch.where(plain.advantage > 0, weights[:, :1], weights[:, 1:])
    return replace(plain, advantage=plain.advantage * factor)


def _stratified(groups: ScoredGroups, params: Params) -> GroupAdvantages:
    if groups.strata is None:
        raise ValueError("stratified needs the structure of every rollout, which this run does not have")
    strata = groups.strata
    return _each_group(
        groups,
        lambda prompt, rewards, columns: group_objectives.stratified_advantages(
            rewards,
            strata[prompt, columns],
            blend=params["stratum_blend"],
            eps=params["eps"],
            lone=params["lone_stratum"],
        ),
    )


ADVANTAGES: dict[str, Callable[[ScoredGroups, Params], GroupAdvantages]] = {
    "group": _group,
    "leave_one_out": _leave_one_out,
    "length_weighted": _length_weighted,
    "max_likelihood": _max_likelihood,
    "no_baseline": _no_baseline,
    "batch_mean": _batch_mean,
    "running_mean": _running_mean,
    "signed": _signed,
    "critic": _critic,
    "greedy_baseline": _greedy_baseline,
    "process": _process,
    "tail": _tail,
    "best_of_k": _best_of_k,
    "pass_at_k": _pass_at_k,
    "difficulty": _difficulty,
    "stratified": _stratified,
    "tracked": advantages_tracked.tracked,
    "voted": advantages_tracked.voted,
}
