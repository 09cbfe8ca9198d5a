import math

from hypothesis import given
from hypothesis import strategies as st

from rlviewer.charts.thinning import thin

NAN = float("nan")


def test_a_short_series_is_untouched() -> None:
    assert thin([0, 2, 4], [1.0, NAN, 3.0], limit=3)[0] == [0, 2, 4]


def test_each_bucket_keeps_ends_extremes_and_its_first_gap() -> None:
    #          0    1    2    3    4    5    6    7    8    9
    values = [0.0, 1.0, 9.0, NAN, NAN, 2.0, 2.0, -7.0, 2.0, 2.0]
    steps, kept = thin(range(10), values, limit=8)  # two buckets: 0-4 and 5-9
    assert steps == [0, 2, 3, 4, 5, 7, 9]
    assert kept[1] == 9.0 and kept[5] == -7.0 and math.isnan(kept[2])


def test_a_bucket_without_a_finite_value_stays_a_gap() -> None:
    steps, kept = thin(range(8), [NAN] * 4 + [1.0] * 4, limit=7)
    assert len(steps) == len(kept) and math.isnan(kept[0]) and kept[-1] == 1.0


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=400), st.integers(8, 100))
def test_extremes_ends_and_order_survive(values: list[float], limit: int) -> None:
    steps, kept = thin(range(len(values)), values, limit=limit)
    assert (min(kept), max(kept)) == (min(values), max(values))
    assert (steps[0], steps[-1]) == (0, len(values) - 1)
    assert steps == sorted(set(steps)) and [values[i] for i in steps] == kept
    assert len(steps) <= max(limit, 5)
