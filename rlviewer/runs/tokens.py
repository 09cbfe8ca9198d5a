"""Rollouts of a group to and from one binary column: texts, token ids and every per-token array, bit for bit.

A payload is MAGIC, the version, the header's packed and real length (uint32 each, little endian), the header (strict JSON,
zstd) and the frames it names, one after another. Per-token numbers are split into byte planes, since the exponents of
log-probabilities compress and their last bits do not; log-probabilities that nearly equal the sampler's are kept as the
difference of the two bit patterns, which is exact for NaN and -0.0 as well. A frame is one byte that repeats, the bytes
themselves, or zstd, whichever is shortest.
"""

import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from training.records import EXTRA_PREFIX, TOKEN_COLUMNS

MAGIC = b"RLVC"
VERSION = 1
PREFIX = struct.Struct("<4sBII")
MAX_ROLLOUTS = 64
MAX_HEADER_BYTES = 16 * 1024 * 1024
# All that a payload may unpack to; a hostile one could announce much more.
MAX_CHUNK_BYTES = 1024 * 1024 * 1024

# Level 1: on these bytes higher levels gain under 2 % and cost two to ten times the time.
ZSTD_LEVEL = 1
CONSTANT, RAW, ZSTD = 0, 1, 2

# These differ from the sampler's log-probabilities by little, so most high bytes of the difference are zero.
DELTA_BASE = {"policy_logprobs": "sampler_logprobs", "recomputed_logprobs": "sampler_logprobs"}
TOKEN_TYPES = ("<i4", "<f4", "|u1")

# What a rollout carries beside its narrow row and its tokens.
TEXT_DETAILS = ("parsed_answer", "feedback", "transform", "source_rollout", "sketch", "turns")
NUMBER_DETAILS = {"seed": "<i8", "cost_seconds": "<f4", "tree_parent": "<i2", "branch_token": "<i4"}
LIST_DETAILS = {"step_boundaries": "<i4"}
STRING_DETAILS = ("transform", "source_rollout")

Numbers = npt.NDArray[Any]


class ChunkError(ValueError):
    """A payload that is not a chunk or is damaged."""


@dataclass(frozen=True, slots=True)
class PackedRollout:
    """One rollout of a chunk. A column or detail that its source lacks is absent; an empty one is there and empty."""

    completion: bytes
    columns: dict[str, Numbers]
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rollouts of one group, in the order of their `position`."""

    prompt_ids: Numbers | None
    rollouts: list[PackedRollout]


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of a table of rollouts, flat: row i owns `starts[i]:starts[i + 1]` of each plane."""

    name: str
    dtype: str  # numpy's name of the numbers; "bytes" for texts
    valid: npt.NDArray[np.bool_] | None  # None: no row is null
    starts: npt.NDArray[np.int64]
    planes: list[Any]  # buffers of equal length
    base: str | None = None


