"""Which rows of a batch can be stored, and why the others cannot. Whole columns at a time; no database."""

import functools
import math
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rlviewer.lib.json import MAX_JSON_CHARS, JsonError, dumps, loads, storable
from rlviewer.lib.text import bytes_from_str, text_from_bytes
from rlviewer.runs.tokens import list_lengths, token_lengths
from training.records import (
    CLIP_FLAGS,
    EXTRA_PREFIX,
    ORIGINS,
    STOP_REASONS,
    TOKEN_COLUMNS,
    BatchHeader,
    RecordError,
    RolloutBatch,
)

SPAN_KINDS = ("outcome", "process", "format", "penalty", "shaping")
MAX_INT = 2**31 - 1
# Longest text of each short column, in characters after escaping; the columns of the tables are that wide.
GROUP_LIMITS = {"generator": 120, "dead_cause": 20, "drop_reason": 60, "queue_state": 20}
SPAN_LIMITS = {"kind": 20, "name": 60, "version": 20}
DROP_REASON_LIMIT = 60
SPLIT_LIMIT = 40
METRIC_LIMIT = 120
EXTRA_NAME = re.compile(rf"{EXTRA_PREFIX}[A-Za-z0-9_]{{1,50}}")
MAX_EXTRAS = 64
# Largest value of the small per-token columns.
TOKEN_LIMITS = {"loss_mask": 1, "clip_flag": len(CLIP_FLAGS) - 1, "origin": len(ORIGINS) - 1}
GROUP_JSON = {"parameters": dict, "stratum_keys": None, "sampling": dict}

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rollout that cannot be stored."""

    row_index: int  # in the batch's rollouts
    reason: str


@dataclass(frozen=True, slots=True)
class CheckedBatch:
    """The rows that can be stored, rollouts in the order of their groups and numbers."""

    rollouts: pa.Table
    row_indexes: npt.NDArray[np.int64]  # of each kept rollout in the batch as it came
    groups: list[dict[str, Any]]  # rows of the groups stream; `prompt_ids` is a numpy array or None
    group_of: npt.NDArray[np.int64]  # position in `groups`, one per rollout
    spans: pa.Table  # `rollout` is a position in `rollouts`
    metrics: list[tuple[str, float]]
    refused: list[Refusal]
    events: str  # JSON: the writer's, then what was left out that is no rollout: {kind, text}
    phase_seconds: str  # JSON

    def without(self, reasons: dict[int, str]) -> "CheckedBatch":
        """The batch less the rollouts at these positions, which join the refused ones."""
        keep = np.setdiff1d(np.arange(self.rollouts.num_rows), np.array(sorted(reasons), dtype=np.int64))
        refused = [Refusal(int(self.row_indexes[position]), reason) for position, reason in reasons.items()]
        return replace(
            self,
            rollouts=self.rollouts.take(keep),
            row_indexes=self.row_indexes[keep],
            group_of=self.group_of[keep],
            spans=_spans_of(self.spans, keep, self.rollouts.num_rows),
            refused=sorted([*self.refused, *refused], key=lambda refusal: refusal.row_index),
        )


class _Reasons:
    """The first reason against each row."""

    def __init__(self) -> None:
        self.by_row: dict[int, str] = {}

    def where(self, mask: Mask, reason: str | Callable[[int], str]) -> None:
        for row in np.flatnonzero(mask).tolist():
            if row not in self.by_row:
                self.by_row[row] = reason if isinstance(reason, str) else reason(row)


def check_header(header: BatchHeader) -> None:
    """Raises RecordError when nothing of the batch could be stored."""

    def need(holds: bool, what: str, found: Any) -> None:
        if not holds:
            raise RecordError(f"batch {header.batch_id}: {what}, got {found!r}")

    for name in ("attempt", "step"):
        value, low = getattr(header, name), 1 if name == "attempt" else 0
        need(type(value) is int and low <= value <= MAX_INT, f"{name} must be a whole number from {low}", value)
    split = header.split
    fits = isinstance(split, str) and 0 < len(split) <= SPLIT_LIMIT and split.isprintable()
    need(fits, f"split must be 1 to {SPLIT_LIMIT} printable characters", split)
    need(isinstance(header.source, str) and len(header.source) <= 40, "source must be a short text", header.source)
    need(isinstance(header.phase_seconds, dict), "phase_seconds must be an object", header.phase_seconds)
    for name, seconds in header.phase_seconds.items():
        need(
            type(seconds) in (int, float) and math.isfinite(seconds),
            f"phase_seconds of {name} must be a number",
            seconds,
        )
    are_objects = isinstance(header.events, list) and all(isinstance(event, dict) for event in header.events)
    need(are_objects, "events must be a list of objects", header.events)
    try:
        uuid.UUID(header.batch_id), uuid.UUID(header.run_uid)
    except (ValueError, AttributeError, TypeError) as error:
        raise RecordError(f"batch_id and run_uid must be UUIDs: {error}") from error


def written_at(header: BatchHeader) -> datetime | None:
    """The writer's clock, None when it cannot be read; nothing is ordered by it."""
    try:
        moment = datetime.fromisoformat(header.written_at)
        return moment if moment.tzinfo and 2 <= moment.year <= 9998 else None
    except (ValueError, TypeError):
        return None


