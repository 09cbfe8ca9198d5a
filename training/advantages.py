"""H5, group to advantage: rewards `[P, G]` in, one advantage per rollout out. Pure tensor functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Rewards that differ by no more are equal: rounding noise must not become a signal.
TIE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of a step, with what the groups looked like. Statistics are NaN where nothing was scored."""

    advantage: Tensor  # [P, G] float64; 0 where there is no signal
    kept: Tensor  # [P, G] bool: enters the update (scored, and not the only scored one of its group)
    dead_cause: tuple[str | None, ...]  # per group: None has signal; all_right, all_wrong, same_score, single, unscored
    reward_mean: Tensor  # [P] over the scored rollouts, in reward units
    reward_std: Tensor  # [P] the deviation that divides, in reward units; 0 for one scored rollout
    size_got: Tensor  # [P] int64, scored rollouts

    @property
    def is_dead(self) -> Tensor:
        """[P] bool: the group trains nothing."""
        return torch.tensor([cause is not None for cause in self.dead_cause], device=self.advantage.device)

    def diagnostics(self) -> dict[str, float]:
        """Shares are of all groups; advantage moments are over kept rollouts, population form."""
        groups = max(len(self.dead_cause), 1)
        kept = self.advantage[self.kept]
        causes = ("all_right", "all_wrong", "same_score", "single", "unscored")
        return {
            "dead_share": sum(cause is not None for cause in self.dead_cause) / groups,
            **{f"dead_{cause}_share": self.dead_cause.count(cause) / groups for cause in causes},
            "unscored_rollouts": float(self.advantage.numel() - int(self.size_got.sum())),
            "advantage_mean": kept.mean().item() if kept.numel() else 0.0,
            "advantage_std": kept.std(correction=0).item() if kept.numel() else 0.0,
        }


def group_advantages(
    rewards: Tensor,
    valid: Tensor | None = None,
    *,
    correct: Tensor | None = None,
    divide_by_std: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
) -> GroupAdvantages:
    """Reward minus the mean reward of its group, divided by the group's standard deviation.

    Computed in float64: twelve equal float32 rewards of 0.7 have a mean that is off by one unit in the last place.

    Args:
        rewards: `[P, G]`, a row per prompt, a column per completion; NaN: not scored.
        valid: `[P, G]` bool, False leaves a rollout out of the statistics as NaN does; None: all are valid.
        correct: `[P, G]` bool, names the cause of a dead group; None: reward 1 is right, 0 is wrong.
        divide_by_std: True is GRPO; False keeps the reward's own unit (Dr. GRPO).
        ddof: 1 divides the squared deviations by n - 1, 0 by n.
        eps: added to the standard deviation, in reward units.
    Returns:
        Advantages that are exactly 0 for a group whose scored rewards differ by at most 1e-6, for a group with fewer than
        two scored rollouts, and for every rollout that is not scored.
    Raises:
        ValueError: `rewards` is not 2-D, has groups of one, or the masks have another shape; `ddof` is not 0 or 1.
    Source: Shao et al. 2024, arXiv:2402.03300, sec. 4.1.2; Liu et al. 2025, arXiv:2503.20783.
    """
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(f"rewards must be [P, G] with G >= 2, got {list(rewards.shape)}")
    for name, mask in (("valid", valid), ("correct", correct)):
        if mask is not None and mask.shape != rewards.shape:
            raise ValueError(f"{name} must be {list(rewards.shape)} like rewards, got {list(mask.shape)}")
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, got {ddof}")
    rewards = rewards.double()
    scored = rewards.isfinite() if valid is None else rewards.isfinite() & valid
    count = scored.sum(dim=1)
    mean = torch.where(scored, rewards, 0).sum(dim=1) / count
    deviation = torch.where(scored, rewards - mean[:, None], 0)
    std = (deviation.square().sum(dim=1) / (count - ddof).clamp(min=1)).sqrt()
    std = torch.where(count > 0, std, torch.nan)

    highest = torch.where(scored, rewards, -torch.inf).amax(dim=1)
    lowest = torch.where(scored, rewards, torch.inf).amin(dim=1)
    has_signal = (count >= 2) & (highest - lowest > TIE_TOLERANCE)
    scale = std + eps if divide_by_std else torch.ones_like(std)
    advantage = torch.where(has_signal[:, None] & scored, deviation / scale[:, None], 0)

    right = scored & (correct if correct is not None else rewards >= 1 - TIE_TOLERANCE)
    wrong = scored & (~correct if correct is not None else rewards <= TIE_TOLERANCE)
    return GroupAdvantages(
        advantage=advantage,
        kept=scored & (count >= 2)[:, None],
        dead_cause=_dead_causes(has_signal, count, right.sum(dim=1), wrong.sum(dim=1)),
        reward_mean=mean,
        reward_std=std,
        size_got=count,
    )


def _dead_causes(has_signal: Tensor, count: Tensor, right: Tensor, wrong: Tensor) -> tuple[str | None, ...]:
    causes: list[str | None] = []
    for alive, n, n_right, n_wrong in zip(
        has_signal.tolist(), count.tolist(), right.tolist(), wrong.tolist(), strict=True
    ):
        if alive:
            causes.append(None)
        elif n < 2:
            causes.append("single" if n else "unscored")
        elif n_right == n:
            causes.append("all_right")
        else:
            causes.append("all_wrong" if n_wrong == n else "same_score")
    return tuple(causes)


@dataclass(frozen=True, slots=True)
class ScoredGroups:
    """What every H5 entry is given."""

    rewards: Tensor  # [P, G], NaN: not scored
    valid: Tensor  # [P, G] bool
    correct: Tensor  # [P, G] bool
    lengths: Tensor  # [P, G] int64, counted tokens


def _group(groups: ScoredGroups, params: Mapping[str, Any]) -> GroupAdvantages:
    return group_advantages(
        groups.rewards,
        groups.valid,
        correct=groups.correct,
        divide_by_std=params["divide_by_std"],
        ddof=params["ddof"],
        eps=params["eps"],
    )


ADVANTAGES: dict[str, Callable[[ScoredGroups, Mapping[str, Any]], GroupAdvantages]] = {
    "group": _group,
}
