"""One rollout beside the list: its text with every match marked, its numbers, the parts of its reward."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlviewer.lib.visible import decoded, visible_lines
from rlviewer.runs.models import RewardPart, Rollout, StopReason, TokenChunk
from rlviewer.runs.queries.run import shown_answer
from rlviewer.runs.tokens import unpack_chunk
from rlviewer.search.lines import TEXT_ONLY, patterns
from rlviewer.search.tree import All

SHOWN_CHARS, PROMPT_CHARS = 20_000, 4_000
BEFORE_MATCH = 500
MOST_MATCHES = 500


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    is_match: bool


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A text, or the part of it around the first match, else its end."""

    pieces: Sequence[Piece]
    before: int  # characters left out
    after: int


@dataclass(frozen=True, slots=True)
class Preview:
    rollout: Rollout
    prompt: Excerpt
    completion: Excerpt
    parts: Sequence[RewardPart]
    answer: str | None

    @property
    def stop_reason(self) -> str:
        return StopReason(self.rollout.stop_reason).label


def preview(rollout: Rollout, tree: All) -> Preview:
    """Two queries, one more for each expression that is looked for."""
    ids = [rollout.pk]
    payload = TokenChunk.objects.values_list("payload", flat=True).get(pk=rollout.chunk_id)
    stored = unpack_chunk(payload, columns=TEXT_ONLY).rollouts[rollout.position]
    marked = {of: patterns(ids, tree, of).get(rollout.pk, []) for of in ("prompt", "completion")}
    return Preview(
        rollout,
        excerpt(bytes(rollout.group.prompt.text), marked["prompt"], PROMPT_CHARS, from_start=True),
        excerpt(stored.completion, marked["completion"], SHOWN_CHARS),
        list(rollout.reward_parts.order_by("part")),
        None if rollout.parsed_answer is None else shown_answer(rollout.parsed_answer),
    )


def excerpt(data: bytes, expressions: Sequence[str], limit: int, *, from_start: bool = False) -> Excerpt:
    text = decoded(data)
    start = 0 if from_start else max(0, len(text) - limit)
    first = next((m.start() for e in expressions if (m := re.search(e, text, re.IGNORECASE))), None)
    if first is not None and not start <= first < start + limit:
        start = max(0, first - BEFORE_MATCH)
    shown = text[start : start + limit]
    return Excerpt(list(_pieces(shown, expressions)), start, len(text) - start - len(shown))


def _pieces(text: str, expressions: Sequence[str]) -> Iterator[Piece]:
    at = 0
    found = re.finditer("|".join(f"(?:{e})" for e in expressions), text, re.IGNORECASE) if expressions else iter(())
    for count, match in enumerate(found):
        if count == MOST_MATCHES:
            break
        if match.start() > at:
            yield Piece(visible_lines(text[at : match.start()]), False)
        yield Piece(visible_lines(match[0]), True)
        at = match.end()
    if at < len(text):
        yield Piece(visible_lines(text[at:]), False)
