"""A folder that `exporting` wrote into the database, as a run of its own; all of it or nothing."""

import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError, connection, transaction
from django.db.models import Field

from rlviewer.accounts.models import Project
from rlviewer.ingest import archive
from rlviewer.ingest.archive import ArchiveError, ArchiveReader
from rlviewer.ingest.exporting import ATTEMPT_FIELDS, RUN_FIELDS
from rlviewer.ingest.metrics import POINTS
from rlviewer.ingest.models import Batch, RefusedRow
from rlviewer.ingest.preparing import prepare
from rlviewer.ingest.prompts import update_trackers
from rlviewer.ingest.services import store_prepared
from rlviewer.ingest.validation import METRIC_LIMIT, SPLIT_LIMIT, short_text
from rlviewer.lib.json import JsonError, dumps, loads
from rlviewer.lib.text import text_from_bytes
from rlviewer.outbox.services import announce_run
from rlviewer.runs.models import Attempt, Checkpoint, MetricChunk, Prompt, Run, RunState, Vocabulary
from training import vocabulary
from training.records import GROUPS, METRICS, REWARD_SPANS, ROLLOUTS, BatchHeader, RecordError, RolloutBatch, complete

SOURCE = "import"
SHAPES = {"tags": list, "config": dict, "plugins": dict, "hardware": dict}


def import_run(folder: Path, project: Project) -> Run:
    """A new run made of an exported folder; importing again makes another one.

    Raises:
        ArchiveError: the folder is damaged or holds what no export writes; nothing is stored then.
    """
    reader = ArchiveReader.open(folder)
    reader.check_all()
    with transaction.atomic():
        run, attempts = _make_run(reader, project)
        steps = _Steps(reader)
        for part in reader.parts():
            _store_part(reader, run, steps, part)
        for place in list(steps.left):
            # A step that brought nothing but its metrics and times.
            empty = [schema.empty_table() for schema in (ROLLOUTS, GROUPS, METRICS, REWARD_SPANS)]
            _store(reader, RolloutBatch(steps.header(run, place), *empty))
        _store_metrics(reader, run, attempts)
        _store_trackers(reader, run)
        _store_checkpoints(reader, run, attempts)
        _store_refused(reader, run, attempts)
        announce_run(run.pk, project.pk, "run-imported")
    run.refresh_from_db()
    return run


def _make_run(reader: ArchiveReader, project: Project) -> tuple[Run, dict[int, Attempt]]:
    where = reader.folder / archive.MANIFEST
    run = Run(project=project, vocabulary=_vocabulary(reader), **_facts(reader.run, RUN_FIELDS, where))
    attempts = [Attempt(**_facts(raw, ATTEMPT_FIELDS, where)) for raw in reader.attempts]
    by_number = {attempt.number: attempt for attempt in attempts}
    if len(by_number) < len(attempts) or run.current_attempt not in by_number:
        raise ArchiveError(
            f"{where}: attempts {sorted(by_number)} with attempt {run.current_attempt} as the current one"
        )
    for name, kind in SHAPES.items():
        if not isinstance(getattr(run, name), kind):
            raise ArchiveError(f"{where}: {name}: must be {'an object' if kind is dict else 'a list'}")
    _save(run, where)
    for attempt in attempts:
        attempt.run = run
        _save(attempt, where)
    return run, by_number


def _save(row: Run | Attempt, where: Path) -> None:
    created_at = row.created_at
    try:
        if row.state not in RunState.values or not RunState(row.state).is_terminal:
            raise ArchiveError(f"{where}: state {row.state!r} is not that of something that is over")
        row.clean_fields(exclude=[field.name for field in row._meta.fields if _may_be_empty(row, field)])
        row.save()
        # Django sets this one to the present when a row is made.
        type(row).objects.filter(pk=row.pk).update(created_at=created_at)
    except ValidationError as error:
        wrong = "; ".join(f"{name}: {' '.join(messages)}" for name, messages in error.message_dict.items())
        raise ArchiveError(f"{where}: {wrong}") from error
    except (TypeError, ValueError, DataError, IntegrityError) as error:
        raise error if isinstance(error, ArchiveError) else ArchiveError(f"{where}: {error}") from error


def _may_be_empty(row: Run | Attempt, field: "Field[Any, Any]") -> bool:
    """Forms would ask a person for these; the database takes them empty."""
    value = getattr(row, field.attname)
    return value in ("", [], {}) or (value is None and (field.null or field.primary_key))


def _facts(raw: Any, names: tuple[str, ...], where: Path) -> dict[str, Any]:
    if not isinstance(raw, dict) or set(raw) != set(names):
        found = ", ".join(sorted(map(str, raw)))[:300] if isinstance(raw, dict) else type(raw).__name__
        raise ArchiveError(f"{where}: a run or attempt must hold {', '.join(names)}; it holds {found}")
    return {name: _moment(value, where) if name.endswith("_at") else value for name, value in raw.items()}


