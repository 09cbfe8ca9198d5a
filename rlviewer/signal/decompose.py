"""What made a mean, and its change: exact splits over the things it is a mean of. Pure functions of arrays."""

from dataclasses import dataclass

import numpy as np

from rlviewer.signal.material import Floats, Integers

MOST_OF = 0.8  # how many make so much of it
EVEN = 0.2  # a top tenth that holds less lies evenly


@dataclass(frozen=True, slots=True)
class Weighed:
    """A mean over rollouts: the sum of `sums` over the sum of `counts`. NaN sums are left out with their counts."""

    sums: Floats
    counts: Floats

    @property
    def total(self) -> float:
        return float(self.counts.sum())

    @property
    def value(self) -> float | None:
        return float(self.sums.sum() / self.total) if self.total else None


def weighed(sums: Floats, counts: Floats) -> Weighed:
    known = np.isfinite(sums)
    return Weighed(np.where(known, sums, 0.0), np.where(known, counts, 0.0))


def contributions(now: Weighed, before: float | None = None) -> Floats:
    """What each rollout adds to the value, or to its difference from `before`; they add up to it exactly.

    A rollout with sum s and count n adds s / N to the mean and (s - before n) / N to the difference.
    """
    if not now.total:
        return np.zeros(len(now.sums))
    return (now.sums - (before or 0.0) * now.counts) / now.total


@dataclass(frozen=True, slots=True)
class Concentration:
    """How few make most of it, by size whatever the sign."""

    count: int  # of all that add anything or could
    most: int  # the largest of them that together make MOST_OF
    top_tenth: float  # share of the largest tenth

    @property
    def is_even(self) -> bool:
        return self.top_tenth < EVEN


def concentration(parts: Floats) -> Concentration | None:
    """None when nothing adds anything."""
    sizes = np.sort(np.abs(parts))[::-1]
    whole = sizes.sum()
    if not whole:
        return None
    reached = np.cumsum(sizes) / whole
    most = int(np.searchsorted(reached, MOST_OF - 1e-12)) + 1
    tenth = max(1, -(-len(sizes) // 10))
    return Concentration(len(sizes), most, float(reached[tenth - 1]))


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One prompt or family: what it adds to the change because it is asked more or less, and because it changed."""

    key: int
    now: float | None
    before: float | None
    mix: float
    within: float

    @property
    def change(self) -> float:
        return self.mix + self.within


def split_change(now: Weighed, now_keys: Integers, before: Weighed, before_keys: Integers) -> list[KeyChange]:
    """The change of a mean over keys; `mix` and `within` of all keys add up to it exactly.

    With w and v the share of the count and the mean of a key, V0 the mean before: a key of both adds (w1 - w0)(v0 - V0) by mix and
    w1 (v1 - v0) within; one that is new w1 (v1 - V0), one that is gone -w0 (v0 - V0), both by mix.
    """
    start = before.value
    if start is None or not now.total:
        return []
    found = []
    keys = np.union1d(now_keys, before_keys)
    shares_now, means_now = _by_key(now, np.searchsorted(keys, now_keys), len(keys))
    shares_before, means_before = _by_key(before, np.searchsorted(keys, before_keys), len(keys))
    for key, w1, v1, w0, v0 in zip(keys.tolist(), shares_now, means_now, shares_before, means_before, strict=True):
        if w1 and w0:
            mix, within = (w1 - w0) * (v0 - start), w1 * (v1 - v0)
        else:
            mix, within = (w1 * (v1 - start) if w1 else -w0 * (v0 - start)), 0.0
        found.append(KeyChange(key, v1 if w1 else None, v0 if w0 else None, mix, within))
    return found


def _by_key(of: Weighed, places: Integers, size: int) -> tuple[list[float], list[float]]:
    """Share of the count and mean of each key; 0 for one that is not there."""
    counts = np.bincount(places, weights=of.counts, minlength=size)
    sums = np.bincount(places, weights=of.sums, minlength=size)
    return (counts / of.total).tolist(), (sums / np.maximum(counts, 1e-300)).tolist()
