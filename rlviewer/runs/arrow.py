"""Rollouts with every token as an Arrow IPC stream, exact to the bit."""

import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from rlviewer.runs.api_schemas import RolloutOut, columns
from rlviewer.runs.models import Group, RewardPart, StopReason, TokenChunk
from rlviewer.runs.tokens import Chunk, PackedRollout, unpack_chunk
from training.records import EXTRA_PREFIX, ROLLOUTS

CHUNKS_AT_ONCE = 16

REWARD_PART = pa.struct(
    [
        ("token_start", pa.int32()),
        ("token_end", pa.int32()),
        ("value", pa.float64()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("version", pa.string()),
    ]
)
# Who it is and what it was given; then every column of a batch file, under the same names.
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("run", pa.int64()),
        ("attempt", pa.int32()),
        ("split", pa.string()),
        ("step", pa.int32()),
        ("group", pa.int32()),  # number in the step
        ("prompt", pa.large_binary()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("answer", pa.large_binary()),
        ("generator", pa.string()),
        ("difficulty", pa.float64()),
        ("length_tokens", pa.int32()),
        ("entropy_mean", pa.float64()),
        ("logprob_mean", pa.float64()),
        ("clip_share", pa.float64()),
        *[field for field in ROLLOUTS if field.name != "group"],
        ("reward_parts", pa.list_(REWARD_PART)),
    ]
)
NARROW = {name: path for name, path in columns(RolloutOut).items() if name != "parsed_answer"}


def rollout_stream(rows: Sequence[dict[str, Any]], *, max_bytes: int) -> tuple[bytes, int]:
    """As many of `rows`, from the first, as unpack to `max_bytes` (at least one), and how many those are."""
    records: list[dict[str, Any]] = []
    size = 0
    prompts = prompts_of({row["group_id"] for row in rows})
    for row, chunk in zip(rows, chunks_of(rows), strict=True):
        packed = chunk.rollouts[row["position"]]
        size += unpacked_bytes(packed)
        if records and size > max_bytes:
            break
        records.append(
            {
                **{name: row[path] for name, path in NARROW.items()},
                "stop_reason": StopReason(row["stop_reason"]).label,
                "completion": packed.completion,
                "prompt_ids": chunk.prompt_ids,
                **prompts[row["group_id"]],
                **packed.details,
                **packed.columns,
            }
        )
    parts = reward_parts_of([record["id"] for record in records])
    for record in records:
        record["reward_parts"] = parts[record["id"]]
    return to_stream(records), len(records)


def to_stream(records: Sequence[dict[str, Any]]) -> bytes:
    extra = sorted({name for record in records for name in record if name.startswith(EXTRA_PREFIX)})
    schema = pa.schema([*SCHEMA, *[pa.field(name, pa.list_(pa.float32())) for name in extra]])
    arrays = [pa.array([record.get(field.name) for record in records], field.type) for field in schema]
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(pa.table(arrays, schema=schema))
    return sink.getvalue()


def chunks_of(rows: Sequence[dict[str, Any]]) -> Iterator[Chunk]:
    """The chunk of each row. One query for every 16 chunks, each unpacked once while rows of it follow each other."""
    wanted = list(dict.fromkeys(row["chunk_id"] for row in rows))
    payloads: dict[int, Any] = {}
    current, chunk = 0, None
    for row in rows:
        if row["chunk_id"] != current or chunk is None:
            current = row["chunk_id"]
            if current not in payloads:
                some = wanted[wanted.index(current) :][:CHUNKS_AT_ONCE]
                payloads = dict(TokenChunk.objects.filter(pk__in=some).values_list("pk", "payload"))
            chunk = unpack_chunk(payloads[current])
        yield chunk


def unpacked_bytes(packed: PackedRollout) -> int:
    return len(packed.completion) + sum(values.nbytes for values in packed.columns.values())


def prompts_of(groups: set[int]) -> dict[int, dict[str, Any]]:
    rows = Group.objects.filter(pk__in=groups).values_list(
        "pk", "prompt__text", "prompt__answer", "prompt__generator", "prompt__difficulty"
    )
    names = ("prompt", "answer", "generator", "difficulty")
    return {key: dict(zip(names, values, strict=True)) for key, *values in rows}


def reward_parts_of(rollouts: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    parts: dict[int, list[dict[str, Any]]] = defaultdict(list)
    names = [field.name for field in REWARD_PART]
    for row in RewardPart.objects.filter(rollout__in=rollouts).order_by("rollout", "part").values("rollout_id", *names):
        parts[row.pop("rollout_id")].append(row)
    return parts
