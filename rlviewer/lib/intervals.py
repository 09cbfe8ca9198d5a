"""Intervals of shares."""

import math
from collections.abc import Sequence

Z_95 = 1.959964


def wilson(hits: int, n: int) -> tuple[float, float] | None:
    """The 95 % interval of a share of `hits` in `n` independent draws; None without a draw.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference", eq. 3.
    """
    if n == 0:
        return None
    share, z2 = hits / n, Z_95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    # The ends are exact: rounding must not leave 0 or 1 outside.
    return (0.0 if hits == 0 else middle - half), (1.0 if hits == n else middle + half)


def t_interval(values: Sequence[float], *, is_share: bool = False) -> tuple[float, float] | None:
    """The 95 % interval of the mean of independent repeats, by Student's t; None for fewer than two.

    Of a share it is cut at 0 and 1: none lies outside, though the interval of few repeats may.
    """
    if len(values) < 2:
        return None
    # Loads scipy, which a page without repeats does without.
    from scipy.special import stdtrit

    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = float(stdtrit(len(values) - 1, 0.975)) * math.sqrt(variance / len(values))
    low, high = mean - half, mean + half
    return (max(low, 0.0), min(high, 1.0)) if is_share else (low, high)
