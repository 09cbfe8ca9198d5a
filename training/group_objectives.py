"""Advantages that do more than centre a group: order statistics, pass@k, strata, length and difficulty. Pure functions.

Each takes a group at a time or `[P, G]` rewards whose unscored entries are NaN, and works in float64.
"""

import math

import torch
from torch import Tensor

from training.advantages import TIE_TOLERANCE


def tail_weights(rewards: Tensor, *, lowest: float = 0.0) -> Tensor:
    """`[G]`: `sum over distinct v_k <= r_i of (v_k - v_(k-1)) / S(v_k)`, S(v) the share of rewards of at least v.

    The gradient of the log-chance to beat a threshold, over all thresholds above `lowest`. Minus its mean it is an advantage.

    Raises:
        ValueError: a reward lies below `lowest`.
    Source: Tail-likelihood reinforcement learning, arXiv:2609.02987.
    """
    rewards = rewards.double()
    if bool((rewards < lowest).any()):
        raise ValueError(f"a reward of {rewards.min().item()} lies below the lower bound {lowest}; lower tail_lowest")
    levels = rewards.unique(sorted=True)
    gaps = torch.diff(levels, prepend=levels.new_tensor([lowest]))
    share = (rewards[:, None] >= levels).double().mean(dim=0)
    return torch.where(rewards[:, None] >= levels, gaps / share, 0).sum(dim=1)


def best_of_k_weights(rewards: Tensor, *, k: int) -> Tensor:
    """`[G]`: by how much a rollout beats the best of k - 1 others, on average over all choices of them.

    For k = 1 it is the reward itself. Its own baseline: an easy prompt gives next to nothing. Sorted sums with binomial
    weights, not subsets.

    Args:
        rewards: `[G]`, in reward units.
        k: 1 to G.
    Raises:
        ValueError: k is not in 1 to G.
    Source: Walder and Karkhanis 2025, PKPO, arXiv:2505.15201: n / k times its loo-minus-one estimator.
    """
    rewards = rewards.double()
    n = len(rewards)
    if not 1 <= k <= n:
        raise ValueError(f"k must be 1 to the group's {n} scored rollouts, got {k}")
    if k == 1:
        return rewards.clone()
    ascending, order = rewards.sort(stable=True)
    # The best of the k - 1 others, all below i, is the one of rank m with this chance.
    chances = [math.comb(rank, k - 2) / math.comb(n - 1, k - 1) for rank in range(n)]
    chance = torch.tensor(chances, dtype=torch.float64, device=rewards.device)
    before = (chance.cumsum(0) - chance, (ascending * chance).cumsum(0) - ascending * chance)
    out = torch.empty_like(rewards)
    out[order] = ascending * before[0] - before[1]
    return out


def pass_at_k_advantages(total: int, right: int, *, k: int, eps: float = 1e-6) -> tuple[float, float]:
    """Advantage of a right and of a wrong rollout in a group of `total` with `right` right ones, when pass@k is the reward.

    0 for both when k draws cannot all be wrong.

    Raises:
        ValueError: k is not in 1 to total.
    Source: Chen et al. 2025, "Pass@k training", arXiv:2508.10751.
    """
    if not 1 <= k <= total:
        raise ValueError(f"k must be 1 to the group's {total} scored rollouts, got {k}")
    wrong = total - right
    if wrong < k or not right:
        return 0.0, 0.0
    mean = 1 - math.comb(wrong, k) / math.comb(total, k)
    deviation = math.sqrt(mean * (1 - mean))
    of_wrong = 1 - math.comb(wrong - 1, k - 1) / math.comb(total - 1, k - 1)
    return (1 - mean) / (deviation + eps), (of_wrong - mean) / (deviation + eps)


def difficulty_weight(share: float) -> float:
    """`0.4 + 1.1 / (1 + exp(10 (share - 0.75)))`: what is seldom right weighs more.

    Source: Zhang and Zuo 2025, GRPO-LEAD, arXiv:2504.09696.
    """
    return 0.4 + 1.1 / (1 + math.exp(10 * (share - 0.75)))


def stratified_advantages(
    rewards: Tensor, strata: Tensor, *, blend: float, eps: float = 1e-6, lone: str = "global"
) -> Tensor:
    """`[G]`: `blend` times the z-score inside the rollout's stratum plus the rest of that of the whole group.

    Deviations divide by n. Equal rewards have a z-score of 0. A rollout alone in its stratum takes the group's z-score for
    its part, or 0 with `lone` "zero".

    Args:
        rewards: `[G]`, scored.
        strata: `[G]` int64, equal for rollouts to be compared.
    Source: Stratified GRPO, arXiv:2510.06214; constants are ours.
    """
    whole = _z_scores(rewards, eps)
    inside = torch.zeros_like(whole)
    for stratum in strata.unique().tolist():
        rows = strata == stratum
        if int(rows.sum()) > 1:
            inside[rows] = _z_scores(rewards[rows], eps)
        elif lone == "global":
            inside[rows] = whole[rows]
    return blend * inside + (1 - blend) * whole


def _z_scores(rewards: Tensor, eps: float) -> Tensor:
    rewards = rewards.double()
    if rewards.max() - rewards.min() <= TIE_TOLERANCE:
        return torch.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std(correction=0) + eps)
