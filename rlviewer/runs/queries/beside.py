"""Completions side by side, wherever two of them stand: the part that tells, with the words that only one of them has."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from rlviewer.lib.diff import Piece, common_start, first_difference, word_diff
from rlviewer.lib.text import cut_text
from rlviewer.lib.visible import decoded, visible_lines
from rlviewer.runs.models import Rollout, TokenChunk
from rlviewer.runs.tokens import PackedRollout, unpack_chunk

# Of a text that is cut, this share of what is shown lies before the place where it parts from the other.
LEAD = 1 / 4
TOLD_CHARS = 200
TOKENS_ONLY = frozenset({"token_ids"})


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


def read_packed(rollouts: Sequence[Rollout]) -> Iterator[tuple[Rollout, PackedRollout]]:
    """Texts and token ids, chunk by chunk, so that only one lies in memory. One query."""
    members: dict[int, list[Rollout]] = defaultdict(list)
    for one in rollouts:
        members[one.chunk_id].append(one)
    chunks = TokenChunk.objects.filter(pk__in=members).order_by("pk").values_list("pk", "payload")
    for pk, payload in chunks.iterator(chunk_size=1):
        packed = unpack_chunk(payload, columns=TOKENS_ONLY).rollouts
        for one in members[pk]:
            yield one, packed[one.position]


def differing_place(first: PackedRollout, second: PackedRollout) -> int | None:
    """The first token that differs; without token ids the first character; None where nothing does."""
    ids = first.columns.get("token_ids"), second.columns.get("token_ids")
    if ids[0] is not None and ids[1] is not None:
        return first_difference(ids[0], ids[1])
    if first.completion == second.completion:
        return None
    return common_start(decoded(first.completion), decoded(second.completion))
