import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlviewer.lib.near_duplicates import jaccard, near_duplicates


def test_jaccard_by_hand() -> None:
    # {1, 2, 3} and {2, 3, 4}: two shared of four.
    assert jaccard(np.array([1, 2, 3]), np.array([2, 3, 4])) == 0.5
    assert jaccard(np.array([], np.int64), np.array([], np.int64)) == 1


def test_one_token_of_many_changed_is_a_near_duplicate() -> None:
    # Grams of three of "abcdef": abc bcd cde def. Of "abcdeg": abc bcd cde deg. Three shared of five: 0.6.
    texts = ["abcdef", "abcdeg", "uvwxyz"]
    assert near_duplicates(texts, threshold=0.6) == [[0, 1], [2]]
    assert near_duplicates(texts, threshold=0.61) == [[0], [1], [2]]


def test_single_tokens_as_grams() -> None:
    # {a, b, c} and {a, b, d}: two shared of four.
    assert near_duplicates(["abc", "abd"], gram=1, threshold=0.5) == [[0, 1]]
    assert near_duplicates(["abc", "abd"], gram=1, threshold=0.51) == [[0], [1]]


def test_a_chain_is_one_cluster() -> None:
    # With single tokens: {1,2,3,4} and {2,3,4,5} share three of five, so do the second and the third; first and third two of six.
    chain = [[1, 2, 3, 4], [3, 4, 5, 6], [2, 3, 4, 5], [9, 9]]
    assert near_duplicates(chain, gram=1, threshold=0.6) == [[0, 1, 2], [3]]


def test_short_and_empty_ones_are_compared_whole() -> None:
    assert near_duplicates(["ab", "ab", "ba", "", ""]) == [[0, 1], [2], [3, 4]]
    assert near_duplicates([]) == []


@pytest.mark.parametrize("threshold", [0, -1, 1.5])
def test_a_threshold_that_means_nothing_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold"):
        near_duplicates(["a"], threshold=threshold)


@given(
    st.lists(st.text("ab", max_size=9), max_size=9),
    st.integers(1, 3),
    st.sampled_from([0.2, 1 / 3, 0.5, 0.6, 2 / 3, 0.8, 1]),
)
def test_no_pair_is_overlooked(texts: list[str], gram: int, threshold: float) -> None:
    """Against every pair compared by the definition."""

    def grams(text: str) -> set[str]:
        return {text[i : i + gram] for i in range(len(text) - gram + 1)} or {text}

    cluster_of = {
        place: tuple(cluster) for cluster in near_duplicates(texts, gram=gram, threshold=threshold) for place in cluster
    }
    reached = {place: {place} for place in range(len(texts))}
    for a, first in enumerate(texts):
        for b, second in enumerate(texts):
            own, other = grams(first), grams(second)
            if len(own & other) >= threshold * len(own | other) - 1e-9:
                joined = reached[a] | reached[b]
                for place in joined:
                    reached[place] = joined
    assert {place: tuple(sorted(members)) for place, members in reached.items()} == cluster_of
