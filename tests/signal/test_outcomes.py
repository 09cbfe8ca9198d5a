"""Best of k, pass@k, reward slices and length bins, each worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlviewer.signal.measures.outcomes import (
    LENGTH_BINS,
    MOST_REWARDS,
    best_of,
    length_edge,
    length_histogram,
    pass_at,
    powers,
    reward_slices,
)
from rlviewer.signal.queries.gains import gini
from rlviewer.signal.queries.passes import interval, pass_at_k


def test_best_of_two_of_three() -> None:
    # Pairs of (0, 1, 4): (0, 1) gives 1, (0, 4) and (1, 4) give 4.
    assert best_of(np.array([4.0, 0.0, 1.0])) == pytest.approx([5 / 3, 3.0])


def test_pass_at_two_of_four_with_one_right() -> None:
    # 3 of the 6 pairs hold the right one; all four always do.
    assert pass_at(4, 1) == pytest.approx([0.25, 0.5, 1.0])
    found = pass_at_k(np.array([4, 4, 1]), np.array([1, 0, 1]), 2)
    assert found[:2] == pytest.approx([0.5, 0.0])
    assert math.isnan(found[2])


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=16))
def test_of_zeros_and_ones_the_best_is_the_pass(rewards: list[float]) -> None:
    assert best_of(np.array(rewards)) == pytest.approx(pass_at(len(rewards), int(sum(rewards))))


def test_powers_stop_at_the_size() -> None:
    assert [powers(n) for n in (0, 1, 2, 7, 8)] == [[], [1], [1, 2], [1, 2, 4], [1, 2, 4, 8]]


def test_few_rewards_are_kept_and_many_are_sliced() -> None:
    values, counts = reward_slices(np.array([1.0, 0.0, 1.0]))
    assert (values.tolist(), counts.tolist()) == ([0.0, 1.0], [1, 2])
    many = np.arange(1000, dtype=float)
    values, counts = reward_slices(many)
    assert len(values) == MOST_REWARDS and counts.sum() == 1000
    assert (values @ counts) / 1000 == pytest.approx(many.mean())


def test_lengths_fall_into_bins_that_double_every_second() -> None:
    lengths = np.array([0, 1, 2, 3, 4, 5, 2**21])
    bins = length_histogram(lengths, np.array([True] * 6 + [False]))
    assert sum(bins) == 6 and len(bins) == LENGTH_BINS
    edges = [length_edge(place) for place in range(LENGTH_BINS)]
    assert edges[::2][:4] == [1, 2, 4, 8]
    for length in range(1, 300):
        (place,) = np.flatnonzero(length_histogram(np.array([length]), np.array([True])))
        assert edges[place] <= length < edges[place + 1]


def test_gini_of_one_winner_and_of_equals() -> None:
    assert gini(np.array([0.0, 0.0, 0.0, 1.0])) == pytest.approx(0.75)
    assert gini(np.array([0.5, 0.5])) == pytest.approx(0.0)
    assert gini(np.array([-1.0, 0.0])) is None


def test_the_interval_is_the_same_each_time_and_holds_the_mean() -> None:
    values = np.array([0.0, 1.0] * 50)
    low, high = interval(values)
    assert (low, high) == interval(values)
    assert low < 0.5 < high and high - low == pytest.approx(2 * 1.96 * 0.05, rel=0.15)
