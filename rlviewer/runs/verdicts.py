"""A word for a number: fine, watch or broken, each with the rule it follows. Rules of thumb, so the page shows the rule."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean


class Word(StrEnum):
    FINE = "fine"
    WATCH = "watch"
    BROKEN = "broken"
    UNKNOWN = ""  # too little is stored to say


@dataclass(frozen=True, slots=True)
class Verdict:
    word: Word
    rule: str


# A trend needs this many points at each end.
ENDS = 5


def judged(values: Sequence[float], rule: str, judge: Callable[[Sequence[float]], Word]) -> Verdict:
    """The word of `judge` for the finite values; a newest value that is not finite is broken whatever the rule."""
    if not values:
        return Verdict(Word.UNKNOWN, rule)
    if not math.isfinite(values[-1]):
        return Verdict(Word.BROKEN, f"The newest value is {values[-1]}. {rule}")
    return Verdict(judge([value for value in values if math.isfinite(value)]), rule)


def below(values: Sequence[float], *, fine: float, watch: float, of: str) -> Verdict:
    """Of the mean of the newest values: small is fine."""

    def judge(finite: Sequence[float]) -> Word:
        mean = fmean(finite[-ENDS:])
        return Word.FINE if mean < fine else Word.WATCH if mean < watch else Word.BROKEN

    rule = f"Mean of the newest {ENDS} steps: fine below {fine:g} {of}, watch below {watch:g}, else broken."
    return judged(values, rule, judge)


def pass_change(values: Sequence[float]) -> Verdict:
    """Held-out pass@1: the newest evaluation against the base model."""
    rule = "Newest evaluation against the base model: fine above +0.02, watch down to -0.05, else broken."

    def judge(finite: Sequence[float]) -> Word:
        if len(finite) < 2:
            return Word.UNKNOWN
        change = finite[-1] - finite[0]
        return Word.FINE if change > 0.02 else Word.WATCH if change >= -0.05 else Word.BROKEN

    return judged(values, rule, judge)


def reward_trend(values: Sequence[float]) -> Verdict:
    """Mean reward: the newest steps against the first ones."""
    rule = (
        f"Mean of the newest {ENDS} steps against the first {ENDS}, in spreads of the first: fine when higher, "
        "watch when less than one spread lower, else broken."
    )

    def judge(finite: Sequence[float]) -> Word:
        if len(finite) < 2 * ENDS:
            return Word.UNKNOWN
        first, newest = finite[:ENDS], finite[-ENDS:]
        change, spread = fmean(newest) - fmean(first), max(first) - min(first)
        return Word.FINE if change > 0 else Word.WATCH if change >= -spread else Word.BROKEN

    return judged(values, rule, judge)


def entropy_kept(values: Sequence[float]) -> Verdict:
    """Entropy: how much of the first steps' is left."""
    rule = (
        f"Mean of the newest {ENDS} steps as a share of the first {ENDS}: fine between 0.4 and 2, watch between 0.1 and 4, "
        "else broken."
    )

    def judge(finite: Sequence[float]) -> Word:
        if len(finite) < 2 * ENDS or fmean(finite[:ENDS]) <= 0:
            return Word.UNKNOWN
        kept = fmean(finite[-ENDS:]) / fmean(finite[:ENDS])
        return Word.FINE if 0.4 <= kept <= 2 else Word.WATCH if 0.1 <= kept <= 4 else Word.BROKEN

    return judged(values, rule, judge)