def _moment(value: Any, where: Path) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except (ValueError, TypeError) as error:
        raise ArchiveError(f"{where}: {value!r} is no time") from error
    if moment.tzinfo is None or not 2 <= moment.year <= 9998:
        raise ArchiveError(f"{where}: {value!r} is no time with a zone that a database can keep")
    return moment


def _vocabulary(reader: ArchiveReader) -> Vocabulary | None:
    if archive.VOCABULARY not in reader.files:
        return None
    payload = reader.read_bytes(archive.VOCABULARY)
    try:
        size = len(vocabulary.unpack(payload))
    except ValueError as error:
        raise ArchiveError(f"{reader.folder / archive.VOCABULARY}: {error}") from error
    digest = bytes.fromhex(reader.files[archive.VOCABULARY]["sha256"])
    return Vocabulary.objects.get_or_create(sha256=digest, defaults={"size": size, "payload": payload})[0]


class _Steps:
    """The rows of steps.parquet, taken one by one as their rollouts come."""

    def __init__(self, reader: ArchiveReader) -> None:
        rows = reader.read_table("steps.parquet", archive.STEPS).to_pylist()
        self.left = {(row["attempt"], row["split"], row["step"]): row for row in rows}
        self._where = reader.folder / "steps.parquet"
        if len(self.left) < len(rows):
            raise ArchiveError(f"{self._where}: a step appears twice")

    def header(self, run: Run, place: tuple[int, str, int]) -> BatchHeader:
        row = self.left.pop(place, None)
        if row is None:
            raise ArchiveError(f"{self._where}: step {place} is missing or appears in two parts")
        try:
            seconds, events = loads(row["phase_seconds"] or "{}"), loads(row["events"] or "[]")
        except JsonError as error:
            raise ArchiveError(f"{self._where}: step {place}: {error}") from error
        return BatchHeader(
            batch_id=str(uuid.uuid5(run.uid, f"{place}")),
            run_uid=str(run.uid),
            attempt=place[0],
            split=place[1],
            step=place[2],
            phase_seconds=seconds,
            events=events,
            written_at="" if row["written_at"] is None else row["written_at"].isoformat(),
        )


def _store_part(reader: ArchiveReader, run: Run, steps: _Steps, part: str) -> None:
    groups = reader.read_table(f"groups-{part}.parquet", archive.ARCHIVED_GROUPS)
    rollouts = reader.read_table(f"rollouts-{part}.parquet", archive.ARCHIVED_ROLLOUTS)
    spans = reader.read_table(f"spans-{part}.parquet", archive.SPANS)
    taken = 0
    for place in _places(groups):
        own = [_rows_at(table, place) for table in (groups, rollouts, spans)]
        taken += sum(table.num_rows for table in own)
        _store(reader, _batch(steps.header(run, place), *own))
    if taken < groups.num_rows + rollouts.num_rows + spans.num_rows:
        raise ArchiveError(f"{reader.folder}: part {part} holds rollouts or spans of a step without groups")


def _store(reader: ArchiveReader, batch: RolloutBatch) -> None:
    """Store one step, as any other batch; here a row that would be refused is a damaged folder."""
    header = batch.header
    where = f"{reader.folder}: attempt {header.attempt}, {header.split} step {header.step}"
    try:
        prepared = prepare(batch)
    except RecordError as error:
        raise ArchiveError(f"{where}: {error}") from error
    for refusal in prepared.checked.refused:
        raise ArchiveError(f"{where}: rollout {refusal.row_index}: {refusal.reason}")
    if prepared.checked.events != dumps(header.events):
        raise ArchiveError(f"{where}: {prepared.checked.events[-300:]}")
    if store_prepared(prepared, source=SOURCE, announces=False).parked:
        raise ArchiveError(f"{where}: the manifest names no such attempt")


def _places(groups: pa.Table) -> Iterator[tuple[int, str, int]]:
    columns = [groups.column(name).to_pylist() for name in ("attempt", "split", "step")]
    yield from dict.fromkeys(zip(*columns, strict=True))


def _rows_at(table: pa.Table, place: tuple[int, str, int]) -> pa.Table:
    attempt, split, step = place
    here = pc.and_(
        pc.equal(table["attempt"], attempt), pc.and_(pc.equal(table["split"], split), pc.equal(table["step"], step))
    )
    return table.filter(here).drop_columns(["attempt", "split", "step"])


def _batch(header: BatchHeader, groups: pa.Table, rollouts: pa.Table, spans: pa.Table) -> RolloutBatch:
    """A step's rows as its trainer wrote them: indexes of groups and rollouts become row numbers."""
    rollouts = _with_column(
        rollouts, "group", pc.index_in(rollouts["group"], value_set=groups["index"].combine_chunks())
    )
    spans = _with_column(spans, "group", pc.index_in(spans["group"], value_set=groups["index"].combine_chunks()))
    owner = pc.index_in(_keys(spans), value_set=_keys(rollouts))
    spans = spans.drop_columns(["group", "number"]).append_column("rollout", owner)
    return RolloutBatch(
        header,
        complete(rollouts, ROLLOUTS),
        complete(groups, GROUPS),
        METRICS.empty_table(),
        complete(spans, REWARD_SPANS),
    )


