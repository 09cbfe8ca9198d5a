"""What a batch of rollouts holds, and its one file format. Imports no torch.

A batch file is: 8 magic bytes, the header's length (uint32, little endian), the header (strict JSON), four Arrow IPC
streams (rollouts, groups, metrics, reward_spans; lz4), and the SHA-256 of everything before it. Arrays of floats travel as
Arrow lists, so NaN, infinities and -0.0 arrive bit for bit; texts travel as bytes.
"""

import hashlib
import json
import struct
import uuid
from dataclasses import dataclass, field, fields
from typing import Any, Self

import pyarrow as pa

MAGIC = b"RLVBAT1\n"
DIGEST_BYTES = 32
# Hundreds of buffers of a few hundred bytes: zstd takes ten times as long to set itself up for each. Threads of its own would
# take the trainer's cores.
COMPRESSION = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)

STOP_REASONS = ("stop", "length", "error")
# Value of the per-token `origin` column.
ORIGINS = ("prompt", "prefix", "generated", "feedback", "environment")
# Value of the per-token `clip_flag` column.
CLIP_FLAGS = ("kept", "clipped_high", "clipped_low", "masked")

# Per-token columns of a rollout, each as long as its token_ids or null when the source has none.
# Order and types are part of the packed chunk's version (rlviewer/runs/tokens.py).
TOKEN_COLUMNS: dict[str, pa.DataType] = {
    "token_ids": pa.int32(),  # every token after the group's prompt
    "sampler_logprobs": pa.float32(),  # nats, weights that sampled
    "policy_logprobs": pa.float32(),  # nats, weights being trained, at the step's last update
    "recomputed_logprobs": pa.float32(),  # nats, sampling weights, recomputed by the trainer
    "ref_logprobs": pa.float32(),  # nats, frozen reference
    "entropy": pa.float32(),  # nats, of the sampling distribution
    "token_advantages": pa.float32(),
    "token_weights": pa.float32(),
    "loss_mask": pa.uint8(),  # 1 where the token counts
    "clip_flag": pa.uint8(),  # index into CLIP_FLAGS
    "origin": pa.uint8(),  # index into ORIGINS
    "token_policy_version": pa.int32(),  # steps trained when this token was sampled
}
# Further per-token float columns are named "x_" + name (teacher divergence, influence score, ...).
EXTRA_PREFIX = "x_"

