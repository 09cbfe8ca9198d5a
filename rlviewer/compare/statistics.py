"""Is a difference between two sets of runs real? Pure functions of scores; no database.

The scores of one set lie in an array of runs (seeds) x prompts x samples, NaN where there is none. Both sets are asked the same
prompts, in the same order; a run sees each of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

REPLICATES = 2_000
FLIPS = 10_000
LEVEL = 0.95
POWER = 0.8
# Random numbers drawn in one go: 32 MB of them.
MOST_DRAWS = 4_000_000
MOST_SEEDS = 1_000


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a difference of means: its variance by where it comes from."""

    runs_a: float  # squared standard error from the runs of A; NaN with one run
    runs_b: float
    prompts: float  # prompts and samples
    count_a: int
    count_b: int
    count_prompts: int

    @property
    def knows_runs(self) -> bool:
        return self.count_a > 1 and self.count_b > 1

    @property
    def error(self) -> float:
        """Standard error. Without a second run in both sets it holds prompts and samples alone."""
        return math.sqrt(self.prompts + (self.runs_a + self.runs_b if self.knows_runs else 0.0))

    @property
    def freedom(self) -> float:
        """Degrees of freedom after Satterthwaite 1946, of the sum of independent variances."""
        parts = [(self.prompts, self.count_prompts - 1)]
        if self.knows_runs:
            parts += [(self.runs_a, self.count_a - 1), (self.runs_b, self.count_b - 1)]
        below = sum(variance**2 / n for variance, n in parts if n > 0)
        total = sum(variance for variance, _ in parts)
        return total**2 / below if below > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Difference:
    """B minus A, in the scores' own unit."""

    mean_a: float
    mean_b: float
    spread: Spread

    @property
    def gain(self) -> float:
        return self.mean_b - self.mean_a

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        half = float(_t().ppf(0.5 + level / 2, self.spread.freedom)) * self.spread.error
        return self.gain - half, self.gain + half

    @property
    def p_value(self) -> float:
        """Two-sided, of no difference."""
        if self.spread.error == 0:
            return 1.0 if self.gain == 0 else 0.0
        return float(2 * _t().sf(abs(self.gain) / self.spread.error, self.spread.freedom))


