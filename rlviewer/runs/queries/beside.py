"""Completions side by side, wherever two of them stand: the part that tells, with the words that only one of them has."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from rlviewer.lib.diff import Piece, common_start, word_diff
from rlviewer.lib.text import cut_text
from rlviewer.lib.visible import decoded, visible_lines

# Of a text that is cut, this share of what is shown lies before the place where it parts from the other.
LEAD = 1 / 4
TOLD_CHARS = 200


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown of one text, and how many characters were left out before and after."""

    html: SafeString
    before: int
    after: int
    is_compared: bool = True


def alone(data: bytes, *, limit: int, start: int = 0) -> Shown:
    """A text by itself, from character `start` on."""
    text = decoded(data)
    part = text[start : start + limit]
    return Shown(format_html("{}", visible_lines(part)), start, len(text) - start - len(part), is_compared=False)


def beside(first: bytes, second: bytes, *, limit: int) -> tuple[Shown, Shown]:
    """At most `limit` characters of each, around the place where they part."""
    texts = decoded(first), decoded(second)
    start = 0
    if max(map(len, texts)) > limit:
        start = max(0, common_start(*texts) - int(LEAD * limit))
    parts = [text[start : start + limit] for text in texts]
    found = word_diff(*parts)
    left, right = (
        Shown(pieces_html(pieces), start, len(text) - start - len(part))
        for text, part, pieces in zip(texts, parts, (found.first, found.second), strict=True)
    )
    return left, right


def pieces_html(pieces: Sequence[Piece]) -> SafeString:
    """The pieces as one text: how both begin in grey, words of this one alone marked, a caret where it lacks some."""
    first = next((place for place, piece in enumerate(pieces) if piece.kind in {"only", "gone"}), None)
    return format_html_join("", "{}", ((_html(piece, place, first),) for place, piece in enumerate(pieces)))


def _html(piece: Piece, place: int, first: int | None) -> SafeString:
    text = visible_lines(piece.text)
    is_first = place == first
    if piece.kind == "only":
        return format_html("<mark{}>{}</mark>", _named(is_first), text)
    if piece.kind == "gone":
        told = cut_text(text, TOLD_CHARS)
        return format_html(
            '<i class="gone" role="img" title="Not here: {0}" aria-label="Not here: {0}"{1}></i>',
            told,
            _named(is_first),
        )
    is_begin = piece.kind == "same" and first is not None and place < first
    return format_html('<span class="same">{}</span>', text) if is_begin else format_html("{}", text)


def _named(is_first: bool) -> SafeString:
    return format_html(" data-first-difference tabindex=-1") if is_first else SafeString("")
