"""What a filter finds as a file, a batch of rows at a time, so that any number of rollouts needs little memory."""

import base64
import csv
import io
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from asgiref.sync import sync_to_async
from django.db import close_old_connections, connection

from rlviewer.lib.json import dumps
from rlviewer.lib.text import bytes_from_text
from rlviewer.review.queries import labels_of
from rlviewer.runs.models import Group, Rollout, StopReason, TokenChunk
from rlviewer.runs.queries.rollout import vocabulary_pieces
from rlviewer.runs.tokens import PackedRollout, unpack_chunk
from rlviewer.search.browse import Search, Sort
from rlviewer.search.fields import COLUMNS, FIELDS, Field
from rlviewer.search.lines import TEXT_ONLY

Record = dict[str, Any]
ARROW_TYPES = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
SCHEMA = pa.schema(
    [
        *((name, ARROW_TYPES.get(FIELDS[name].kind, pa.string())) for name in COLUMNS),
        ("prompt_text", pa.large_binary()),
        ("reference_answer", pa.large_binary()),
        ("completion", pa.large_binary()),
        ("labels", pa.string()),
    ]
)
TEXTS = ("prompt_text", "reference_answer", "completion")
BY_GROUP = Sort(Field("group", "group", "int", "group_id", ""))
ROWS_A_BATCH = 250


@dataclass(frozen=True, slots=True)
class Format:
    ending: str
    content_type: str
    write: Callable[[Search, Sort], Iterator[bytes]]


def records(search: Search, sort: Sort) -> Iterator[list[Record]]:
    """Rollouts with every stored value, their prompt and their completion as bytes, and their labels. Four queries a batch."""
    paths = [FIELDS[name].path for name in COLUMNS]
    for ids in search.batches(sort, size=ROWS_A_BATCH):
        stored = Rollout.objects.filter(pk__in=ids).values_list("pk", "chunk_id", "position", "group_id", *paths)
        rows = {row[0]: row[1:] for row in stored}
        chunks = {
            pk: unpack_chunk(payload, columns=TEXT_ONLY)
            for pk, payload in TokenChunk.objects.filter(pk__in={row[0] for row in rows.values()}).values_list(
                "pk", "payload"
            )
        }
        groups = Group.objects.filter(pk__in={row[2] for row in rows.values()})
        prompts: dict[int, list[Any]] = {
            pk: texts for pk, *texts in groups.values_list("pk", "prompt__text", "prompt__answer")
        }
        labels = labels_of(ids)
        batch = []
        for pk in ids:
            chunk_id, position, group_id, *values = rows[pk]
            text, answer = prompts[group_id]
            batch.append(
                {name: _plain(name, value) for name, value in zip(COLUMNS, values, strict=True)}
                | {"prompt_text": bytes(text), "reference_answer": None if answer is None else bytes(answer)}
                | {"completion": chunks[chunk_id].rollouts[position].completion, "group_key": group_id}
                | {"labels": labels.get(pk, [])}
            )
        yield batch


def _plain(name: str, value: Any) -> Any:
    if name == "stop":
        return StopReason(value).label
    return bytes_from_text(value).decode("utf-8", "replace") if isinstance(value, str) else value


def jsonl(search: Search, sort: Sort) -> Iterator[bytes]:
    """A line each; a text that is no UTF-8 comes also as `..._base64`."""
    for batch in records(search, sort):
        yield _lines(_json_row(record) for record in batch)


def _json_row(record: Record) -> Record:
    row = {name: value for name, value in record.items() if name != "group_key"}
    for name in TEXTS:
        if row[name] is not None:
            data = row[name]
            row[name] = _text(data)
            if row[name].encode() != data:
                row[f"{name}_base64"] = base64.b64encode(data).decode()
    return row


def csv_rows(search: Search, sort: Sort) -> Iterator[bytes]:
    """For spreadsheets: a missing value is empty, a byte that is no UTF-8 becomes U+FFFD, no text is a formula."""
    yield _csv([SCHEMA.names])
    for batch in records(search, sort):
        yield _csv([[_cell(row[name]) for name in SCHEMA.names] for row in map(_sheet_row, batch)])


def _sheet_row(record: Record) -> Record:
    """With its labels as JSON; null where nobody said anything."""
    return record | {"labels": dumps(record["labels"]) if record["labels"] else None}


def _cell(value: Any) -> Any:
    text = _text(value) if isinstance(value, bytes) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def parquet(search: Search, sort: Sort) -> Iterator[bytes]:
    """Every value to the bit, texts as bytes."""
    sink = _Drained()
    with pq.ParquetWriter(pa.PythonFile(sink, mode="w"), SCHEMA, compression="zstd") as writer:
        yield sink.take()
        for batch in records(search, sort):
            writer.write_table(pa.Table.from_pylist([*map(_sheet_row, batch)], SCHEMA))
            yield sink.take()
    yield sink.take()


