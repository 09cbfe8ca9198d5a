import math

import pytest

from tests.training.golden import CASES
from training.voting import (
    bump,
    confident_rewards,
    label_weights,
    majority,
    majority_rewards,
    vote_metrics,
)


def test_the_majority_is_the_label_as_in_the_worked_example() -> None:
    case = CASES["adv.ttrl"]
    answers = case["inputs"]["answers"]
    assert majority(answers) == case["expected"]["label"]
    assert majority_rewards(answers) == case["expected"]["rewards"]


def test_a_tie_goes_to_the_answer_seen_first() -> None:
    assert majority(["7", "4", "4", "7"]) == "7"
    assert majority_rewards(["7", "4", "4", "7"]) == [1, 0, 0, 1]


def test_unreadable_answers_neither_vote_nor_earn() -> None:
    assert majority([None, None, "4"]) == "4"
    assert majority_rewards([None, None, "4"]) == [0, 0, 1]
    assert majority([None, None]) is None
    assert majority_rewards([None, None]) == [0, 0]


def test_a_unanimous_group_has_equal_rewards() -> None:
    assert majority_rewards(["4", "4"]) == [1, 1]


ANSWERS = ["a", "a", "a", "b", "c"]


def test_confident_votes_as_in_the_worked_example() -> None:
    expected = CASES["adv.dare"]["expected"]
    # Three completions of a with mean 0.2, one each of b and c.
    entropies = [0.1, 0.2, 0.3, 0.5, 0.9]
    plain = confident_rewards(ANSWERS, entropies, bonus=0.0, prune_below=0.0)
    assert plain[2:] == pytest.approx(expected["p"])
    rewards = confident_rewards(ANSWERS, entropies, bonus=0.1, prune_below=0.0)
    assert rewards == pytest.approx([*[expected["reward_a0.1"][0]] * 3, *expected["reward_a0.1"][1:]])


def test_rare_answers_are_dropped_and_the_rest_counted_again() -> None:
    # c has 0.0613 of the votes; without it M is 4, a has 15/17 of the votes and b 2/17.
    rewards = confident_rewards(ANSWERS, [0.2, 0.2, 0.2, 0.5, 0.9], bonus=0.1, prune_below=0.1, eps=0.0)
    of_a, of_b = 15 / 17 + 0.1 * (1 - 3 / 4) * 0.8, 2 / 17 + 0.1 * (1 - 1 / 4) * 0.5
    assert rewards == pytest.approx([of_a, of_a, of_a, of_b, 0.0])


def test_the_last_answer_is_never_dropped() -> None:
    assert confident_rewards(["a", "b", "b"], [0.5, 0.5, 0.5], bonus=0.0, prune_below=0.9) == [0.0, 1.0, 1.0]


def test_an_answer_less_sure_than_a_nat_has_no_bonus() -> None:
    rewards = confident_rewards(["a", "b"], [2.0, 2.0], bonus=0.5, prune_below=0.0)
    assert rewards == pytest.approx([0.5, 0.5])


def test_unreadable_answers_earn_nothing_from_confidence() -> None:
    assert confident_rewards([None, "a"], [0.1, 0.1], bonus=0.1, prune_below=0.0) == pytest.approx([0.0, 1.0])
    assert confident_rewards([None], [0.1], bonus=0.1, prune_below=0.5) == [0.0]


def test_label_weights_follow_the_bump_of_the_share() -> None:
    # Shares 3/4 and 1/4 of four completions, centre 1, width 0.5.
    first, second = math.exp(-((0.25 / 0.5) ** 2) / 2), math.exp(-((0.75 / 0.5) ** 2) / 2)
    assert bump(0.75, centre=1.0, width=0.5) == pytest.approx(first)
    weights = label_weights([3, 1], 4, centre=1.0, width=0.5)
    assert weights == pytest.approx([first / (first + second), second / (first + second)])
    assert label_weights([], 4, centre=1.0, width=0.5) == []


def test_metrics_say_how_united_and_how_right_the_votes_are() -> None:
    groups: list[tuple[list[str | None], list[bool]]] = [
        (["4", "4", "7", None], [True, True, False, False]),
        (["1", "2"], [False, True]),
        ([None], [False]),
    ]
    # Shares 1/2, 1/2 and 0; only the first label is right.
    assert vote_metrics(groups) == pytest.approx({"vote_share": 1 / 3, "label_accuracy": 1 / 3})
