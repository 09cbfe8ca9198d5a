"""How numbers, times and missing values are shown."""

import math
from datetime import timedelta

import pytest
from django.utils import timezone

from rlviewer.runs.templatetags import show


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.0, "0"), (7, "7"), (9999, "9,999"), (12345, "12.3 k"), (0.123456, "0.123"), (1.0, "1.00"),
        (99.96, "100"), (-0.5, "−0.500"), (999_950.0, "1.00 M"), (123_456_789, "123 M"), (1e-7, "1.00e−7"), (1e300, "1.00e300"),
        (math.nan, "NaN"), (math.inf, "∞"), (-math.inf, "−∞"),
    ],
)  # fmt: skip
def test_three_significant_digits(value: float, text: str) -> None:
    assert show.significant(value) == text


def test_the_exact_value_is_kept_for_hover_and_copy() -> None:
    assert 'value="0.30000000000000004" title="0.30000000000000004">0.300<' in show.num(0.1 + 0.2)


def test_missing_is_a_dash_with_its_reason_and_never_zero() -> None:
    for shown in (show.num(None, "no reward"), show.signed(None, "no reward"), show.percent(None, "no reward")):
        assert "—" in shown and 'title="no reward"' in shown and "0" not in shown


def test_signs_have_a_mark_and_a_colour() -> None:
    assert "+0.500" in show.signed(0.5) and "positive" in show.signed(0.5)
    assert "−0.500" in show.signed(-0.5) and "negative" in show.signed(-0.5)
    assert "tive" not in show.signed(0.0)
    assert ">−3.1<" in show.points(-0.031)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0123, "0.0123 s"), (2.0, "2 s"), (2.5, "2.50 s"), (59.7, "1 min"), (3725, "1 h 2 min"), (90061, "1 d 1 h")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert show.duration_words(seconds) == words


def test_ages_carry_the_instant() -> None:
    then = timezone.now() - timedelta(minutes=7, seconds=10)
    assert ">7 min ago<" in show.age(then) and f'datetime="{then.isoformat()}"' in show.age(then)


def test_a_label_of_a_sparkline_cannot_break_out() -> None:
    drawn = show.spark([0.0, 1.0], '"><script>')
    assert "<script>" not in drawn and "style=" not in drawn
    assert "—" in show.spark([None, math.nan], "Reward")