class ChunkPacker:
    """Packs slices of one table of rollouts; the flat work is done once for all of them. Not for several threads."""

    def __init__(self, rollouts: pa.Table) -> None:
        self._zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        tokens = {
            name: _flat_list(rollouts.column(name), name) for name in _present(rollouts, _token_columns(rollouts))
        }
        self.lengths = token_lengths(rollouts)
        self._columns = [_planes(name, flat, tokens) for name, flat in tokens.items()]
        self._columns.append(_texts("completion", rollouts.column("completion")))
        self._columns += [_texts(name, rollouts.column(name)) for name in _present(rollouts, TEXT_DETAILS)]
        self._columns += [_numbers(name, rollouts.column(name)) for name in _present(rollouts, NUMBER_DETAILS)]
        self._columns += [_lists(name, rollouts.column(name)) for name in _present(rollouts, LIST_DETAILS)]

    def completion_bytes(self) -> npt.NDArray[np.int64]:
        """Size of each rollout's text."""
        return np.diff(next(column.starts for column in self._columns if column.name == "completion"))

    def pack(self, start: int, stop: int, prompt_ids: Numbers | None = None) -> bytes:
        """The payload of rows `start` to `stop`, at most `MAX_ROLLOUTS` of one group."""
        if not 0 < stop - start <= MAX_ROLLOUTS:
            raise ValueError(f"a chunk holds 1 to {MAX_ROLLOUTS} rollouts, got {stop - start}")
        frames: list[bytes] = []
        entries = [entry for column in self._columns if (entry := self._pack_column(column, start, stop, frames))]
        header: dict[str, Any] = {"lengths": self.lengths[start:stop].tolist(), "columns": entries}
        if prompt_ids is not None:
            data = np.ascontiguousarray(prompt_ids, "<i4").tobytes()
            header["prompt_ids"] = [len(data) // 4, self._frame(data, frames)]
        raw = json.dumps(header, separators=(",", ":")).encode()
        packed = self._zstd.compress(raw)
        return b"".join([PREFIX.pack(MAGIC, VERSION, len(packed), len(raw)), packed, *frames])

    def _pack_column(self, column: _Column, start: int, stop: int, frames: list[bytes]) -> list[Any] | None:
        entry: list[Any] = [column.name, column.dtype]
        valid = None if column.valid is None else column.valid[start:stop]
        if valid is not None and not valid.any():
            return None
        entry.append(None if valid is None or valid.all() else "".join("1" if v else "0" for v in valid))
        own_lengths = column.dtype == "bytes" or column.name in LIST_DETAILS
        entry.append(np.diff(column.starts[start : stop + 1]).tolist() if own_lengths else None)
        entry.append(column.base)
        low, high = column.starts[start], column.starts[stop]
        entry.append([self._frame(plane[low:high], frames) for plane in column.planes])
        return entry

    def _frame(self, data: Any, frames: list[bytes]) -> list[int]:
        """Append the shortest form of `data` to `frames`; returns what the header says of it."""
        plain = bytes(data)
        if plain == plain[:1] * len(plain):
            return [CONSTANT, plain[0] if plain else 0]
        packed = self._zstd.compress(plain)
        if len(packed) >= len(plain):
            frames.append(plain)
            return [RAW, len(plain)]
        frames.append(packed)
        return [ZSTD, len(packed)]


def pack_chunk(rollouts: pa.Table, prompt_ids: Numbers | None = None) -> bytes:
    """Pack up to 64 rollouts of one group (columns of `training.records.ROLLOUTS`) into one payload."""
    return ChunkPacker(rollouts).pack(0, rollouts.num_rows, prompt_ids)


def token_lengths(rollouts: pa.Table) -> npt.NDArray[np.int64]:
    """Tokens of each rollout: the length of its token ids, or of whichever per-token column it has; 0 for none."""
    lengths = np.zeros(rollouts.num_rows, dtype=np.int64)
    for name in _token_columns(rollouts):
        column = rollouts.column(name)
        if column.null_count < len(column):
            lengths = np.maximum(lengths, list_lengths(column))
    return lengths


def list_lengths(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Length of each list; 0 for null."""
    return pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)


def _token_columns(rollouts: pa.Table) -> list[str]:
    return [name for name in rollouts.column_names if name in TOKEN_COLUMNS or name.startswith(EXTRA_PREFIX)]


def _present(rollouts: pa.Table, names: Any) -> list[str]:
    """The names of columns that are there and hold something."""
    held = set(rollouts.column_names)
    return [name for name in names if name in held and rollouts.column(name).null_count < rollouts.num_rows]


def _valid(column: pa.ChunkedArray) -> npt.NDArray[np.bool_] | None:
    return column.is_valid().to_numpy() if column.null_count else None


def _starts(lengths: Numbers) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _flat_list(column: pa.ChunkedArray, name: str) -> tuple[Any, npt.NDArray[np.int64], Numbers]:
    """Validity, starts and values of a list column."""
    flat = column.combine_chunks().flatten()
    if flat.null_count:
        raise ValueError(f"{name} has a missing value inside a list")
    return _valid(column), _starts(list_lengths(column)), flat.to_numpy()


def _planes(name: str, flat: tuple[Any, Any, Numbers], others: dict[str, tuple[Any, Any, Numbers]]) -> _Column:
    valid, starts, values = flat
    dtype = values.dtype.newbyteorder("<").str
    values = np.ascontiguousarray(values, dtype)
    base = DELTA_BASE.get(name)
    # Both must lie alike, null where the other is null, so that a slice holds both or neither.
    if base is not None and base in others and all(map(_same, (valid, starts), others[base])):
        values = _zigzag(values.view("<u4") - others[base][2].view("<u4"))
    else:
        base = None
    planes = np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T)
    return _Column(name, dtype, valid, starts, list(planes), base)


def _same(first: Numbers | None, second: Numbers | None) -> bool:
    if first is None or second is None:
        return first is second
    return np.array_equal(first, second)


def _zigzag(difference: Numbers) -> Numbers:
    """Small differences of either sign to small unsigned numbers; all arithmetic wraps, so nothing is lost."""
    return (difference << 1) ^ (np.uint32(0) - (difference >> 31))


def _unzigzag(code: Numbers) -> Numbers:
    return (code >> 1) ^ (np.uint32(0) - (code & 1))


def _texts(name: str, column: pa.ChunkedArray) -> _Column:
    texts = column.combine_chunks().cast(pa.large_binary())
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    # A null or sliced row may own bytes in the buffer; joining leaves only those that count.
    joined = b"".join(texts.drop_null().to_pylist())
    return _Column(name, "bytes", _valid(column), _starts(lengths), [joined])


def _numbers(name: str, column: pa.ChunkedArray) -> _Column:
    values = np.ascontiguousarray(column.drop_null().to_numpy(), NUMBER_DETAILS[name])
    valid = _valid(column)
    starts = _starts(np.ones(len(column), dtype=np.int64) if valid is None else valid)
    return _Column(name, NUMBER_DETAILS[name], valid, starts * values.itemsize, [values.view(np.uint8)])


def _lists(name: str, column: pa.ChunkedArray) -> _Column:
    flat = _flat_list(column, name)
    values = np.ascontiguousarray(flat[2], LIST_DETAILS[name])
    return _Column(name, LIST_DETAILS[name], flat[0], flat[1] * values.itemsize, [values.view(np.uint8)])


def unpack_chunk(payload: bytes | memoryview, *, columns: frozenset[str] | None = None) -> Chunk:
    """Read a payload; `columns` names the per-token columns wanted (None: all), the others are not decompressed.

    Raises:
        ChunkError: not a chunk, damaged, or of a newer version.
    """
    try:
        return _Reader(memoryview(payload)).read(columns)
    except (
        zstandard.ZstdError,
        struct.error,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        if isinstance(error, ChunkError):
            raise
        raise ChunkError(f"damaged chunk: {error}") from error


class _Reader:
    def __init__(self, payload: memoryview) -> None:
        magic, version, packed_size, header_size = PREFIX.unpack_from(payload)
        if magic != MAGIC:
            raise ChunkError(f"not a chunk (it starts with {magic!r})")
        if version != VERSION:
            raise ChunkError(f"chunk version {version}; this rlviewer reads version {VERSION}")
        if header_size > MAX_HEADER_BYTES:
            raise ChunkError(f"header of {header_size} bytes; the limit is {MAX_HEADER_BYTES}")
        self._zstd = zstandard.ZstdDecompressor()
        self._payload = payload
        self._offset = PREFIX.size
        self._budget = MAX_CHUNK_BYTES
        self._header = json.loads(self._take([ZSTD, packed_size], header_size))

    def read(self, wanted: frozenset[str] | None) -> Chunk:
        lengths = np.array(self._header["lengths"], dtype=np.int64)
        count = len(lengths)
        if not 0 < count <= MAX_ROLLOUTS or lengths.min() < 0:
            raise ChunkError(f"chunk of {count} rollouts with lengths {lengths.tolist()}")
        completions: list[bytes] = [b""] * count
        arrays: list[dict[str, Numbers]] = [{} for _ in range(count)]
        details: list[dict[str, Any]] = [{} for _ in range(count)]
        flats: dict[str, Numbers] = {}
        needed = None if wanted is None else wanted | {DELTA_BASE[name] for name in wanted if name in DELTA_BASE}
        for name, dtype, validity, own_lengths, base, frames in self._header["columns"]:
            valid = np.ones(count, bool) if validity is None else np.array([v == "1" for v in validity])
            if len(valid) != count:
                raise ChunkError(f"{name}: validity of {len(valid)} rollouts, the chunk has {count}")
            if dtype == "bytes":
                parts = self._bytes(frames, own_lengths, count)
                for i in np.flatnonzero(valid).tolist():
                    if name == "completion":
                        completions[i] = parts[i]
                    else:
                        details[i][name] = parts[i].decode() if name in STRING_DETAILS else parts[i]
            elif name in NUMBER_DETAILS:
                values = self._numbers(NUMBER_DETAILS[name], frames, int(valid.sum()))
                for i, value in zip(np.flatnonzero(valid).tolist(), values.tolist(), strict=True):
                    details[i][name] = value
            elif name in LIST_DETAILS:
                sizes = np.array(own_lengths, dtype=np.int64) // np.dtype(LIST_DETAILS[name]).itemsize
                values = self._numbers(LIST_DETAILS[name], frames, int(sizes.sum()))
                for i, numbers in _split(values, sizes, valid):
                    details[i][name] = numbers
            elif needed is not None and name not in needed:
                self._offset += sum(size for kind, size in frames if kind != CONSTANT)
            else:
                base_values = None if base is None else flats[base]
                flats[name] = self._planes(name, dtype, frames, int(lengths[valid].sum()), base_values)
                if wanted is None or name in wanted:
                    for i, numbers in _split(flats[name], lengths * valid, valid):
                        arrays[i][name] = numbers
        prompt_ids = None
        if "prompt_ids" in self._header:
            size, frame = self._header["prompt_ids"]
            prompt_ids = self._numbers("<i4", [frame], size)
        if self._offset != len(self._payload):
            raise ChunkError(f"{len(self._payload) - self._offset} bytes too many or too few at the end")
        rollouts = [PackedRollout(*parts) for parts in zip(completions, arrays, details, strict=True)]
        return Chunk(prompt_ids, rollouts)

    def _take(self, frame: list[int], size: int) -> bytes:
        """The next frame's bytes, exactly `size` of them."""
        kind, value = frame
        if not 0 <= size <= self._budget:
            raise ChunkError(f"frame of {size} bytes; a chunk unpacks to {MAX_CHUNK_BYTES} at most")
        self._budget -= size
        if kind == CONSTANT:
            return bytes([value]) * size
        part = self._payload[self._offset : self._offset + value]
        if value < 0 or len(part) != value:
            raise ChunkError(f"cut short: {value} bytes announced, {len(part)} left")
        self._offset += value
        if kind == ZSTD and zstandard.frame_content_size(part) != size:
            raise ChunkError(f"frame holds {zstandard.frame_content_size(part)} bytes, {size} expected")
        data = bytes(part) if kind == RAW else self._zstd.decompress(part)
        if len(data) != size:
            raise ChunkError(f"frame holds {len(data)} bytes, {size} expected")
        return data

    def _bytes(self, frames: list[list[int]], lengths: list[int], count: int) -> list[bytes]:
        if len(lengths) != count or min(lengths) < 0:
            raise ChunkError(f"{len(lengths)} text lengths for {count} rollouts")
        (frame,) = frames
        data = self._take(frame, sum(lengths))
        ends = np.cumsum(lengths).tolist()
        return [data[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    def _numbers(self, dtype: str, frames: list[list[int]], count: int) -> Numbers:
        (frame,) = frames
        return np.frombuffer(self._take(frame, count * np.dtype(dtype).itemsize), dtype)

    def _planes(self, name: str, dtype: str, frames: list[list[int]], count: int, base: Numbers | None) -> Numbers:
        if dtype not in TOKEN_TYPES or len(frames) != np.dtype(dtype).itemsize:
            raise ChunkError(f"{name}: type {dtype!r} with {len(frames)} planes")
        planes = np.empty((len(frames), count), np.uint8)
        for plane, frame in zip(planes, frames, strict=True):
            plane[:] = np.frombuffer(self._take(frame, count), np.uint8)
        values = np.ascontiguousarray(planes.T).reshape(-1).view(dtype)
        if base is None:
            return values
        return (_unzigzag(values.view("<u4")) + base.view("<u4")).view(dtype)


def _split(values: Numbers, lengths: Numbers, valid: Numbers) -> list[tuple[int, Numbers]]:
    ends = np.cumsum(lengths)
    return [(i, values[ends[i] - lengths[i] : ends[i]]) for i in np.flatnonzero(valid).tolist()]
