"""Where two texts part, and which words only one of them has. Exact, bounded in time and memory, the same on every machine."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

# A run of letters and digits, or any other sign by itself, with the space after it. Chinese and Japanese signs are words.
_WORD = re.compile(r"(?:[^\W\u3040-\u30ff\u3400-\u9fff]+|\S)\s*|\s+")
_IN_WORD = re.compile(r"\w")
# Words of each text that are compared: the table of the longest common words then takes 3 MB and some 70 ms.
MOST_WORDS = 5000

Kind = Literal["same", "only", "gone", "rest"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text: in both, `only` in this one, `gone` from this one, or the `rest` that was not compared."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Both texts in pieces: joined without those that are gone they are the text again.

    `start` is the first character in which they differ; None where they are equal.
    """

    start: int | None
    first: list[Piece]
    second: list[Piece]


def first_difference(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> int | None:
    """Place of the first differing entry; the end of the shorter where it begins the longer; None where both are equal."""
    shared = min(len(first), len(second))
    differing = np.flatnonzero(first[:shared] != second[:shared])
    if len(differing):
        return int(differing[0])
    return None if len(first) == len(second) else shared


def common_start(first: str, second: str) -> int:
    """How many characters both begin with."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def words_of(text: str) -> list[str]:
    """The words of a text, which joined are the text."""
    return _WORD.findall(text)


def word_diff(first: str, second: str, *, most_words: int = MOST_WORDS) -> Difference:
    """Both texts in pieces. From where they part at most `most_words` words of each are compared, the rest is left as it is."""
    start = common_start(first, second)
    if start == len(first) == len(second):
        whole = [Piece("same", first)] if first else []
        return Difference(None, whole, list(whole))
    begin = _word_start(first, second, start)
    words, rests = zip(*(_some_words(text[begin:], most_words) for text in (first, second)), strict=True)
    sides: tuple[list[Piece], list[Piece]] = ([Piece("same", first[:begin])], [Piece("same", first[:begin])])
    for own, other in _changes(words[0], words[1]):
        if own == other:
            for side in sides:
                side.append(Piece("same", own))
            continue
        for side, mine, theirs in zip(sides, (own, other), (other, own), strict=True):
            side.append(Piece("only", mine) if mine else Piece("gone", theirs))
    for side, rest in zip(sides, rests, strict=True):
        side.append(Piece("rest", rest))
    return Difference(start, *([piece for piece in side if piece.text] for side in sides))


def _word_start(first: str, second: str, start: int) -> int:
    """Where the word begins inside of which the texts part, so that it is marked as a whole."""
    if not any(_IN_WORD.match(text, start) for text in (first, second)):
        return start
    begin = start
    while begin and start - begin < 100 and _IN_WORD.match(first, begin - 1):
        begin -= 1
    return begin


def _some_words(text: str, most: int) -> tuple[list[str], str]:
    words: list[str] = []
    end = 0
    for match in _WORD.finditer(text):
        if len(words) == most:
            break
        words.append(match[0])
        end = match.end()
    return words, text[end:]


def _changes(first: Sequence[str], second: Sequence[str]) -> list[tuple[str, str]]:
    """Both texts cut at their longest common words: pairs of equal texts, and pairs of what stands instead of each other."""
    pairs = [(-1, -1), *common_words(first, second), (len(first), len(second))]
    found: list[tuple[str, str]] = []
    same: list[str] = []
    for (before_a, before_b), (a, b) in pairwise(pairs):
        instead = "".join(first[before_a + 1 : a]), "".join(second[before_b + 1 : b])
        if instead != ("", ""):
            if same:
                found.append(("".join(same),) * 2)
            same = []
            found.append(instead)
        if a < len(first):
            same.append(first[a])
    return [*found, ("".join(same),) * 2] if same else found


def common_words(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Places in both of a longest common subsequence, in order.

    A row of the table of lengths is one large integer: bit i is clear where the length grows at `first[i]`. So a word costs a
    few operations on whole rows. Source: Hyyrö 2004, "Bit-parallel LCS-length computation revisited".
    """
    tail = 0
    while tail < min(len(first), len(second)) and first[-1 - tail] == second[-1 - tail]:
        tail += 1
    own, other = first[: len(first) - tail], second[: len(second) - tail]
    places: dict[str, int] = {}
    for i, word in enumerate(own):
        places[word] = places.get(word, 0) | 1 << i
    full = row = (1 << len(own)) - 1
    rows = []
    for word in other:
        shared = row & places.get(word, 0)
        row = ((row + shared) | (row - shared)) & full
        rows.append(row)
    found = []
    i, j = len(own), len(other)
    while i and j:
        if rows[j - 1] >> (i - 1) & 1:
            i -= 1
        elif j > 1 and not rows[j - 2] >> (i - 1) & 1:
            j -= 1
        else:
            i, j = i - 1, j - 1
            found.append((i, j))
    ends = ((len(first) - left, len(second) - left) for left in range(tail, 0, -1))
    return [*reversed(found), *ends]
