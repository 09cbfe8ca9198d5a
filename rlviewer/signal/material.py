"""One stored step as arrays: what every measure is worked out from."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlviewer.runs.models import Group, Rollout, Step, TokenChunk
from rlviewer.runs.tokens import PackedRollout, unpack_chunk
from training.records import TOKEN_COLUMNS

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
NARROW = ("id", "group_id", "chunk_id", "position", "number", "reward", "advantage", "correct", "kept", "drop_reason",
          "stop_reason", "length_tokens", "policy_version", "staleness_steps", "parsed_answer", "answer_cluster")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Material:
    """Rollouts of one step ordered by group and number; rollout i owns tokens `starts[i]:starts[i + 1]`."""

    step: Step
    groups: list[Group]  # by index, with their prompts
    group_of: Integers  # per rollout: place in `groups`
    narrow: dict[str, list[Any]]  # the stored columns of `NARROW`
    packed: list[PackedRollout]
    prompt_ids: list[npt.NDArray[Any] | None]  # per rollout: token ids of its prompt
    starts: Integers
    columns: dict[str, npt.NDArray[Any]]  # per-token columns that every rollout has, flat
    partial: frozenset[str]  # per-token columns that only some rollouts have

    @property
    def count(self) -> int:
        return len(self.group_of)

    @property
    def lengths(self) -> Integers:
        return np.diff(self.starts)

    @property
    def rollout_of(self) -> Integers:
        """Per token: its rollout."""
        return np.repeat(np.arange(self.count), self.lengths)

    def floats(self, name: str) -> Floats:
        """A narrow column as numbers, NaN where nothing is stored."""
        return np.array(self.narrow[name], dtype=np.float64)

    def members(self) -> list[npt.NDArray[np.int64]]:
        """Per group: its rollouts."""
        ends = np.searchsorted(self.group_of, np.arange(len(self.groups) + 1))
        return [np.arange(low, high) for low, high in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def read_step(step: Step) -> Material:
    """Everything stored for one step. Four queries; about 20 bytes a token in memory."""
    groups = list(
        Group.objects.filter(step=step).select_related("prompt").defer("prompt__oracle_trace").order_by("index")
    )
    place = {group.pk: index for index, group in enumerate(groups)}
    rows = list(Rollout.objects.filter(group__step=step).order_by("group__index", "number").values_list(*NARROW))
    narrow: dict[str, list[Any]] = {
        name: list(column)
        for name, column in zip(NARROW, zip(*rows, strict=True) if rows else [()] * len(NARROW), strict=True)
    }
    chunks = {
        chunk.pk: unpack_chunk(chunk.payload)
        for chunk in TokenChunk.objects.filter(pk__in=set(narrow["chunk_id"])).iterator(chunk_size=16)
    }
    packed = [
        chunks[chunk].rollouts[position] for chunk, position in zip(narrow["chunk_id"], narrow["position"], strict=True)
    ]
    lengths = np.array(narrow["length_tokens"], dtype=np.int64)
    columns, partial = _columns(packed)
    return Material(
        step=step,
        groups=groups,
        group_of=np.array([place[group] for group in narrow["group_id"]], dtype=np.int64),
        narrow=narrow,
        packed=packed,
        prompt_ids=[chunks[chunk].prompt_ids for chunk in narrow["chunk_id"]],
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        columns=columns,
        partial=partial,
    )


def _columns(packed: list[PackedRollout]) -> tuple[dict[str, npt.NDArray[Any]], frozenset[str]]:
    names = [*TOKEN_COLUMNS, *sorted({name for rollout in packed for name in rollout.columns} - TOKEN_COLUMNS.keys())]
    holders = {name: sum(name in rollout.columns for rollout in packed) for name in names}
    whole = {
        name: np.concatenate([rollout.columns[name] for rollout in packed])
        for name in names
        if packed and holders[name] == len(packed)
    }
    return whole, frozenset(name for name in names if 0 < holders[name] < len(packed))