class _Drained(io.RawIOBase):
    """A file that forgets what was taken from it and only counts on."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.parts.append(bytes(data))
        self.written += len(self.parts[-1])
        return len(self.parts[-1])

    def tell(self) -> int:
        return self.written

    def take(self) -> bytes:
        taken, self.parts = b"".join(self.parts), []
        return taken


def sft(search: Search, sort: Sort) -> Iterator[bytes]:
    """Prompt and completion, as trainers read them for supervised fine-tuning."""
    for batch in records(search, sort):
        yield _lines(
            {"prompt": _text(record["prompt_text"]), "completion": _text(record["completion"]), "rollout": record["id"]}
            for record in batch
        )


def pairs(search: Search, sort: Sort) -> Iterator[bytes]:
    """The best and the worst of what is found of each group, where their rewards differ; in the order of storing."""
    group: list[Record] = []
    for batch in records(search, BY_GROUP):
        found: list[Record] = []
        for record in batch:
            if group and group[0]["group_key"] != record["group_key"]:
                found += _pair(group)
                group = []
            group.append(record)
        if found:
            yield _lines(found)
    if last := _pair(group):
        yield _lines(last)


def _pair(group: Sequence[Record]) -> list[Record]:
    scored = [record for record in group if record["reward"] is not None and math.isfinite(record["reward"])]
    if not scored:
        return []
    best, worst = max(scored, key=lambda r: r["reward"]), min(scored, key=lambda r: r["reward"])
    if best["reward"] == worst["reward"]:
        return []
    sides = {"chosen": best, "rejected": worst}
    return [
        {"prompt": _text(best["prompt_text"])}
        | {name: _text(side["completion"]) for name, side in sides.items()}
        | {f"{name}_reward": side["reward"] for name, side in sides.items()}
        | {f"{name}_rollout": side["id"] for name, side in sides.items()}
    ]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _lines(rows: Iterator[Record] | Sequence[Record]) -> bytes:
    return "".join(dumps(row) + "\n" for row in rows).encode()


def _csv(rows: Sequence[Sequence[Any]]) -> bytes:
    sheet = io.StringIO()
    csv.writer(sheet).writerows(rows)
    return sheet.getvalue().encode()


def prefixes(search: Search, sort: Sort) -> Iterator[bytes]:
    """The prompt with the completion up to each boundary that its steps have; of rollouts whose tokens have texts."""
    for ids in search.batches(sort, size=ROWS_A_BATCH):
        rollouts = {
            row.pk: row for row in Rollout.objects.filter(pk__in=ids).select_related("step__run", "group__prompt")
        }
        payloads = dict(
            TokenChunk.objects.filter(pk__in={r.chunk_id for r in rollouts.values()}).values_list("pk", "payload")
        )
        columns = frozenset({"token_ids"})
        chunks = {pk: unpack_chunk(payload, columns=columns) for pk, payload in payloads.items()}
        yield _lines(
            line
            for pk in ids
            for line in _prefixes(rollouts[pk], chunks[rollouts[pk].chunk_id].rollouts[rollouts[pk].position])
        )


def _prefixes(rollout: Rollout, packed: PackedRollout) -> Iterator[Record]:
    ids, vocabulary = packed.columns.get("token_ids"), rollout.step.run.vocabulary_id
    boundaries = [int(n) for n in packed.details.get("step_boundaries", [])]
    if ids is None or vocabulary is None:
        return
    table = vocabulary_pieces(vocabulary)
    pieces = [table[n] if 0 <= n < len(table) else b"" for n in ids.tolist()]
    for boundary in boundaries:
        if 0 < boundary < len(pieces):
            yield {
                "prompt": _text(bytes(rollout.group.prompt.text)),
                "prefix": _text(b"".join(pieces[:boundary])),
                "prefix_tokens": boundary,
                "reward": rollout.reward,
                "rollout": rollout.pk,
            }


LINES = "application/jsonl"
FORMATS: dict[str, Format] = {
    "jsonl": Format("jsonl", LINES, jsonl),
    "csv": Format("csv", "text/csv; charset=utf-8", csv_rows),
    "parquet": Format("parquet", "application/vnd.apache.parquet", parquet),
    "sft": Format("jsonl", LINES, sft),
    "pairs": Format("jsonl", LINES, pairs),
    "prefixes": Format("jsonl", LINES, prefixes),
}


async def stream(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The parts as they are made, in the request's own thread. Between two of them no connection is held."""

    def following() -> bytes | None:
        try:
            return next(parts, None)
        finally:
            if not connection.in_atomic_block:
                close_old_connections()

    while (part := await sync_to_async(following)()) is not None:
        yield part