def check(batch: RolloutBatch) -> CheckedBatch:
    """Sort the rows of a batch into those that can be stored and those refused, each with its reason.

    Raises:
        RecordError: the tables themselves are damaged, so that no row can be trusted.
    """
    check_header(batch.header)
    for table in (batch.rollouts, batch.groups, batch.metrics, batch.reward_spans):
        try:
            # Offsets that point outside a buffer would crash the process; texts must be UTF-8 where they say so.
            table.validate(full=True)
        except pa.ArrowException as error:
            raise RecordError(f"batch {batch.header.batch_id}: damaged table: {error}") from error
    _check_extras(batch)
    rollouts = batch.rollouts.combine_chunks()
    reasons = _Reasons()
    notes: list[dict[str, Any]] = []
    groups, group_errors = _check_groups(batch.groups)
    lengths = token_lengths(rollouts)
    group_rows = _check_places(rollouts, groups, group_errors, reasons)
    _check_tokens(rollouts, lengths, reasons)
    _check_details(rollouts, lengths, reasons)
    spans = _check_spans(batch.reward_spans, lengths, reasons, notes)
    used = set(group_rows.tolist())
    for row in group_errors.keys() - used:
        notes.append({"kind": "refused-group", "text": f"group row {row}: {group_errors[row]}"})

    numbers = _filled(rollouts.column("number"), -1)
    good = np.ones(rollouts.num_rows, dtype=bool)
    good[list(reasons.by_row)] = False
    keep = np.flatnonzero(good)
    keep = keep[np.lexsort((numbers[keep], group_rows[keep]))]
    kept_groups = [row for row in range(len(groups)) if row not in group_errors]
    position = {row: i for i, row in enumerate(kept_groups)}
    in_order = len(keep) == rollouts.num_rows and bool((keep == np.arange(len(keep))).all())
    return CheckedBatch(
        rollouts=rollouts if in_order else rollouts.take(keep),
        row_indexes=keep,
        groups=[groups[row] for row in kept_groups],
        group_of=np.array([position[row] for row in group_rows[keep].tolist()], dtype=np.int64),
        spans=_spans_of(spans, keep, rollouts.num_rows),
        metrics=_check_metrics(batch.metrics, notes),
        refused=[Refusal(row, reason) for row, reason in sorted(reasons.by_row.items())],
        events=_header_json(batch.header, [*batch.header.events, *notes]),
        phase_seconds=_header_json(batch.header, batch.header.phase_seconds),
    )


