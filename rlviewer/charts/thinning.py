"""Fewer points without losing what matters: every extreme stays, a gap stays, and the same input gives the same picture."""

import math
from collections.abc import Sequence

import numpy as np
from tsdownsample import MinMaxDownsampler, MinMaxLTTBDownsampler

LIMIT = 2000


def kept(steps: Sequence[int], values: Sequence[float | None], *, limit: int = LIMIT) -> list[int]:
    """Places of about `limit` points that draw the same picture: all of them when there are no more.

    MinMaxLTTB chooses half of them for the shape. It may pass over a spike, so the smallest and the largest of every bucket
    come beside it. Between two of them that something not finite parts, its first point stays as the gap.
    """
    count = len(steps)
    if count <= limit:
        return list(range(count))
    numbers = np.asarray(values, dtype=np.float64)
    finite = np.flatnonzero(np.isfinite(numbers))
    chosen = _chosen(np.asarray(steps, dtype=np.int64)[finite], numbers[finite], limit // 2)
    places = {0, count - 1, *finite[chosen].tolist()}
    gaps = np.flatnonzero(~np.isfinite(numbers))
    after = np.searchsorted(gaps, sorted(places))
    return sorted(places | {int(gaps[at]) for at in after if at < len(gaps)})


def _chosen(steps: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    half = max(4, count - count % 2)
    if len(steps) <= 2 * half:
        return np.arange(len(steps))
    shape = MinMaxLTTBDownsampler().downsample(steps, values, n_out=half)
    extremes = MinMaxDownsampler().downsample(values, n_out=half)
    return np.union1d(shape, extremes)


def thin(steps: Sequence[int], values: Sequence[float], *, limit: int = LIMIT) -> tuple[list[int], list[float]]:
    """Steps and values at the places that are kept."""
    places = kept(steps, values, limit=limit)
    return [steps[i] for i in places], [values[i] for i in places]


def finite_or_none(values: Sequence[float | None]) -> list[float | None]:
    """The values, None where one is missing or not finite: JSON and plotly have no other gap."""
    return [value if value is not None and math.isfinite(value) else None for value in values]
