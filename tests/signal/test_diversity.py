"""How rollouts differ, on groups whose numbers can be worked out by hand."""

import math

import numpy as np
import pytest

from rlviewer.signal.measures import diversity as measure
from rlviewer.signal.measures.diversity import Diversity, diversity, entropy, form, mean_similarity, self_bleu
from rlviewer.signal.measures.tokens import tokens_of
from tests.signal.material import material


def found(*rollouts: dict[str, object]) -> Diversity:
    of = material(list(rollouts))
    return diversity(of, tokens_of(of))


def test_semantic_entropy_is_that_of_the_answers() -> None:
    assert entropy([1, 1, 1, 1]) == 0
    assert entropy([1, 1, 2, 2]) == pytest.approx(math.log(2))
    assert entropy(["a", "b", "b", "b"]) == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))
    (group,) = found(
        *[{"token_ids": [n, 2], "parsed_answer": text} for n, text in enumerate(["7", " 7.0", "8", None])]
    ).groups
    assert group.distinct_answers == 2
    assert group.semantic_entropy == pytest.approx(entropy([0, 0, 1]))


def test_forms_put_numbers_and_spaces_aside() -> None:
    assert form(b"12 + 3  = 15") == form(b"1 + 200 = 201\n")
    rows = [{"token_ids": [1], "correct": True, "completion": text} for text in (b"2+2=4", b"1+3=4", b"so 4")]
    assert found(*rows, {"token_ids": [1], "correct": False, "completion": b"x"}).groups[0].distinct_forms == 2


def test_similarity_is_the_mean_over_pairs() -> None:
    one, two, other = np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5]), np.array([7, 8, 9])
    assert mean_similarity([one, one]) == 1
    assert mean_similarity([one, two]) == pytest.approx(1 / 3)
    assert mean_similarity([one, two, other]) == pytest.approx(1 / 9)
    assert mean_similarity([np.array([1]), np.array([2])]) == 1  # too short to tell apart


def test_self_bleu_of_equal_and_of_unlike_texts() -> None:
    text = np.arange(10)
    assert self_bleu([text, text, text]) == pytest.approx(1)
    assert self_bleu([text, text + 100]) == 0
    # One of two tokens is shared; of the one pair none, smoothed: sqrt(1/2 x 1/2).
    assert self_bleu([np.array([1, 2]), np.array([1, 3])]) == pytest.approx(0.5)


def test_a_short_text_is_judged_against_the_nearest_length() -> None:
    short, long = np.array([1]), np.array([1, 1, 1])
    # All of the short one's tokens are in the long one, which costs it exp(1 - 3).
    assert self_bleu([short, long]) == pytest.approx((math.exp(-2) + _of_long()) / 2)


def _of_long() -> float:
    """Of three equal tokens one is matched, of two pairs none and of one triple none, both smoothed by one."""
    return ((1 / 3) * (1 / 3) * (1 / 2)) ** (1 / 3)


def test_grams_of_unlike_tokens_are_never_one() -> None:
    counts = measure.gram_counts([np.array([1, 2, 1, 2]), np.array([2, 1, 2**31 - 1])], 2)
    assert sorted(counts[0].tolist()) == [0, 1, 2]
    assert sorted(counts[1].tolist()) == [0, 1, 1]


def test_repeats_and_entropies_of_right_and_wrong() -> None:
    same = {"token_ids": [1, 2, 3, 4, 5], "correct": True, "entropy": [0.5] * 5}
    wrong = {"token_ids": [7, 8, 9, 10, 11], "correct": False, "entropy": [2.0] * 5, "kept": False}
    step = found(same, same, same, wrong).step
    assert step["repeat_share"] == 0.5
    assert (step["entropy_right"], step["entropy_wrong"]) == (0.5, 2.0)
    assert step["right_similarity"] == 1


def test_pass_at_k_takes_the_smallest_group() -> None:
    right, wrong = {"token_ids": [1], "correct": True}, {"token_ids": [2], "correct": False}
    step = found(right, wrong, wrong | {"group": 1}, wrong | {"group": 1}, right | {"group": 1}).step
    assert step["pass_k"] == 2
    assert step["pass_at_k"] == pytest.approx((1 + 1 - 1 / 3) / 2)