def _header_json(header: BatchHeader, value: Any) -> str:
    try:
        text = dumps(storable(value))
    except (JsonError, TypeError, RecursionError) as error:
        raise RecordError(f"batch {header.batch_id}: events and phase_seconds must be plain JSON: {error}") from error
    if len(text) > MAX_JSON_CHARS:
        raise RecordError(f"batch {header.batch_id}: events or phase_seconds of {len(text)} characters")
    return text


def _check_extras(batch: RolloutBatch) -> None:
    extras = [name for name in batch.rollouts.column_names if name.startswith(EXTRA_PREFIX)]
    if len(extras) > MAX_EXTRAS:
        raise RecordError(
            f"batch {batch.header.batch_id}: {len(extras)} further per-token columns, the limit is {MAX_EXTRAS}"
        )
    for name in extras:
        if not EXTRA_NAME.fullmatch(name):
            raise RecordError(
                f"batch {batch.header.batch_id}: per-token column {name[:80]!r} must match {EXTRA_NAME.pattern}"
            )


def _filled(column: pa.ChunkedArray, value: Any) -> npt.NDArray[Any]:
    return pc.fill_null(column, value).to_numpy()


def _nulls(column: pa.ChunkedArray) -> Mask:
    return column.is_null().to_numpy()


def short_text(value: str, limit: int, name: str) -> str:
    """`value` escaped for Postgres. Raises ValueError when it does not fit its column."""
    text = text_from_bytes(bytes_from_str(value))
    if len(text) > limit:
        raise ValueError(f"{name} has {len(text)} characters, the limit is {limit}")
    return text


@functools.lru_cache(maxsize=1024)
def json_column(text: str, kind: type | None) -> str:
    """JSON as the tables keep it, of a `kind` of value. Raises ValueError. Most rows of a run share a few texts."""
    value = loads(text)
    if kind is not None and not isinstance(value, kind):
        raise JsonError(f"must be a JSON {'object' if kind is dict else 'list'}")
    return dumps(value)


def _check_groups(table: pa.Table) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """All group rows as dictionaries, and what is wrong with some of them."""
    errors: dict[int, str] = {}
    rows = table.drop_columns(["prompt_ids"]).to_pylist()
    prompt_ids = table.column("prompt_ids")
    seen: dict[int, int] = {}
    for i, row in enumerate(rows):
        try:
            _check_group(row)
            ids = prompt_ids[i].values
            if ids is not None and ids.null_count:
                raise ValueError("prompt_ids has a missing value")
            row["prompt_ids"] = None if ids is None else ids.to_numpy()
            if ids is not None and len(ids) and row["prompt_ids"].min() < 0:
                raise ValueError("prompt_ids has a negative token id")
            if (first := seen.setdefault(row["index"], i)) != i:
                raise ValueError(f"index {row['index']} is also that of group row {first}")
        except ValueError as error:
            errors[i] = str(error)
    return rows, errors


def _check_group(row: dict[str, Any]) -> None:
    if row["index"] is None or row["index"] < 0:
        raise ValueError(f"index must be 0 or more, got {row['index']}")
    if row["prompt"] is None:
        raise ValueError("prompt is missing")
    for name in ("size_asked", "size_got", "base_samples"):
        if row[name] is not None and row[name] < 0:
            raise ValueError(f"{name} must be 0 or more, got {row[name]}")
    for name, limit in GROUP_LIMITS.items():
        if row[name] is not None:
            row[name] = short_text(row[name], limit, name)
    for name, kind in GROUP_JSON.items():
        try:
            row[name] = None if row[name] is None else json_column(row[name], kind)
        except JsonError as error:
            raise ValueError(f"{name}: {error}") from error