ROLLOUTS = pa.schema(
    [
        ("group", pa.int32()),  # row of the groups stream
        ("number", pa.int16()),  # in the group, from 0
        ("completion", pa.large_binary()),  # UTF-8 as decoded; may be invalid
        ("reward", pa.float64()),  # null: not scored; unit of the reward function, unscaled
        ("advantage", pa.float64()),
        ("correct", pa.bool_()),
        ("kept", pa.bool_()),  # entered the update
        ("drop_reason", pa.string()),
        ("stop_reason", pa.string()),
        ("parsed_answer", pa.large_binary()),
        ("answer_cluster", pa.int32()),
        ("policy_version", pa.int32()),
        ("staleness_steps", pa.int32()),
        ("seed", pa.int64()),
        ("cost_seconds", pa.float32()),
        ("feedback", pa.large_binary()),  # text of the checker
        ("transform", pa.string()),  # JSON {name, parameters} of the prompt transform; null: none
        ("source_rollout", pa.string()),  # rollout a prefix came from
        ("tree_parent", pa.int16()),  # number in the group of the parent in a tree
        ("branch_token", pa.int32()),
        ("step_boundaries", pa.list_(pa.int32())),  # token positions
        ("sketch", pa.large_binary()),  # n-gram sketch for diversity
        ("turns", pa.large_binary()),  # JSON list of turns for chat and tool episodes; null: plain text
        *[(name, pa.list_(kind)) for name, kind in TOKEN_COLUMNS.items()],
    ]
)
GROUPS = pa.schema(
    [
        ("index", pa.int32()),  # number in the step, from 0
        ("prompt", pa.large_binary()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("generator", pa.string()),
        ("parameters", pa.string()),  # JSON
        ("difficulty", pa.float64()),
        ("task_seed", pa.int64()),
        ("answer", pa.large_binary()),
        ("oracle_trace", pa.large_binary()),  # JSON: [{"text": ..., "start": ..., "end": ...}, ...]
        ("size_asked", pa.int32()),
        ("size_got", pa.int32()),
        ("reward_mean", pa.float64()),
        ("reward_std", pa.float64()),
        ("success_share", pa.float64()),
        ("dead_cause", pa.string()),
        ("kept", pa.bool_()),
        ("drop_reason", pa.string()),
        ("stratum_keys", pa.string()),  # JSON
        ("sampling", pa.string()),  # JSON: temperature, top_p, top_k, min_p, max_new_tokens
        ("base_pass_rate", pa.float64()),
        ("base_samples", pa.int32()),
        ("tracker_value", pa.float64()),
        ("tracker_count", pa.float64()),
        ("tracker_last_seen", pa.int32()),
        ("sampling_weight", pa.float64()),
        ("queue_state", pa.string()),
    ]
)
METRICS = pa.schema([("name", pa.string()), ("value", pa.float64())])
REWARD_SPANS = pa.schema(
    [
        ("rollout", pa.int32()),  # row of the rollouts stream
        ("token_start", pa.int32()),
        ("token_end", pa.int32()),
        ("value", pa.float64()),
        ("kind", pa.string()),  # outcome, process, format, penalty, shaping
        ("name", pa.string()),
        ("version", pa.string()),
    ]
)


class RecordError(ValueError):
    """A batch that cannot be read: says where, what was found, what to do."""


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """Whose batch it is. `batch_id` makes storing it twice harmless."""

    batch_id: str  # UUID
    run_uid: str  # UUID
    attempt: int  # from 1
    step: int  # training step, or checkpoint_step for an evaluation
    split: str = "train"  # "train", or the evaluation set's name
    phase_seconds: dict[str, float] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    written_at: str = ""  # ISO 8601, the writer's clock
    source: str = "rlviewer"
    format_version: int = 1


HEADER_FIELDS = tuple(f.name for f in fields(BatchHeader))


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """Rollouts of one step, with their groups, the step's metrics and the reward spans.

    A writer may leave columns out that are null throughout, and give single record batches; a reader has all columns, in tables.
    """

    header: BatchHeader
    rollouts: pa.Table | pa.RecordBatch
    groups: pa.Table | pa.RecordBatch
    metrics: pa.Table | pa.RecordBatch
    reward_spans: pa.Table | pa.RecordBatch

    def to_bytes(self) -> bytes:
        header = json.dumps({name: getattr(self.header, name) for name in HEADER_FIELDS}, allow_nan=False).encode()
        parts = [MAGIC, struct.pack("<I", len(header)), header]
        for table in (self.rollouts, self.groups, self.metrics, self.reward_spans):
            # A sink of Arrow's own: one of Python would take the interpreter from the training loop for every buffer.
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema, options=COMPRESSION) as writer:
                writer.write(table)
            stream = sink.getvalue()
            parts += [struct.pack("<Q", stream.size), stream]
        body = b"".join(parts)
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Self:
        """Read a batch; `where` names the file or request in errors.

        Raises:
            RecordError: not a batch, cut short, or damaged.
        """
        if data[: len(MAGIC)] != MAGIC:
            raise RecordError(f"{where}: not a batch file (it starts with {data[:8]!r}, not {MAGIC!r})")
        body, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
        if len(data) < len(MAGIC) + 4 + DIGEST_BYTES or hashlib.sha256(body).digest() != digest:
            raise RecordError(
                f"{where}: damaged or cut short ({len(data)} bytes, checksum differs); it is kept as it is"
            )
        try:
            return cls._parse(body)
        except (KeyError, TypeError, ValueError, struct.error, pa.ArrowException) as error:
            raise RecordError(f"{where}: unreadable batch: {error}") from error

    @classmethod
    def _parse(cls, body: bytes) -> Self:
        offset = len(MAGIC)
        (length,) = struct.unpack_from("<I", body, offset)
        offset += 4
        raw = json.loads(body[offset : offset + length])
        offset += length
        header = BatchHeader(**{key: value for key, value in raw.items() if key in HEADER_FIELDS})
        uuid.UUID(header.batch_id)
        uuid.UUID(header.run_uid)
        tables = []
        for schema in (ROLLOUTS, GROUPS, METRICS, REWARD_SPANS):
            (size,) = struct.unpack_from("<Q", body, offset)
            offset += 8
            with pa.ipc.open_stream(pa.py_buffer(body)[offset : offset + size]) as reader:
                tables.append(complete(reader.read_all(), schema))
            offset += size
        return cls(header, *tables)


def complete(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with every column of `schema` in its order, missing ones null; `x_` columns follow.

    Raises:
        ValueError: a column has another type, or a name that the schema does not know.
    """
    given = dict(zip(table.column_names, table.columns, strict=True))
    columns = {}
    for wanted in schema:
        name, kind = wanted.name, wanted.type
        column = given.pop(name, None)
        if column is None:
            column = pa.nulls(table.num_rows, kind)
        columns[name] = column if column.type == kind else column.cast(kind)
    for name, column in given.items():
        if not name.startswith(EXTRA_PREFIX):
            raise ValueError(f"unknown column {name!r}; a further per-token column is named {EXTRA_PREFIX}NAME")
        columns[name] = column.cast(pa.list_(pa.float32()))
    return pa.table(columns)
