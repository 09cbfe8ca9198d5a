"""H5, group to advantage: rewards `[P, G]` in, one advantage per rollout out. Pure tensor functions."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

# Rewards that differ by no more are equal: rounding noise must not become a signal.
TIE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of a step, with what the groups looked like. Statistics are NaN where nothing was scored."""

    advantage: Tensor  # [P, G] float64; 0 where there is no signal
    kept: Tensor  # [P, G] bool: enters the update (scored, selected, and with others if it is compared)
    dead_cause: tuple[str | None, ...]  # per group: None has signal; all_right, all_wrong, same_score, single, unscored
    reward_mean: Tensor  # [P] over the scored rollouts, in reward units
    reward_std: Tensor  # [P] the deviation that divides, in reward units; 0 for one scored rollout
    size_got: Tensor  # [P] int64, scored rollouts
    running_mean: float | None = None  # of rewards, with this step's; None: the estimator keeps none

    @property
    def is_dead(self) -> Tensor:
        """[P] bool: the group trains nothing."""
        return torch.tensor([cause is not None for cause in self.dead_cause], device=self.advantage.device)

    def diagnostics(self) -> dict[str, float]:
        """Shares are of all groups."""
        groups = max(len(self.dead_cause), 1)
        causes = ("all_right", "all_wrong", "same_score", "single", "unscored")
        return {
            "dead_share": sum(cause is not None for cause in self.dead_cause) / groups,
            **{f"dead_{cause}_share": self.dead_cause.count(cause) / groups for cause in causes},
            "unscored_rollouts": float(self.advantage.numel() - int(self.size_got.sum())),
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


def _dead_causes(
    has_signal: Tensor, count: Tensor, right: Tensor, wrong: Tensor, *, smallest: int = 2
) -> tuple[str | None, ...]:
    causes: list[str | None] = []
    for alive, n, n_right, n_wrong in zip(
        has_signal.tolist(), count.tolist(), right.tolist(), wrong.tolist(), strict=True
    ):
        if alive:
            causes.append(None)
        elif n < smallest:
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
    running_mean: float = 0.0  # of the rewards of the steps before
    is_greedy: Tensor | None = None  # [P, G] bool: sampled as a baseline, not to learn from
    strata: Tensor | None = None  # [P, G] int64, equal for rollouts of one structure
    steps_differ: Tensor | None = None  # [P] bool: the step rewards of the group are not all equal
    clusters: Tensor | None = None  # [P, G] int64, equal for equal answers; -1: none could be read
    tracker_value: Tensor | None = None  # [P] running value of the prompt before this step, in reward units
    base_majority: Tensor | None = None  # [P] share of the base model's samples with their most frequent answer

    @property
    def reward_mean(self) -> float:
        """Over all scored rollouts of the step; NaN when there is none."""
        return self.rewards.double()[self.rewards.isfinite() & self.valid].mean().item()


def leave_one_out_advantages(groups: GroupAdvantages) -> GroupAdvantages:
    """Reward minus the mean reward of the others of its group: n / (n - 1) times the centred reward of `groups`.

    Source: Ahmadian et al. 2024, arXiv:2402.14740 (estimator of Kool et al. 2019).
    """
    others = (groups.size_got - 1).clamp(min=1)
    return replace(groups, advantage=groups.advantage * (groups.size_got.double() / others)[:, None])


def length_weighted_advantages(groups: GroupAdvantages, lengths: Tensor) -> GroupAdvantages:
    """Reward minus the mean reward of the tokens of its group: `sum_j T_j r_j / sum_j T_j`, from the centred reward of `groups`.

    Of all baselines of a prompt it varies the gradient least where each token adds as much to it as any other, and in any
    direction. Scored rollouts without a counted token do not move it.

    Args:
        groups: as `group_advantages` gives them without the division by the deviation.
        lengths: `[P, G]` counted tokens.
    Raises:
        ValueError: `lengths` has another shape.
    Source: Hao et al. 2025, arXiv:2505.23585, sec. 3.
    """
    if lengths.shape != groups.advantage.shape:
        raise ValueError(f"lengths must be {list(groups.advantage.shape)} like advantages, got {list(lengths.shape)}")
    counted = torch.where(groups.kept, lengths, 0).double()
    shift = (counted * groups.advantage).sum(dim=1) / counted.sum(dim=1).clamp(min=1)
    is_alive = groups.kept & ~groups.is_dead[:, None]
    return replace(groups, advantage=torch.where(is_alive, groups.advantage - shift[:, None], 0))


def max_likelihood_advantages(groups: GroupAdvantages, *, eps: float) -> GroupAdvantages:
    """The centred reward of `groups` over the group's mean reward plus `eps`: the rarer success is, the more it weighs.

    Raises:
        ValueError: a group's mean reward is negative; rewards must not be.
    Source: Maximum likelihood reinforcement learning, arXiv:2602.02710.
    """
    if bool((groups.reward_mean < 0).any()):
        raise ValueError(f"rewards must not be negative, a group has the mean {groups.reward_mean.min().item()}")
    scale = torch.where(groups.reward_mean > 0, groups.reward_mean + eps, torch.inf)
    return replace(groups, advantage=groups.advantage / scale[:, None])


def baseline_advantages(groups: ScoredGroups, baseline: float) -> GroupAdvantages:
    """Reward minus one baseline for all rollouts; they are not compared inside a group, so a group of one is whole.

    A group is dead when all its advantages are 0. A batch whose rewards differ by at most 1e-6 from the baseline has none.
    """
    rewards, scored = groups.rewards.double(), groups.rewards.isfinite() & groups.valid
    advantage = torch.where(scored, rewards - baseline, 0)
    advantage = torch.where(advantage.abs() > TIE_TOLERANCE, advantage, 0)
    return described(groups, advantage, scored)


def signed_advantages(groups: ScoredGroups, *, positive_weight: float, negative_weight: float) -> GroupAdvantages:
    """`positive_weight` for a reward of 1, `-negative_weight` for a reward of 0, no baseline.

    A side of weight 0 does not enter the update, so it leaves the denominators too. Groups that are all right or all wrong keep
    their signal.

    Raises:
        ValueError: a reward is neither 0 nor 1.
    Source: Zhu et al. 2025, arXiv:2506.01347, and its released code.
    """
    scored = groups.rewards.isfinite() & groups.valid
    rewards = torch.where(scored, groups.rewards, 0).double()
    is_right, is_wrong = (rewards - 1).abs() <= TIE_TOLERANCE, rewards.abs() <= TIE_TOLERANCE
    if not bool((is_right | is_wrong).all()):
        odd = rewards[~(is_right | is_wrong)][0].item()
        raise ValueError(f"needs rewards of 0 and 1, got {odd}; take an algorithm for graded rewards")
    advantage = torch.where(scored, is_right.double() * positive_weight - is_wrong.double() * negative_weight, 0)
    return described(groups, advantage, scored & (advantage != 0))


def described(groups: ScoredGroups, advantage: Tensor, kept: Tensor) -> GroupAdvantages:
    """What the groups looked like, around advantages that do not come from comparing inside them."""
    scored = groups.rewards.isfinite() & groups.valid
    count = scored.sum(dim=1)
    mean = torch.where(scored, groups.rewards.double(), 0).sum(dim=1) / count
    deviation = torch.where(scored, groups.rewards.double() - mean[:, None], 0)
    std = (deviation.square().sum(dim=1) / (count - 1).clamp(min=1)).sqrt()
    right, wrong = (scored & groups.correct).sum(dim=1), (scored & ~groups.correct).sum(dim=1)
    causes = _dead_causes((advantage != 0).any(dim=1), count, right, wrong, smallest=1)
    return GroupAdvantages(advantage, kept, causes, mean, torch.where(count > 0, std, torch.nan), count)