def _check_places(
    rollouts: pa.Table, groups: list[dict[str, Any]], group_errors: dict[int, str], reasons: _Reasons
) -> npt.NDArray[np.int64]:
    """Each rollout's group row; refuses rollouts without a group or a number of their own in it."""
    group_rows = _filled(rollouts.column("group"), -1).astype(np.int64)
    numbers = _filled(rollouts.column("number"), -1).astype(np.int64)
    missing = (group_rows < 0) | (group_rows >= len(groups))
    reasons.where(missing, lambda row: f"group {group_rows[row]} is no row of the batch's {len(groups)} groups")
    broken = np.isin(group_rows, list(group_errors))
    reasons.where(broken, lambda row: f"its group row {group_rows[row]}: {group_errors[int(group_rows[row])]}")
    reasons.where(numbers < 0, lambda row: f"number must be 0 or more, got {rollouts.column('number')[row]}")
    if rollouts.num_rows:
        _, first = np.unique(np.stack([group_rows, numbers]), axis=1, return_index=True)
        again = np.ones(rollouts.num_rows, dtype=bool)
        again[first] = False
        reasons.where(again, lambda row: f"number {numbers[row]} appears twice in group row {group_rows[row]}")
    return group_rows


def _check_tokens(rollouts: pa.Table, lengths: npt.NDArray[np.int64], reasons: _Reasons) -> None:
    ids = rollouts.column("token_ids")
    expected = np.where(_nulls(ids), lengths, list_lengths(ids))
    for name in rollouts.column_names:
        if name not in TOKEN_COLUMNS and not name.startswith(EXTRA_PREFIX):
            continue
        column = rollouts.column(name)
        if column.null_count == len(column):
            continue
        own = list_lengths(column)
        differs = (own != expected) & ~_nulls(column)
        reasons.where(differs, functools.partial(_length_reason, name, own, expected))
        flat = column.combine_chunks().flatten()
        ends = np.cumsum(own)
        if flat.null_count:
            _refuse_tokens(
                flat.is_null().to_numpy(zero_copy_only=False), ends, reasons, name + " has a missing value at token"
            )
        values = pc.fill_null(flat, 0).to_numpy() if flat.null_count else flat.to_numpy()
        if name in ("token_ids", "token_policy_version"):
            _refuse_tokens(values < 0, ends, reasons, f"{name} has a negative value at token")
        elif name in TOKEN_LIMITS:
            _refuse_tokens(
                values > TOKEN_LIMITS[name],
                ends,
                reasons,
                f"{name} has a value over {TOKEN_LIMITS[name]} at token",
            )


def _length_reason(name: str, own: Any, expected: Any, row: int) -> str:
    return f"{name} has {own[row]} values, the rollout {expected[row]} tokens"


def _refuse_tokens(bad: Mask, ends: npt.NDArray[np.int64], reasons: _Reasons, what: str) -> None:
    """Refuse the rows that own a bad position of the flat column, whose rows end at `ends`; the place ends the reason."""
    positions = np.flatnonzero(bad)
    if not len(positions):
        return
    rows, first = np.unique(np.searchsorted(ends, positions, side="right"), return_index=True)
    for row, position in zip(rows.tolist(), positions[first].tolist(), strict=True):
        begin = int(ends[row - 1]) if row else 0
        reasons.by_row.setdefault(row, f"{what} {position - begin}")


def _check_details(rollouts: pa.Table, lengths: npt.NDArray[np.int64], reasons: _Reasons) -> None:
    reasons.where(_nulls(rollouts.column("completion")), "completion is missing; an empty one is empty bytes")
    stop = rollouts.column("stop_reason")
    unknown = pc.invert(pc.is_in(stop, value_set=pa.array(STOP_REASONS))).to_numpy()
    reasons.where(unknown, lambda row: f"stop_reason {stop[row].as_py()!r} is not one of {', '.join(STOP_REASONS)}")
    boundaries = rollouts.column("step_boundaries")
    if boundaries.null_count < len(boundaries):
        flat, own = boundaries.combine_chunks().flatten(), list_lengths(boundaries)
        values = pc.fill_null(flat, -1).to_numpy()
        outside = (values < 0) | (values > np.repeat(lengths, own))
        _refuse_tokens(outside, np.cumsum(own), reasons, "step_boundaries lie outside the tokens, at entry")
    branch = _filled(rollouts.column("branch_token"), 0)
    reasons.where((branch < 0) | (branch > lengths), lambda row: f"branch_token {branch[row]} lies outside the tokens")
    _check_each(rollouts, "drop_reason", lambda text: short_text(text, DROP_REASON_LIMIT, "drop_reason"), reasons)
    _check_each(rollouts, "transform", lambda text: json_column(text, dict), reasons)
    _check_each(rollouts, "turns", lambda data: json_column(data, list), reasons)


