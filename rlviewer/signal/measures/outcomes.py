"""Rewards, solved prompts and lengths of one step."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np

from rlviewer.signal.material import Floats, Integers, Mask, Material

# Distinct rewards of a step that are kept as they are; of more, this many slices of equal size with their means.
MOST_REWARDS = 64
# Two bins of length to a doubling: bin b holds lengths from 2 ** (b / 2), as `length_edge` says.
LENGTH_BINS = 44


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Columns of `StepSignal`, and per group the highest reward and the sum of abs(advantage)."""

    step: dict[str, Any]
    reward_max: Sequence[float | None]
    abs_advantage: Sequence[float | None]


def outcomes(of: Material) -> Outcomes:
    members = of.members()
    reward, correct, advantage = of.floats("reward"), of.floats("correct"), np.abs(of.floats("advantage"))
    values, counts = reward_slices(reward[np.isfinite(reward)])
    right, wrong = correct == 1, correct == 0
    judged = [correct[rows][np.isfinite(correct[rows])] for rows in members]
    scored = [reward[rows][np.isfinite(reward[rows])] for rows in members]
    step = {
        "reward_values": values.tolist(),
        "reward_counts": counts.tolist(),
        "best_of": _mean_over_groups([best_of(rewards) for rewards in scored]),
        "pass_at": _mean_over_groups([pass_at(len(one), int(one.sum())) for one in judged]),
        "solved_groups": sum(bool(one.any()) for one in judged) if right.any() or wrong.any() else None,
        "length_right_mean": _mean(of.lengths[right]),
        "length_wrong_mean": _mean(of.lengths[wrong]),
        "lengths_right": length_histogram(of.lengths, right),
        "lengths_wrong": length_histogram(of.lengths, wrong),
        "lengths_unjudged": length_histogram(of.lengths, ~(right | wrong)),
    }
    return Outcomes(
        step,
        [float(rewards.max()) if len(rewards) else None for rewards in scored],
        [_sum(advantage[rows]) for rows in members],
    )


def reward_slices(rewards: Floats) -> tuple[Floats, Integers]:
    """Rewards in rising order with their counts: each distinct one, or the means of `MOST_REWARDS` slices of equal size."""
    values, counts = np.unique(rewards, return_counts=True)
    if len(values) <= MOST_REWARDS:
        return values, counts
    slices = np.array_split(np.sort(rewards), MOST_REWARDS)
    return np.array([part.mean() for part in slices]), np.array([len(part) for part in slices])


def powers(size: int) -> list[int]:
    """1, 2, 4 ... up to `size`: the k of everything that is said of k samples."""
    return [2**power for power in range(size.bit_length())] if size else []


def best_of(rewards: Floats) -> list[float]:
    """Expected highest of k rewards drawn without replacement, for k of `powers`: unbiased.

    The i-th smallest of n is the highest of k in C(i - 1, k - 1) of C(n, k) draws.
    """
    ordered, n = np.sort(rewards), len(rewards)
    return [float(sum(ordered[i] * comb(i, k - 1) for i in range(k - 1, n)) / comb(n, k)) for k in powers(n)]


def pass_at(n: int, right: int) -> list[float]:
    """Unbiased pass@k of n samples of which `right` are, for k of `powers`: 1 - C(n - c, k) / C(n, k).

    Source: Chen et al. 2021, arXiv:2107.03374, sec. 2.1.
    """
    return [1 - comb(n - right, k) / comb(n, k) for k in powers(n)]


def length_edge(place: int) -> int:
    """The smallest length of a bin."""
    return int(np.ceil(2 ** (place / 2)))


def length_histogram(lengths: Integers, which: Mask) -> list[int]:
    """How many of the rollouts `which` fall into each bin; empty completions count with those of one token."""
    edges = np.array([length_edge(place) for place in range(LENGTH_BINS)])
    places = np.searchsorted(edges, np.maximum(lengths[which], 1), side="right") - 1
    return np.bincount(places, minlength=LENGTH_BINS).tolist()


def _mean_over_groups(found: Sequence[Sequence[float]]) -> list[float]:
    """By k, the mean over the groups that are large enough for it."""
    most = max(map(len, found), default=0)
    return [float(np.mean([one[place] for one in found if len(one) > place])) for place in range(most)]


def _mean(values: Integers) -> float | None:
    return float(values.mean()) if len(values) else None


def _sum(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.sum()) if len(known) else None
