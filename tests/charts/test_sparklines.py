"""Sparklines keep extremes and gaps."""

import math

from rlviewer.charts import sparklines


def test_lowest_at_the_bottom_highest_at_the_top() -> None:
    assert sparklines.path([0.0, 1.0]) == "M2.0,22.0h0L94.0,2.0"


def test_a_missing_value_is_a_gap_and_a_lone_point_is_a_dot() -> None:
    assert sparklines.path([0.0, math.nan, 1.0]) == "M2.0,22.0h0M94.0,2.0h0"


def test_nothing_finite_draws_nothing() -> None:
    assert sparklines.path([math.nan, math.inf]) == ""


def test_a_spike_of_one_step_survives_thinning() -> None:
    values = [0.0] * 10_000
    values[5_001] = 1.0
    assert sparklines.path(values).count(",2.0") == 1
