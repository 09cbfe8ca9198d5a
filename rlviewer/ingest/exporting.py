"""A run out of the database into a folder, from which `importing` makes the same run again."""

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from django.db import connection, transaction
from django.db.models import Model

from rlviewer.ingest import archive
from rlviewer.ingest.archive import ArchiveError, ArchiveWriter
from rlviewer.ingest.models import RefusedRow
from rlviewer.ingest.prompts import TRACKED
from rlviewer.lib.json import dumps
from rlviewer.lib.text import bytes_from_text
from rlviewer.runs.models import (
    Attempt,
    Checkpoint,
    Group,
    MetricChunk,
    PromptTracker,
    RewardPart,
    Rollout,
    Run,
    RunState,
    Step,
    StopReason,
    TokenChunk,
)
from rlviewer.runs.tokens import PackedRollout, unpack_chunk
from training.records import EXTRA_PREFIX
from training.spool import fsync_folder

# What a manifest says of a run and of an attempt. Whose run it is, and what a person wants of it now, stays here.
RUN_FIELDS = (
    "name", "state", "state_reason", "queue", "algorithm", "task", "model", "base_model", "dataset", "seed", "steps_planned",
    "config", "config_toml", "plugins", "code_version", "hardware", "repeat_group", "source", "tags", "archived",
    "created_at", "started_at", "ended_at", "current_attempt",
)  # fmt: skip
ATTEMPT_FIELDS = (
    "number", "state", "reason", "resumed_from_step", "host", "pid", "exit_code", "signal", "deaths", "created_at",
    "started_at", "ended_at",
)  # fmt: skip
UNFINISHED = "exported while it was not over"
NARROW = (
    "number", "reward", "advantage", "correct", "kept", "drop_reason", "stop_reason", "policy_version",
    "staleness_steps", "answer_cluster",
)  # fmt: skip


GROUP_FIELDS = ("index", "size_asked", "size_got", "reward_mean", "reward_std", "success_share", "kept", "task_seed")


@dataclass(frozen=True, slots=True)
class ExportSummary:
    steps: int
    rollouts: int


def export_run(run: Run, folder: Path) -> ExportSummary:
    """Write a run into `folder`, which must not exist; it appears only when it is whole.

    Raises:
        ArchiveError: the folder exists, or the run holds what this version cannot export.
    """
    if folder.exists() or folder.is_symlink():
        raise ArchiveError(f"{folder} exists already; name a folder that does not")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    part.mkdir()
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            if not connection.savepoint_ids:
                # One snapshot for all queries, so that a run that is still growing comes out consistent.
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            summary = _write_run(Run.objects.get(pk=run.pk), ArchiveWriter(part))
        fsync_folder(part)
        part.rename(folder)
        fsync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return summary


def _write_run(run: Run, writer: ArchiveWriter) -> ExportSummary:
    if (
        later := TokenChunk.objects.filter(group__run=run)
        .exclude(kind="sampled")
        .values_list("kind", flat=True)
        .first()
    ):
        raise ArchiveError(f"run {run.pk} holds values appended later ({later}), which this version cannot export")
    # Sorted here, since another database may sort texts otherwise.
    steps = sorted(
        Step.objects.filter(run=run).select_related("attempt"),
        key=lambda step: (step.attempt.number, step.index, step.split),
    )
    writer.add_table("steps.parquet", _table(archive.STEPS, (_step_row(step) for step in steps)))
    for number, part in enumerate(_parts(steps)):
        _write_part(writer, f"{number:05d}", part)
    writer.add_table("metrics.parquet", _table(archive.METRIC_POINTS, _metric_rows(run)))
    writer.add_table("trackers.parquet", _table(archive.TRACKERS, _tracker_rows(run)))
    writer.add_table("checkpoints.parquet", _table(archive.CHECKPOINTS, _checkpoint_rows(run)))
    writer.add_table("refused.parquet", _table(archive.REFUSED, _refused_rows(run)))
    if run.vocabulary is not None:
        writer.add_bytes(archive.VOCABULARY, bytes(run.vocabulary.payload), run.vocabulary.size)
    attempts = [_facts(attempt, ATTEMPT_FIELDS, "reason") for attempt in run.attempts.order_by("number")]
    writer.finish(_facts(run, RUN_FIELDS, "state_reason"), attempts)
    return ExportSummary(len(steps), sum(step.rollout_count for step in steps))


def _facts(row: Run | Attempt, names: Iterable[str], reason: str) -> dict[str, Any]:
    facts = {name: getattr(row, name) for name in names}
    for name, value in facts.items():
        if name.endswith("_at"):
            facts[name] = None if value is None else value.isoformat()
    if not RunState(row.state).is_terminal:
        facts |= {"state": RunState.STOPPED.value, reason: UNFINISHED}
    return facts


def _table(schema: pa.Schema, rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema)


def _place(step: Step) -> dict[str, Any]:
    return {"attempt": step.attempt.number, "split": step.split, "step": step.index}


def _step_row(step: Step) -> dict[str, Any]:
    return {
        **_place(step),
        "phase_seconds": dumps(step.phase_seconds),
        "events": dumps(step.events),
        "written_at": step.written_at,
    }


def _parts(steps: list[Step]) -> Iterator[list[Step]]:
    """Steps one after another, as many as fit one file."""
    part: list[Step] = []
    for step in steps:
        if part and sum(s.rollout_count for s in part) + step.rollout_count > archive.ROLLOUTS_PER_FILE:
            yield part
            part = []
        part.append(step)
    if part:
        yield part