class Samples:
    """The scores of one set of runs, (runs, prompts, samples); NaN where a sample is missing.

    Raises:
        ValueError: fewer than two prompts, or a run without a score of some prompt.
    """

    def __init__(self, scores: Floats) -> None:
        self.scores = np.asarray(scores, np.float64)
        if self.scores.ndim != 3 or not self.scores.shape[0] or self.scores.shape[1] < 2:
            raise ValueError(f"scores must be runs x two prompts or more x samples, got the shape {self.scores.shape}")
        self.counts = np.isfinite(self.scores).sum(axis=2)
        if (self.counts == 0).any():
            raise ValueError("a run has no score of some prompt; compare the prompts that all of them answered")

    @property
    def runs(self) -> int:
        return self.scores.shape[0]

    @cached_property
    def by_prompt(self) -> Floats:
        """Mean score of each run on each prompt."""
        return np.nansum(self.scores, axis=2) / self.counts

    @cached_property
    def by_run(self) -> Floats:
        return self.by_prompt.mean(axis=1)

    @property
    def mean(self) -> float:
        return float(self.by_run.mean())

    @cached_property
    def is_binary(self) -> bool:
        known = self.scores[np.isfinite(self.scores)]
        return bool(np.isin(known, (0.0, 1.0)).all())

    def resampled(self, generator: np.random.Generator, replicates: int) -> Floats:
        """Means by prompt with the samples of every prompt drawn again: (replicates, runs, prompts)."""
        shape = (replicates, *self.by_prompt.shape)
        if self.is_binary:
            return generator.binomial(self.counts, self.by_prompt, shape) / self.counts
        order = np.argsort(~np.isfinite(self.scores), axis=2, kind="stable")  # what is known first
        packed = np.take_along_axis(self.scores, order, axis=2)
        means = np.zeros(shape)
        most = int(self.counts.max())
        for place in range(most):
            drawn = (generator.random(shape) * self.counts).astype(np.int64)
            values = np.take_along_axis(packed, drawn.transpose(1, 2, 0), axis=2).transpose(2, 0, 1)
            means += np.where(place < self.counts, values, 0.0)
        return means / self.counts


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Statistics of sets whose runs, prompts and samples were drawn again, one number a replicate."""

    gains: Floats
    middle_a: Floats  # interquartile means
    middle_b: Floats
    improvement: Floats


def bootstrap(a: Samples, b: Samples, *, replicates: int = REPLICATES, seed: int = 0) -> Bootstrap:
    """Hierarchical bootstrap: runs of each set, the prompts for both sets at once, the samples of each run and prompt.

    A set of one run keeps that run in every replicate.
    Source: Davison and Hinkley 1997, section 3.8 (resampling at every level); Agarwal et al. 2021 (interquartile mean,
    probability of improvement).
    """
    generator = np.random.default_rng(seed)
    found: list[tuple[Floats, ...]] = []
    done, step = 0, max(1, MOST_DRAWS // (max(a.runs, b.runs) * a.by_prompt.shape[1]))
    while done < replicates:
        n = min(step, replicates - done)
        prompts = generator.integers(a.by_prompt.shape[1], size=(n, 1, a.by_prompt.shape[1]))
        drawn = []
        for of in (a, b):
            runs = generator.integers(of.runs, size=(n, of.runs, 1))
            scores = of.resampled(generator, n)
            scores = np.take_along_axis(scores, np.broadcast_to(runs, scores.shape), axis=1)
            drawn.append(np.take_along_axis(scores, np.broadcast_to(prompts, scores.shape), axis=2))
        means = [scores.mean(axis=2) for scores in drawn]
        found.append(
            (
                means[1].mean(axis=1) - means[0].mean(axis=1),
                *(interquartile_mean(scores.reshape(n, -1)) for scores in drawn),
                _improvement(means[0], means[1]),
            )
        )
        done += n
    return Bootstrap(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def interquartile_mean(values: Floats) -> Floats:
    """Mean of the middle half of each row: a quarter of the values is cut at each end, rounded down. (rows, n) -> (rows)."""
    cut = values.shape[-1] // 4
    ordered = np.sort(values, axis=-1)
    return np.asarray(ordered[..., cut : values.shape[-1] - cut].mean(axis=-1), np.float64)


def probability_of_improvement(a: Samples, b: Samples) -> float:
    """How often a run of B beats one of A; equal ones count half. The Mann-Whitney U over the number of pairs."""
    return float(_improvement(a.by_run[None], b.by_run[None])[0])


def _improvement(a: Floats, b: Floats) -> Floats:
    pairs = np.sign(b[:, :, None] - a[:, None, :])
    return np.asarray((pairs.mean(axis=(1, 2)) + 1) / 2, np.float64)


def difference(a: Samples, b: Samples) -> Difference:
    """Means of both sets, and the variance of their difference by source.

    Prompts (and the samples of each): the variance of the per-prompt differences of these runs, over the number of prompts.
    Runs: the unbiased variance of the runs' means over their number, since a bootstrap of S runs finds only (S - 1) / S of it
    and is too sure with few. The noise of samples is in both, which errs on the safe side.
    """
    gains = b.by_prompt.mean(axis=0) - a.by_prompt.mean(axis=0)
    prompts = float(gains.var(ddof=1) / len(gains))
    return Difference(
        a.mean, b.mean, Spread(_error2(a.by_run), _error2(b.by_run), prompts, a.runs, b.runs, a.by_prompt.shape[1])
    )


def _error2(values: Floats) -> float:
    return float(values.var(ddof=1) / len(values)) if len(values) > 1 else math.nan


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Sign-flip permutation test of per-prompt differences, for these runs as they were trained."""

    prompts: int
    better: int  # prompts on which B is better
    worse: int
    p_value: float
    flips: int
    is_exact: bool