def _with_column(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


def _keys(table: pa.Table) -> pa.Array:
    """One number for group and number in it."""
    wide = pc.multiply(pc.cast(table["group"], pa.int64()), 2**16)
    return pc.add(wide, pc.cast(table["number"], pa.int64())).combine_chunks()


def _store_metrics(reader: ArchiveReader, run: Run, attempts: dict[int, Attempt]) -> None:
    series: dict[tuple[int, str], tuple[list[int], list[float]]] = {}
    for row in reader.read_table("metrics.parquet", archive.METRIC_POINTS).to_pylist():
        if None in row.values() or row["attempt"] not in attempts or row["step"] < 0:
            raise ArchiveError(f"{reader.folder / 'metrics.parquet'}: {row} is no point of this run")
        steps, values = series.setdefault((row["attempt"], row["name"]), ([], []))
        steps.append(row["step"])
        values.append(row["value"])
    chunks = []
    for (attempt, name), (steps, values) in series.items():
        try:
            stored_name = short_text(name, METRIC_LIMIT, "metric name")
        except ValueError as error:
            raise ArchiveError(f"{reader.folder / 'metrics.parquet'}: {error}") from error
        for part, start in enumerate(range(0, len(steps), POINTS)):
            end = start + POINTS
            chunks.append(
                MetricChunk(
                    run=run,
                    attempt=attempts[attempt],
                    name=stored_name,
                    part=part,
                    steps=steps[start:end],
                    values=values[start:end],
                )
            )
    MetricChunk.objects.bulk_create(chunks, batch_size=500)


def _store_trackers(reader: ArchiveReader, run: Run) -> None:
    rows = reader.read_table("trackers.parquet", archive.TRACKERS).to_pylist()
    digests = [row["prompt"] for row in rows]
    ids = dict(
        Prompt.objects.filter(project=run.project_id, digest__in=[d for d in digests if d]).values_list("digest", "id")
    )
    ids = {bytes(digest): prompt_id for digest, prompt_id in ids.items()}
    if missing := [digest for digest in digests if digest not in ids]:
        raise ArchiveError(f"{reader.folder / 'trackers.parquet'}: no group has the prompt {missing[0]!r}")
    with connection.cursor() as cursor:
        update_trackers(cursor, run.pk, rows, [ids[digest] for digest in digests])


def _store_checkpoints(reader: ArchiveReader, run: Run, attempts: dict[int, Attempt]) -> None:
    """Checkpoints are remembered; their files stayed where they were written."""
    rows = reader.read_table("checkpoints.parquet", archive.CHECKPOINTS).to_pylist()
    for row in rows:
        if None in row.values() or row["attempt"] not in attempts or len(row["sha256"]) > 64:
            raise ArchiveError(f"{reader.folder / 'checkpoints.parquet'}: {row} is no checkpoint of this run")
    made = Checkpoint.objects.bulk_create(
        Checkpoint(
            run=run, attempt=attempts[row["attempt"]], step=row["step"], size_bytes=row["size_bytes"],
            sha256=row["sha256"], is_deleted=True,
        )
        for row in rows
    )  # fmt: skip
    for checkpoint, row in zip(made, rows, strict=True):
        Checkpoint.objects.filter(pk=checkpoint.pk).update(saved_at=row["saved_at"])


def _store_refused(reader: ArchiveReader, run: Run, attempts: dict[int, Attempt]) -> None:
    """Rows refused at first are kept refused, under entries of their own in the ledger."""
    batches: dict[tuple[Any, ...], Batch] = {}
    refused: list[RefusedRow] = []
    seen: Counter[tuple[Any, ...]] = Counter()
    for row in reader.read_table("refused.parquet", archive.REFUSED).to_pylist():
        if None in row.values() or row["attempt"] not in attempts or len(row["split"]) > SPLIT_LIMIT:
            raise ArchiveError(f"{reader.folder / 'refused.parquet'}: a row names no step of this run")
        place = (row["attempt"], row["split"], row["step"])
        # Two batches of one step may each have refused a row with the same number.
        turn = seen[*place, row["row_index"]]
        seen[*place, row["row_index"]] += 1
        batch = batches.get((*place, turn))
        if batch is None:
            batch = batches[*place, turn] = Batch(
                id=uuid.uuid5(run.uid, f"refused {place} {turn}"), run=run, attempt=attempts[row["attempt"]],
                split=row["split"], step_index=row["step"], source=SOURCE, received=0, stored=0, refused=0,
            )  # fmt: skip
        batch.received += 1
        batch.refused += 1
        reason = text_from_bytes(row["reason"].encode())
        refused.append(RefusedRow(batch=batch, row_index=row["row_index"], reason=reason, payload=row["payload"]))
    Batch.objects.bulk_create(batches.values())
    RefusedRow.objects.bulk_create(refused, batch_size=100)
