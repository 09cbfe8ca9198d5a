import pytest

from rlviewer.runs import verdicts
from rlviewer.runs.verdicts import Word

NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([], Word.UNKNOWN),
        ([0.2], Word.UNKNOWN),
        ([0.2, 0.5], Word.FINE),
        ([0.2, 0.5, 0.21], Word.WATCH),
        ([0.2, 0.16], Word.WATCH),
        ([0.2, 0.1], Word.BROKEN),
        ([0.2, NAN], Word.BROKEN),
        ([NAN, 0.2], Word.UNKNOWN),
    ],
)
def test_pass_is_judged_against_the_base(values: list[float], word: Word) -> None:
    assert verdicts.pass_change(values).word is word


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([0.1] * 9, Word.UNKNOWN),
        ([0.1, 0.2, 0.1, 0.2, 0.1] + [0.5] * 5, Word.FINE),
        ([0.1, 0.2, 0.1, 0.2, 0.1] + [0.08] * 5, Word.WATCH),
        ([0.1, 0.2, 0.1, 0.2, 0.1] + [-0.1] * 5, Word.BROKEN),
    ],
)
def test_reward_is_judged_by_its_trend(values: list[float], word: Word) -> None:
    assert verdicts.reward_trend(values).word is word


@pytest.mark.parametrize(
    ("newest", "word"),
    [(0.5, Word.FINE), (0.3, Word.WATCH), (0.05, Word.BROKEN), (3.0, Word.WATCH), (5.0, Word.BROKEN)],
)
def test_entropy_is_judged_by_what_is_left(newest: float, word: Word) -> None:
    assert verdicts.entropy_kept([1.0] * 5 + [newest] * 5).word is word


@pytest.mark.parametrize(("value", "word"), [(0.1, Word.FINE), (0.3, Word.WATCH), (0.7, Word.BROKEN)])
def test_below_uses_the_newest_values(value: float, word: Word) -> None:
    verdict = verdicts.below([0.99] * 20 + [value] * 5, fine=0.3, watch=0.6, of="of groups")
    assert verdict.word is word
    assert "0.3 of groups" in verdict.rule
