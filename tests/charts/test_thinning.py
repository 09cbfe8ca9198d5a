import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlviewer.charts.thinning import thin

NAN = float("nan")


def test_a_short_series_is_untouched() -> None:
    assert thin([0, 2, 4], [1.0, NAN, 3.0], limit=3)[0] == [0, 2, 4]


def test_spikes_of_one_step_survive_in_both_directions() -> None:
    values = np.random.default_rng(0).normal(size=50_000)
    values[31_234], values[7] = 40.0, -35.0
    steps, kept = thin(range(50_000), values.tolist())
    assert {7, 31_234} <= set(steps) and (min(kept), max(kept)) == (-35.0, 40.0)
    assert len(steps) <= 2002


def test_every_bucket_keeps_its_smallest_and_largest() -> None:
    values = np.random.default_rng(1).normal(size=8_000)
    steps, _ = thin(range(8_000), values.tolist(), limit=800)
    for bucket in np.split(values, 200):  # half of 800 points, two of each bucket
        assert {bucket.min(), bucket.max()} <= {values[step] for step in steps}


def test_a_gap_stays_between_what_it_parts() -> None:
    values = [float(i % 7) for i in range(10_000)]
    values[5_000] = NAN
    steps, kept = thin(range(10_000), values, limit=100)
    assert math.isnan(kept[steps.index(5_000)])


def test_a_stretch_without_a_finite_value_is_one_gap() -> None:
    steps, kept = thin(range(1_000), [1.0] + [NAN] * 998 + [2.0], limit=50)
    assert (steps, [math.isnan(value) for value in kept]) == ([0, 1, 999], [False, True, False])
    assert all(math.isnan(value) for value in thin(range(1_000), [NAN] * 1_000, limit=50)[1])


def test_every_time_the_same_picture() -> None:
    values = np.random.default_rng(2).normal(size=20_000).tolist()
    assert thin(range(20_000), values) == thin(range(20_000), values)


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=400), st.integers(8, 100)
)
def test_extremes_ends_and_order_survive(values: list[float], limit: int) -> None:
    steps, kept = thin(range(len(values)), values, limit=limit)
    assert (min(kept), max(kept)) == (min(values), max(values))
    assert (steps[0], steps[-1]) == (0, len(values) - 1)
    assert steps == sorted(set(steps)) and [values[i] for i in steps] == kept
    assert len(steps) <= limit + 2
