"""What is alike among the completions of a group."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlviewer.lib.diff import common_start, first_difference, words_of
from rlviewer.lib.near_duplicates import near_duplicates
from rlviewer.lib.visible import decoded
from rlviewer.runs.models import Rollout
from rlviewer.runs.queries.beside import read_packed

# Tokens of all rollouts together that are compared for near-duplicates; of longer groups the beginning of each.
COMPARED_TOKENS = 400_000


@dataclass(frozen=True, slots=True)
class Likeness:
    """What is alike in the group."""

    is_identical: bool
    clusters: Sequence[Sequence[int]]  # near-duplicates, as places among the rollouts
    shared_start: int  # tokens, or characters, with which all begin
    compared: int | None  # tokens of each that were compared for near-duplicates; None: all
    unit: str  # what is counted: "token", or without token ids "character" and for near-duplicates words

    @property
    def repeats(self) -> list[Sequence[int]]:
        return [cluster for cluster in self.clusters if len(cluster) > 1]

    @property
    def repeating(self) -> int:
        return sum(map(len, self.repeats))


def likeness_of(rollouts: Sequence[Rollout]) -> Likeness:
    """One query; of each rollout its token ids, cut where the group has very many, or without them its text."""
    most = max(1, COMPARED_TOKENS // max(1, len(rollouts)))
    digests: set[bytes] = set()
    tokens: dict[int, Any] = {}
    texts: dict[int, str] = {}
    is_cut = False
    for rollout, packed in read_packed(rollouts):
        digests.add(hashlib.blake2b(packed.completion).digest())
        ids = packed.columns.get("token_ids")
        text = decoded(packed.completion[: 8 * most])
        is_cut |= (len(text) > 4 * most) if ids is None else len(ids) > most
        texts[rollout.pk] = text[: 4 * most]
        if ids is not None:
            tokens[rollout.pk] = ids[:most].copy()
    has_tokens = len(tokens) == len(rollouts)
    if has_tokens:
        sequences = [tokens[one.pk].tolist() for one in rollouts]
        starts = [first_difference(tokens[rollouts[0].pk], tokens[one.pk]) for one in rollouts]
        shared = min((start for start in starts if start is not None), default=len(sequences[0]) if sequences else 0)
    else:
        sequences = [words_of(texts.get(one.pk, "")) for one in rollouts]
        shared = min((common_start(texts[rollouts[0].pk], text) for text in texts.values()), default=0)
    return Likeness(
        is_identical=len(digests) == 1,
        clusters=near_duplicates(sequences),
        shared_start=shared,
        compared=most if is_cut else None,
        unit="token" if has_tokens else "character",
    )
