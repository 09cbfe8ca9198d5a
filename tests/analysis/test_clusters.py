"""Clusters of vectors, and the words that set each apart."""

import numpy as np
import pytest

from rlviewer.analysis.clusters import Word, clusters, telling_words


def around(*counts: int, spread: float = 0.05) -> np.ndarray:
    """So many vectors of length 1 around each of some directions at right angles, one direction after another."""
    rng = np.random.default_rng(5)
    rows = np.repeat(np.eye(len(counts), 16), counts, axis=0) + spread * rng.normal(size=(sum(counts), 16))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_planted_clusters_come_back_the_largest_first() -> None:
    found = clusters(around(10, 40, 25), 3)
    assert [sorted(one.members) for one in found] == [list(range(10, 50)), list(range(50, 75)), list(range(10))]
    assert all(0.95 < one.tightness < 1 for one in found)


def test_members_begin_with_the_nearest_to_the_centre() -> None:
    rows = around(30, spread=0.3)
    (one,) = clusters(rows, 1)
    centre = rows.sum(0) / np.linalg.norm(rows.sum(0))
    near = rows @ centre
    assert one.members == np.argsort(-near, kind="stable").tolist()
    assert one.tightness == pytest.approx(near.mean(), abs=1e-6)


def test_the_same_rollouts_always_give_the_same_clusters() -> None:
    rows = around(20, 20, 20, spread=0.4)
    assert clusters(rows, 5) == clusters(rows.copy(), 5)


def test_each_rollout_is_in_one_cluster() -> None:
    found = clusters(around(20, 20, spread=0.5), 7)
    assert sorted(row for one in found for row in one.members) == list(range(40))


@pytest.mark.parametrize(("rows", "sizes"), [(around(0), []), (around(1), [1]), (around(4, 2, spread=0), [4, 2])])
def test_no_more_clusters_than_differ(rows: np.ndarray, sizes: list[int]) -> None:
    assert [len(one.members) for one in clusters(rows, 8)] == sizes


def test_telling_words_are_frequent_here_and_rare_elsewhere() -> None:
    carried = {n: f"we carry the {n + 10}" for n in range(4)}
    refused = dict.fromkeys(range(10, 16), "I cannot help with the")
    first, second = telling_words([carried, refused])
    assert first == [Word("carry", 1, 0), Word("we", 1, 0)]  # `the` is everywhere, each number in one text only
    assert [word.text for word in second] == ["cannot", "help", "with"]
    assert first[0].told == "in 100 % of these, in 0 % of the others"


def test_the_most_telling_word_comes_first() -> None:
    here = {0: "carry half seldom", 1: "carry half seldom", 2: "carry half", 3: "carry half"}
    elsewhere = {number: "half" if number < 12 else "other" for number in range(10, 15)}
    told, _ = telling_words([here, elsewhere])
    # 1 * ln(1 / (0.5 / 6)) = 2.48; 0.5 * ln(0.5 / (0.5 / 6)) = 0.90; 1 * ln(1 / (2.5 / 6)) = 0.88
    assert [(word.text, word.here, word.elsewhere) for word in told] == [
        ("carry", 1, 0),
        ("seldom", 0.5, 0),
        ("half", 1, 0.4),
    ]


def test_a_word_counts_once_a_text() -> None:
    one, _ = telling_words([{0: "loop loop loop", 1: "loop end"}, {2: "end", 3: "end"}])
    assert one == [Word("loop", 1, 0)]