def paired_test(a: Samples, b: Samples, *, seed: int = 0) -> PairedTest:
    """Each prompt's difference could as well have had the other sign if both sets were equal.

    Source: Fisher 1935; with drawn flips one is added to both counts (Phipson and Smyth 2010).
    """
    gains = b.by_prompt.mean(axis=0) - a.by_prompt.mean(axis=0)
    told = gains[gains != 0]
    observed = abs(gains.sum()) * (1 - 1e-12)
    if len(told) <= 13:
        signs = 1 - 2 * ((np.arange(2 ** len(told))[:, None] >> np.arange(len(told))) & 1)
        p_value, flips, is_exact = float((abs(signs @ told) >= observed).mean()), len(signs), True
    else:
        generator, hits = np.random.default_rng(seed), 0
        for _ in range(10):
            signs = generator.integers(0, 2, (FLIPS // 10, len(told)), dtype=np.int8) * 2 - 1
            hits += int((abs(signs @ told) >= observed).sum())
        p_value, flips, is_exact = (hits + 1) / (FLIPS + 1), FLIPS, False
    return PairedTest(len(gains), int((gains > 0).sum()), int((gains < 0).sum()), p_value, flips, is_exact)


def detectable(spread: Spread, runs: int) -> float | None:
    """Smallest true difference that `runs` runs a side would find in 80 of 100 such comparisons; None where it is unknown.

    Two-sided test at 5 %, noncentral t. The runs vary as those seen; the prompts stay the same.
    """
    if not spread.knows_runs or runs < 2:
        return None
    from scipy import optimize

    planned = Spread(
        spread.runs_a * spread.count_a / runs,
        spread.runs_b * spread.count_b / runs,
        spread.prompts,
        runs,
        runs,
        spread.count_prompts,
    )
    if planned.error == 0:
        return 0.0
    edge = float(_t().ppf(0.5 + LEVEL / 2, planned.freedom))
    found = optimize.brentq(lambda effect: _power(effect, edge, planned.freedom) - POWER, 0.0, 3 * edge + 3)
    return float(found) * planned.error


def runs_needed(spread: Spread, gain: float) -> int | None:
    """Runs a side with which a difference as large as `gain` would be found; None when no number of them would."""
    low, high = 2, MOST_SEEDS
    if not spread.knows_runs or gain == 0 or (detectable(spread, high) or 0.0) > abs(gain):
        return None
    while low < high:
        middle = (low + high) // 2
        if (detectable(spread, middle) or 0.0) <= abs(gain):
            high = middle
        else:
            low = middle + 1
    return low


def _power(effect: float, edge: float, freedom: float) -> float:
    """Of a two-sided t test that rejects beyond `edge`, the effect in standard errors. The wrong side counts too, while it can."""
    from scipy import stats

    if freedom > 1e6:
        return float(stats.norm.sf(edge - effect) + stats.norm.cdf(-edge - effect))
    wrong = stats.nct.cdf(-edge, freedom, effect) if effect < 3 else 0.0
    return float(stats.nct.sf(edge, freedom, effect) + wrong)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for the number of comparisons, in their own order. Source: Holm 1979."""
    order = np.argsort(p_values, kind="stable")
    corrected, running = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order.tolist()):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = running
    return corrected


@dataclass(frozen=True, slots=True)
class Slope:
    """Change of a curve per 100 steps over its last part, and its 95 % interval."""

    per_100: float
    low: float
    high: float
    runs: int

    @property
    def still_moves(self) -> bool:
        return self.low > 0 or self.high < 0


def slope(curves: Sequence[tuple[Floats, Floats]]) -> Slope | None:
    """Is the curve still moving? Slopes of the last third of (steps, values), one curve a run.

    From two runs on a t interval over their slopes; of one run the interval of Theil and Sen, which takes its steps for
    independent. None without 10 finite points in a run.
    """
    from scipy import stats

    parts = []
    for steps, values in curves:
        known = np.isfinite(values)
        steps, values = steps[known], values[known]
        start = len(steps) - max(10, len(steps) // 3)
        if start < 0:
            continue
        parts.append((steps[start:], values[start:]))
    if not parts:
        return None
    if len(parts) == 1:
        found = stats.theilslopes(parts[0][1], parts[0][0], LEVEL)
        return Slope(100 * float(found.slope), 100 * float(found.low_slope), 100 * float(found.high_slope), 1)
    slopes = np.array([np.polyfit(steps, values, 1)[0] for steps, values in parts])
    half = float(_t().ppf(0.5 + LEVEL / 2, len(slopes) - 1)) * slopes.std(ddof=1) / math.sqrt(len(slopes))
    mean = float(slopes.mean())
    return Slope(100 * mean, 100 * (mean - half), 100 * (mean + half), len(slopes))


def _t() -> Any:
    from scipy import stats  # 60 MB that only these pages need

    return stats.t