def _write_part(writer: ArchiveWriter, number: str, steps: list[Step]) -> None:
    groups: list[dict[str, Any]] = []
    rollouts: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []
    for step in steps:
        place, chunks = _place(step), _unpacked(step)
        for group in Group.objects.filter(step=step).select_related("prompt").order_by("index"):
            prompt_ids = next((chunk.prompt_ids for key, chunk in chunks.items() if key[0] == group.pk), None)
            groups.append(place | _group_row(group, prompt_ids))
        stored = Rollout.objects.filter(group__step=step).select_related("group").order_by("group__index", "number")
        for rollout in stored:
            packed = chunks[rollout.group_id, rollout.chunk_id].rollouts[rollout.position]
            rollouts.append(place | {"group": rollout.group.index} | _rollout_row(rollout, packed))
        parts = RewardPart.objects.filter(rollout__group__step=step).select_related("rollout__group")
        for span in parts.order_by("rollout__group__index", "rollout__number", "part"):
            spans.append(place | {"group": span.rollout.group.index, "number": span.rollout.number} | _span_row(span))
    extras = sorted({name for row in rollouts for name in row if name.startswith(EXTRA_PREFIX)})
    schema = pa.schema([*archive.ARCHIVED_ROLLOUTS, *((name, pa.list_(pa.float32())) for name in extras)])
    writer.add_table(f"groups-{number}.parquet", _table(archive.ARCHIVED_GROUPS, groups))
    writer.add_table(f"rollouts-{number}.parquet", _table(schema, rollouts))
    writer.add_table(f"spans-{number}.parquet", _table(archive.SPANS, spans))


def _unpacked(step: Step) -> dict[tuple[int, int], Any]:
    chunks = TokenChunk.objects.filter(group__step=step).order_by("group__index", "part")
    return {(chunk.group_id, chunk.pk): unpack_chunk(bytes(chunk.payload)) for chunk in chunks}


def _group_row(group: Group, prompt_ids: Any) -> dict[str, Any]:
    prompt = group.prompt
    return {
        **_values(group, GROUP_FIELDS),
        "prompt": bytes(prompt.text),
        "prompt_ids": prompt_ids,
        "generator": _bytes_text(prompt.generator),
        "parameters": dumps(prompt.parameters),
        "difficulty": prompt.difficulty,
        "answer": _bytes_or_none(prompt.answer),
        "oracle_trace": _bytes_or_none(prompt.oracle_trace),
        "dead_cause": _bytes_text(group.dead_cause),
        "drop_reason": _bytes_text(group.drop_reason),
        "stratum_keys": None if group.stratum_keys is None else dumps(group.stratum_keys),
        "sampling": dumps(group.sampling),
    }


def _bytes_text(text: str) -> str:
    """The text that a writer gave: short texts are stored escaped."""
    return bytes_from_text(text).decode("utf-8", "surrogatepass")


def _bytes_or_none(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _rollout_row(rollout: Rollout, packed: PackedRollout) -> dict[str, Any]:
    row = {name: getattr(rollout, name) for name in NARROW}
    row["drop_reason"] = _bytes_text(rollout.drop_reason) or None
    row["stop_reason"] = StopReason(rollout.stop_reason).label
    return row | {"completion": packed.completion} | packed.details | packed.columns


def _span_row(span: RewardPart) -> dict[str, Any]:
    return {
        "token_start": span.token_start,
        "token_end": span.token_end,
        "value": span.value,
        "kind": span.kind,
        "name": _bytes_text(span.name) or None,
        "version": _bytes_text(span.version) or None,
    }


def _metric_rows(run: Run) -> Iterator[dict[str, Any]]:
    chunks = MetricChunk.objects.filter(run=run).select_related("attempt")
    for chunk in sorted(chunks, key=lambda chunk: (chunk.attempt.number, chunk.name, chunk.part)):
        for step, value in zip(chunk.steps, chunk.values, strict=True):
            yield {"attempt": chunk.attempt.number, "name": _bytes_text(chunk.name), "step": step, "value": value}


def _tracker_rows(run: Run) -> Iterator[dict[str, Any]]:
    trackers = PromptTracker.objects.filter(run=run).select_related("prompt")
    for tracker in sorted(trackers, key=lambda tracker: bytes(tracker.prompt.digest)):
        row = {name: getattr(tracker, column) for name, column in TRACKED.items()}
        yield row | {"prompt": bytes(tracker.prompt.digest), "queue_state": _bytes_text(tracker.queue_state) or None}


def _checkpoint_rows(run: Run) -> Iterator[dict[str, Any]]:
    for checkpoint in Checkpoint.objects.filter(run=run).select_related("attempt").order_by("attempt__number", "step"):
        yield {"attempt": checkpoint.attempt.number} | _values(checkpoint, archive.CHECKPOINTS.names[1:])


def _refused_rows(run: Run) -> list[dict[str, Any]]:
    rows = [
        {
            "attempt": row.batch.attempt.number,
            "split": row.batch.split,
            "step": row.batch.step_index,
            "row_index": row.row_index,
            "reason": row.reason,
            "payload": bytes(row.payload),
        }
        for row in RefusedRow.objects.filter(batch__run=run).select_related("batch__attempt")
    ]
    return sorted(rows, key=lambda row: tuple(row.values()))


def _values(row: Model, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}