def _check_each(rollouts: pa.Table, name: str, check_value: Callable[[Any], Any], reasons: _Reasons) -> None:
    column = rollouts.column(name)
    if column.null_count == len(column):
        return
    for row, value in enumerate(column.to_pylist()):
        if value is not None:
            try:
                check_value(value)
            except ValueError as error:
                message = str(error)
                reasons.by_row.setdefault(row, message if message.startswith(name) else f"{name}: {message}")


def _check_spans(
    spans: pa.Table, lengths: npt.NDArray[np.int64], reasons: _Reasons, notes: list[dict[str, Any]]
) -> pa.Table:
    """The spans of known rollouts; a bad span refuses its rollout."""
    owner = _filled(spans.column("rollout"), -1).astype(np.int64)
    orphan = (owner < 0) | (owner >= len(lengths))
    for row in np.flatnonzero(orphan).tolist():
        notes.append({"kind": "refused-span", "text": f"reward span {row}: no rollout {owner[row]} in the batch"})
    start, end = (_filled(spans.column(name), -1).astype(np.int64) for name in ("token_start", "token_end"))
    length = lengths[np.where(orphan, 0, owner)] if len(lengths) else np.zeros_like(owner)
    outside = (start < 0) | (end < start) | (end > length)
    kind = spans.column("kind")
    unknown = pc.invert(pc.is_in(kind, value_set=pa.array(SPAN_KINDS))).to_numpy()
    bad = {
        "its tokens lie outside the rollout": outside,
        f"its kind is not one of {', '.join(SPAN_KINDS)}": unknown,
        "its value is missing": _nulls(spans.column("value")),
        **{f"its {name} is too long": _too_long(spans.column(name), SPAN_LIMITS[name]) for name in ("name", "version")},
    }
    for reason, mask in bad.items():
        for row in np.flatnonzero(mask & ~orphan).tolist():
            reasons.by_row.setdefault(int(owner[row]), f"reward span {row}: {reason}")
    return spans.filter(pa.array(~orphan)) if orphan.any() else spans


def _too_long(column: pa.ChunkedArray, limit: int) -> Mask:
    distinct = [text for text in column.unique().to_pylist() if text is not None]
    # Measured as it will be stored: a NUL grows when escaped.
    too_long = [text for text in distinct if len(text_from_bytes(text.encode())) > limit]
    return pc.is_in(column, value_set=pa.array(too_long, pa.string())).to_numpy()


def _spans_of(spans: pa.Table, keep: npt.NDArray[np.int64], count: int) -> pa.Table:
    """The spans of the rollouts at `keep`, their `rollout` turned into the position there."""
    position = np.full(count, -1, dtype=np.int32)
    position[keep] = np.arange(len(keep), dtype=np.int32)
    moved = position[spans.column("rollout").to_numpy()] if spans.num_rows else np.zeros(0, np.int32)
    order = np.argsort(moved, kind="stable")
    order = order[moved[order] >= 0]
    index = spans.schema.get_field_index("rollout")
    return spans.take(order).set_column(index, "rollout", pa.array(moved[order]))


def _check_metrics(metrics: pa.Table, notes: list[dict[str, Any]]) -> list[tuple[str, float]]:
    good = []
    for name, value in zip(metrics.column("name").to_pylist(), metrics.column("value").to_pylist(), strict=True):
        if value is None:
            continue
        try:
            good.append((short_text(name or "", METRIC_LIMIT, "name"), value))
        except ValueError as error:
            notes.append({"kind": "refused-metric", "text": f"metric {name[:60]!r}: {error}"})
    return good
