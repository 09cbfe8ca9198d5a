import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlviewer.lib.diff import Piece, common_start, common_words, first_difference, word_diff, words_of


def shown(pieces: list[Piece]) -> str:
    """`same`, [only], {gone} and <rest> in one line."""
    form = {"same": "{}", "only": "[{}]", "gone": "{{{}}}", "rest": "<{}>"}
    return "".join(form[piece.kind].format(piece.text) for piece in pieces)


@pytest.mark.parametrize(
    ("first", "second", "start", "left", "right"),
    [
        ("so = 12", "so = 13", 6, "so = [12]", "so = [13]"),
        # The whole word is marked, though only its end differs.
        ("carry the one", "carry the ones", 13, "carry the [one]", "carry the [ones]"),
        # Added in the middle: one side has it, the other lacks it.
        ("a b d", "a b c d", 4, "a b {c }d", "a b [c ]d"),
        ("", "new", 0, "{new}", "[new]"),
        ("same", "same", None, "same", "same"),
        ("", "", None, "", ""),
        # A space more is a difference.
        ("a b", "a  b", 2, "a { }b", "a [ ]b"),
        ("end", "end\n", 3, "end{\n}", "end[\n]"),
        # Signs are words of their own, and so are Chinese ones.
        ("f(x)+1", "f(y)+1", 2, "f([x])+1", "f([y])+1"),
        ("\u7b54\u6848\u662f", "\u7b54\u5b9e\u662f", 1, "\u7b54[\u6848]\u662f", "\u7b54[\u5b9e]\u662f"),
    ],
)
def test_words_of_one_side_only_are_marked(first: str, second: str, start: int | None, left: str, right: str) -> None:
    found = word_diff(first, second)
    assert (found.start, shown(found.first), shown(found.second)) == (start, left, right)


def test_beyond_the_limit_nothing_is_claimed() -> None:
    found = word_diff("x 1 2 3 4", "x 9 2 3 4", most_words=2)
    assert shown(found.first) == "x [1 ]2 <3 4>" and shown(found.second) == "x [9 ]2 <3 4>"


def test_the_longest_common_words_are_found() -> None:
    # Of a b c b d a b and b d c a b a four words are common at most, as in the textbook example.
    pairs = common_words("abcbdab", "bdcaba")
    assert len(pairs) == 4
    assert pairs == sorted(pairs) and all("abcbdab"[i] == "bdcaba"[j] for i, j in pairs)


def longest(first: str, second: str) -> int:
    """Length of a longest common subsequence by the definition."""
    row = [0] * (len(second) + 1)
    for a in first:
        before = row
        row = [0]
        for j, b in enumerate(second):
            row.append(before[j] + 1 if a == b else max(before[j + 1], row[j]))
    return row[-1]


@given(st.text("abc", max_size=20), st.text("abc", max_size=20))
def test_common_words_are_common_in_order_and_longest(first: str, second: str) -> None:
    pairs = common_words(first, second)
    assert all(first[i] == second[j] for i, j in pairs)
    assert all(i < k and j < n for (i, j), (k, n) in pairwise(pairs))
    assert len(pairs) == longest(first, second)


words = st.text(st.sampled_from("ab 1\n.\u202e\udcff\u4e2d"), max_size=40)


@given(words, words, st.integers(1, 30))
def test_pieces_are_the_texts_and_the_start_is_where_they_part(first: str, second: str, most: int) -> None:
    found = word_diff(first, second, most_words=most)
    for text, pieces in ((first, found.first), (second, found.second)):
        assert "".join(piece.text for piece in pieces if piece.kind != "gone") == text
        assert all(piece.text for piece in pieces)
        assert "".join(words_of(text)) == text
    same = [[piece.text for piece in pieces if piece.kind == "same"] for pieces in (found.first, found.second)]
    assert "".join(same[0]) == "".join(same[1])
    assert common_start(first, second) == (len(first) if found.start is None else found.start)
    if found.start is not None:
        assert first[: found.start] == second[: found.start]
        assert first[found.start : found.start + 1] != second[found.start : found.start + 1]


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [([5, 6, 7], [5, 9, 7], 1), ([5, 6], [5, 6, 7], 2), ([], [1], 0), ([1, 2], [1, 2], None), ([], [], None)],
)
def test_first_differing_token(first: list[int], second: list[int], place: int | None) -> None:
    assert first_difference(np.array(first, np.int32), np.array(second, np.int32)) == place


def test_a_megabyte_of_differing_words_takes_a_moment() -> None:
    first = " ".join(f"w{n}" for n in range(150_000))
    second = " ".join(f"w{n * 7 % 150_000}" for n in range(1, 150_001))
    started = time.perf_counter()
    found = word_diff(first, second)
    # Some 50 ms; a quadratic table in Python would take minutes.
    assert time.perf_counter() - started < 5
    assert "".join(piece.text for piece in found.second if piece.kind != "gone") == second
