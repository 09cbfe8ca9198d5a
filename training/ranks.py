"""Whether two lists put things into the same order. Imports no torch."""

from typing import Any

import numpy as np
import numpy.typing as npt

# Advantages that differ by no more are the same: those of tokens are stored in single precision.
SAME = 1e-6


def rank_correlation(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float | None:
    """Spearman's, equal values sharing their ranks; None where one side does not vary or there are fewer than two."""
    if len(first) < 2:
        return None
    ranks = [_ranks(values) for values in (first, second)]
    deviations = [one - one.mean() for one in ranks]
    scale = float(np.sqrt((deviations[0] ** 2).sum() * (deviations[1] ** 2).sum()))
    return float((deviations[0] * deviations[1]).sum() / scale) if scale else None


def _ranks(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    rounded = np.where(np.abs(values) > SAME, values, 0.0).round(9)
    _, place, counts = np.unique(rounded, return_inverse=True, return_counts=True)
    return np.asarray((counts.cumsum() - (counts - 1) / 2)[place])
