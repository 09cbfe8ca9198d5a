"""Everything of storing a batch that needs no database: checking, packing, counting."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlviewer.ingest.statistics import (
    Integers,
    RolloutStatistics,
    Scores,
    group_statistics,
    rollout_statistics,
    scores,
)
from rlviewer.ingest.validation import CheckedBatch, check
from rlviewer.runs.tokens import MAX_ROLLOUTS, ChunkPacker
from training.records import BatchHeader, RolloutBatch

# A page that opens one rollout reads its whole chunk, so huge rollouts share one with fewer others.
CHUNK_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PreparedChunk:
    """Rollouts `start` to `stop` of a checked batch, packed."""

    group: int  # position in the checked groups
    part: int
    start: int
    stop: int
    payload: bytes
    sha256: bytes


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch ready to be written in one short transaction."""

    header: BatchHeader
    batch: RolloutBatch
    checked: CheckedBatch
    statistics: RolloutStatistics
    scores: Scores
    groups: list[dict[str, Any]]  # of `checked`, with the statistics that the writer left out filled in
    chunks: list[PreparedChunk]


def prepare(batch: RolloutBatch) -> PreparedBatch:
    """Raises RecordError when nothing of the batch can be stored."""
    return prepare_checked(batch, check(batch))


def prepare_checked(batch: RolloutBatch, checked: CheckedBatch) -> PreparedBatch:
    statistics = rollout_statistics(checked.rollouts)
    of = scores(checked.rollouts, statistics)
    bounds = np.searchsorted(checked.group_of, np.arange(len(checked.groups) + 1))
    groups = [
        _with_statistics(group, of, int(low), int(high))
        for group, low, high in zip(checked.groups, bounds[:-1], bounds[1:], strict=True)
    ]
    return PreparedBatch(
        batch.header, batch, checked, statistics, of, groups, list(_chunks(checked, bounds, statistics.length_tokens))
    )


def _with_statistics(group: dict[str, Any], of: Scores, low: int, high: int) -> dict[str, Any]:
    counted = group_statistics(of.reward[low:high], of.correct[low:high])
    counted |= {"size_asked": high - low, "size_got": high - low}
    return {**group, **{name: value for name, value in counted.items() if group[name] is None}}


def _chunks(checked: CheckedBatch, bounds: Integers, lengths: Integers) -> Iterator[PreparedChunk]:
    if not checked.rollouts.num_rows:
        return
    packer = ChunkPacker(checked.rollouts)
    # What a rollout weighs: its text, and its tokens times a typical width.
    sizes = packer.completion_bytes() + lengths * 20
    for group, (low, high) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        for part, (start, stop) in enumerate(_cuts(low, high, sizes)):
            payload = packer.pack(start, stop, checked.groups[group]["prompt_ids"])
            yield PreparedChunk(group, part, start, stop, payload, hashlib.sha256(payload).digest())


def _cuts(low: int, high: int, sizes: Integers) -> Iterator[tuple[int, int]]:
    """Pieces of a group that one chunk holds."""
    start, weight = low, 0
    for row in range(low, high):
        if row > start and (row - start == MAX_ROLLOUTS or weight + sizes[row] > CHUNK_BYTES):
            yield start, row
            start, weight = row, 0
        weight += int(sizes[row])
    if high > start:
        yield start, high
