"""Whether a difference is real: each number against a hand computation or scipy, and the intervals against simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from rlviewer.compare.statistics import (
    Samples,
    bootstrap,
    detectable,
    difference,
    holm,
    interquartile_mean,
    paired_test,
    probability_of_improvement,
    runs_needed,
    slope,
)


def arm(rng: np.random.Generator, base: np.ndarray, runs: int, gain: float = 0.0, spread: float = 0.04) -> Samples:
    """Runs whose ability varies by seed, on prompts of given difficulty, four samples each."""
    shift = gain + rng.normal(0, spread, (runs, 1)) + rng.normal(0, 0.05, (runs, len(base)))
    return Samples(rng.random((runs, len(base), 4)) < np.clip(base + shift, 0, 1)[:, :, None])


def test_means_and_variances_by_hand() -> None:
    a = Samples(np.array([[[0.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, 0.0]]]))  # by prompt .5 1 | 0 .5
    b = Samples(np.array([[[1.0, 1.0], [1.0, np.nan]], [[1.0, 0.0], [1.0, 1.0]]]))  # 1 1 | .5 1
    found = difference(a, b)
    assert (found.mean_a, found.mean_b, found.gain) == (0.5, 0.875, 0.375)
    # Runs of A: .75 and .25, so a variance of .125 over 2; of B: 1 and .75. Prompts: gains .5 and .25, variance .03125 over 2.
    assert found.spread.runs_a == pytest.approx(0.0625)
    assert found.spread.runs_b == pytest.approx(0.015625)
    assert found.spread.prompts == pytest.approx(0.015625)
    assert found.spread.error == pytest.approx(math.sqrt(0.09375))


def test_without_noise_of_prompts_it_is_welchs_t_test() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.4, 0.1, 5), rng.normal(0.5, 0.05, 4)
    # Every prompt says the same of a run.
    a, b = (Samples(np.repeat(values[:, None, None], 3, axis=1)) for values in (first, second))
    found, welch = difference(a, b), stats.ttest_ind(second, first, equal_var=False)
    assert found.p_value == pytest.approx(welch.pvalue)
    interval = welch.confidence_interval(0.95)
    assert found.interval() == pytest.approx((interval.low, interval.high))
    assert found.spread.freedom == pytest.approx(welch.df)


def test_one_run_leaves_prompts_alone() -> None:
    rng = np.random.default_rng(1)
    a, b = (Samples(rng.random((1, 20, 2))) for _ in range(2))
    found, paired = difference(a, b), stats.ttest_rel(b.by_prompt[0], a.by_prompt[0])
    assert not found.spread.knows_runs
    assert found.p_value == pytest.approx(paired.pvalue)
    assert detectable(found.spread, 5) is None
    assert runs_needed(found.spread, 0.1) is None


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_the_interval_holds_the_truth_as_often_as_it_says(runs: int) -> None:
    rng = np.random.default_rng(runs)
    base, hits, games = rng.beta(1, 1.5, 64), 0, 300
    for _ in range(games):
        low, high = difference(arm(rng, base, runs), arm(rng, base, runs)).interval()
        hits += low <= 0 <= high
    assert hits / games >= 0.92  # 0.95 less three standard errors of 300 games


def test_the_detectable_difference_is_found_four_times_in_five() -> None:
    rng = np.random.default_rng(7)
    runs = 4

    def flat(mean: float) -> Samples:
        return Samples(np.repeat(rng.normal(mean, 0.1, runs)[:, None, None], 2, axis=1))

    plan = difference(flat(0.5), flat(0.5)).spread
    least = detectable(plan, runs)
    assert least is not None
    scale = math.sqrt((plan.runs_a + plan.runs_b) / (2 * 0.01 / runs))  # the truth in units of the plan's luck
    found = [difference(flat(0.0), flat(least / scale)).p_value < 0.05 for _ in range(600)]
    assert 0.7 < np.mean(found) < 0.9
    assert detectable(plan, 3) > least > detectable(plan, 10)  # type: ignore[operator]
    needed = runs_needed(plan, least)
    assert needed == runs
    assert runs_needed(plan, 0.0) is None


def test_the_sign_flip_test_is_scipys() -> None:
    rng = np.random.default_rng(2)
    a, b = (Samples(rng.random((2, 10, 3))) for _ in range(2))
    gains = b.by_prompt.mean(axis=0) - a.by_prompt.mean(axis=0)
    exact = stats.permutation_test((gains,), np.mean, permutation_type="samples", n_resamples=np.inf)
    found = paired_test(a, b)
    assert found.is_exact
    assert found.p_value == pytest.approx(exact.pvalue)
    assert (found.better, found.worse) == (int((gains > 0).sum()), int((gains < 0).sum()))
    many = paired_test(*(Samples(rng.random((2, 60, 3)) + shift) for shift in (0.0, 0.3)))
    assert not many.is_exact
    assert many.p_value == pytest.approx(1 / 10_001)
    same = paired_test(a, a)
    assert (same.p_value, same.better, same.worse) == (1.0, 0, 0)


def test_the_bootstrap_errs_on_the_wide_side_and_keeps_a_single_run() -> None:
    rng = np.random.default_rng(3)
    base = rng.beta(1, 1.5, 128)
    a, b = arm(rng, base, 8), arm(rng, base, 8, gain=0.1)
    found, drawn = difference(a, b), bootstrap(a, b)
    assert drawn.gains.mean() == pytest.approx(found.gain, abs=0.005)
    # Every level brings the noise of the one below it in again.
    assert found.spread.error < drawn.gains.std() < 1.5 * found.spread.error
    assert np.array_equal(bootstrap(a, b).gains, drawn.gains)  # the same at every look
    rewards = Samples(np.where(rng.random((2, 10, 4)) < 0.2, np.nan, rng.normal(size=(2, 10, 4))))
    assert np.isfinite(bootstrap(rewards, rewards).gains).all()
    alone = Samples(np.ones((1, 5, 2)))
    assert set(bootstrap(alone, alone).gains) == {0.0}


def test_interquartile_mean_and_improvement() -> None:
    values = np.random.default_rng(4).random((3, 17))
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25, axis=1))
    first, second = [0.1, 0.4, 0.4], [0.4, 0.5]
    a, b = (Samples(np.repeat(np.array(runs)[:, None, None], 2, axis=1)) for runs in (first, second))
    u = stats.mannwhitneyu(second, first).statistic
    assert probability_of_improvement(a, b) == pytest.approx(u / 6) == pytest.approx(5 / 6)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_slopes() -> None:
    steps = np.arange(60.0)
    rising = (steps, 0.01 * steps)
    alone = slope([rising])
    assert alone is not None
    assert (alone.per_100, alone.runs, alone.still_moves) == (pytest.approx(1.0), 1, True)
    rng = np.random.default_rng(5)
    flat = slope([(steps, rng.normal(size=60)) for _ in range(4)])
    assert flat is not None
    assert not flat.still_moves
    assert slope([(steps[:5], steps[:5])]) is None


def test_scores_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match="two prompts"):
        Samples(np.ones((1, 1, 4)))
    with pytest.raises(ValueError, match="no score of some prompt"):
        Samples(np.array([[[np.nan], [1.0]]]))
