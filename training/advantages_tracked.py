"""H5 against what is remembered of a prompt, and against labels that completions vote for. Pure tensor functions."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from training.advantages import GroupAdvantages, ScoredGroups, described, group_advantages
from training.voting import bump, label_weights


def tracked_advantages(groups: ScoredGroups) -> GroupAdvantages:
    """Reward minus the prompt's running value as it was before this step; groups of one are whole.

    Standardised over the batch by H6's `whitened`.

    Source: Xu and Ding 2025, SPO, arXiv:2509.13232.
    """
    if groups.tracker_value is None:
        raise ValueError("tracked needs a running value of every prompt; set hooks.H9 to tracked")
    scored = groups.rewards.isfinite() & groups.valid
    advantage = torch.where(scored, groups.rewards.double() - groups.tracker_value.double()[:, None], 0)
    return described(groups, advantage, scored)


def voted_advantages(
    groups: ScoredGroups, *, centre: float, width: float, least_share: float, penalty: float, eps: float
) -> GroupAdvantages:
    """`u sum_j w_j A(label j)`, A as GRPO's with a reward of 1 for the completions that gave answer j.

    w_j follows from the share of the completions behind answer j, u from the share behind the base model's most frequent
    answer, both by the same bump. Where no answer has `least_share` of the group, every advantage is `-u penalty`.

    The weighted sum of the losses of all labels and the loss of the weighted advantage have the same gradient as long as no
    token is clipped; we take the latter.

    Source: RESTRAIN, arXiv:2510.02172.
    """
    if groups.clusters is None or groups.base_majority is None:
        raise ValueError(
            "voted needs answers and the base model's majority; set hooks.H4 to soft_labels and H9 to base_profile"
        )
    scored = groups.rewards.isfinite() & groups.valid
    advantage = torch.zeros_like(groups.rewards, dtype=torch.float64)
    for prompt in range(len(scored)):
        of_group, mask = groups.clusters[prompt], scored[prompt]
        if int(mask.sum()) < 2:
            continue
        found, counts = of_group[mask & (of_group >= 0)].unique(return_counts=True)
        size, trust = int(mask.sum()), bump(float(groups.base_majority[prompt]), centre=centre, width=width)
        if max(counts.tolist(), default=0) < least_share * size:
            advantage[prompt, mask] = -penalty * trust
            continue
        weights = label_weights(counts.tolist(), size, centre=centre, width=width)
        for cluster, weight in zip(found.tolist(), weights, strict=True):
            advantage[prompt] += trust * weight * _of_label(of_group == cluster, mask, eps)
    return described(groups, advantage, scored & (scored.sum(dim=1) >= 2)[:, None])


def _of_label(is_label: Tensor, mask: Tensor, eps: float) -> Tensor:
    return group_advantages(is_label.double()[None], mask[None], eps=eps).advantage[0]


def tracked(groups: ScoredGroups, params: Mapping[str, Any]) -> GroupAdvantages:
    return tracked_advantages(groups)


def voted(groups: ScoredGroups, params: Mapping[str, Any]) -> GroupAdvantages:
    return voted_advantages(
        groups,
        centre=params["label_centre"],
        width=params["label_width"],
        least_share=params["least_share"],
        penalty=params["doubt_penalty"],
        eps=params["eps"],
    )
