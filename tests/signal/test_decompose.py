"""Splits of a mean and of its change, on numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlviewer.signal.decompose import concentration, contributions, split_change, weighed


def test_what_each_adds_to_a_mean_and_to_its_change() -> None:
    now = weighed(np.array([1.0, 4.0, np.nan]), np.array([1.0, 4.0, 7.0]))
    assert now.value == 1
    assert contributions(now).tolist() == [0.2, 0.8, 0.0]
    # Against a mean of 0.5: (1 - 0.5) / 5 and (4 - 2) / 5.
    assert contributions(now, 0.5) == pytest.approx([0.1, 0.4, 0.0])


def test_how_few_make_most() -> None:
    found = concentration(np.array([8.0, -1.0, 0.5, 0.5] + [0.0] * 16))
    assert found is not None
    assert (found.count, found.most, found.is_even) == (20, 1, False)
    assert found.top_tenth == pytest.approx(0.9)
    even = concentration(np.ones(50))
    assert even is not None
    assert (even.most, even.is_even) == (40, True)
    assert even.top_tenth == pytest.approx(0.1)
    assert concentration(np.zeros(3)) is None


def test_mix_is_apart_from_within() -> None:
    # Before: half of the rollouts on key 1 (mean 0), half on key 2 (mean 1). Now: a quarter on 1 (mean 0), the rest on 2 (mean 1).
    before = weighed(np.array([0.0, 1.0]), np.ones(2))
    now = weighed(np.array([0.0, 1.0, 1.0, 1.0]), np.ones(4))
    one, two = split_change(now, np.array([1, 2, 2, 2]), before, np.array([1, 2]))
    assert (one.mix, one.within) == pytest.approx((0.125, 0))
    assert (two.mix, two.within) == pytest.approx((0.125, 0))
    # The same keys as often, but key 1 got better.
    one, two = split_change(weighed(np.array([0.5, 1.0]), np.ones(2)), np.array([1, 2]), before, np.array([1, 2]))
    assert (one.mix, one.within) == pytest.approx((0, 0.25))


def test_a_new_key_and_one_that_is_gone_are_mix() -> None:
    before, now = weighed(np.array([0.0, 1.0]), np.ones(2)), weighed(np.array([2.0, 1.0]), np.ones(2))
    gone, same, new = split_change(now, np.array([3, 2]), before, np.array([1, 2]))
    assert (gone.now, gone.mix) == (None, pytest.approx(0.25))
    assert (new.before, new.mix) == (None, pytest.approx(0.75))
    assert same.change == pytest.approx(0)


numbers = st.floats(-5, 5)
rows = st.lists(st.tuples(numbers, st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=12)


@given(rows, rows)
def test_every_split_adds_up(first: list[tuple[float, int, int]], second: list[tuple[float, int, int]]) -> None:
    before, now = (
        weighed(np.array([r[0] for r in each]), np.array([float(r[1]) for r in each])) for each in (first, second)
    )
    change = (now.value or 0) - (before.value or 0)
    assert contributions(now, before.value).sum() == pytest.approx(change, abs=1e-9)
    keys = split_change(now, np.array([r[2] for r in second]), before, np.array([r[2] for r in first]))
    assert sum(key.change for key in keys) == pytest.approx(change, abs=1e-9)
