"""Completions out of the chunks that hold them."""

from collections.abc import Sequence

from rlviewer.runs.models import Rollout, TokenChunk
from rlviewer.runs.tokens import unpack_chunk

TEXT_ONLY: frozenset[str] = frozenset()


def completions_of(ids: Sequence[int]) -> dict[int, bytes]:
    """By rollout, in the order of ids rising; what was deleted is left out. Two queries."""
    rows = Rollout.objects.filter(pk__in=ids).order_by("pk")
    places = list(rows.values_list("pk", "chunk_id", "position"))
    payloads = TokenChunk.objects.filter(pk__in={chunk for _, chunk, _ in places}).values_list("pk", "payload")
    chunks = {pk: unpack_chunk(payload, columns=TEXT_ONLY).rollouts for pk, payload in payloads.iterator(chunk_size=64)}
    return {pk: chunks[chunk][position].completion for pk, chunk, position in places}
