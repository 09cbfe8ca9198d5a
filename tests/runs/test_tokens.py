"""Chunks: everything comes back bit for bit, costs little, and a damaged payload is refused."""

import contextlib
import json
import random
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.generate import steps
from rlviewer.runs.tokens import PREFIX, Chunk, ChunkError, ChunkPacker, pack_chunk, unpack_chunk
from training.records import ROLLOUTS, TOKEN_COLUMNS, complete

# Every float32 there is, NaN payloads and -0.0 among them.
float_bits = st.integers(0, 2**32 - 1)
kinds = {name: kind.to_pandas_dtype() for name, kind in TOKEN_COLUMNS.items()} | {"x_divergence": np.float32}


def numbers(kind: type, length: int) -> st.SearchStrategy[np.ndarray]:
    if kind is np.float32:
        return st.lists(float_bits, min_size=length, max_size=length).map(
            lambda bits: np.array(bits, np.uint32).view(kind)
        )
    info = np.iinfo(kind)
    return st.lists(st.integers(info.min, info.max), min_size=length, max_size=length).map(lambda v: np.array(v, kind))


@st.composite
def rollout_rows(draw: st.DrawFn) -> dict[str, Any]:
    length = draw(st.integers(0, 5))
    row: dict[str, Any] = {name: draw(st.none() | numbers(kind, length)) for name, kind in kinds.items()}
    row["completion"] = draw(st.binary(max_size=20))
    for name in ("parsed_answer", "feedback", "sketch", "turns"):
        row[name] = draw(st.none() | st.binary(max_size=8))
    for name in ("transform", "source_rollout"):
        row[name] = draw(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5))
    row["seed"] = draw(st.none() | st.integers(-(2**63), 2**63 - 1))
    row["tree_parent"] = draw(st.none() | st.integers(-(2**15), 2**15 - 1))
    row["branch_token"] = draw(st.none() | st.integers(-(2**31), 2**31 - 1))
    row["step_boundaries"] = draw(st.none() | numbers(np.int32, draw(st.integers(0, 3))))
    return row


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    fields = [*ROLLOUTS, pa.field("x_divergence", pa.list_(pa.float32()))]
    arrays = {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in fields}
    return pa.table({**arrays, "number": pa.array(range(len(rows)), pa.int16())})


def assert_same(rows: list[dict[str, Any]], chunk: Chunk) -> None:
    assert len(chunk.rollouts) == len(rows)
    for row, packed in zip(rows, chunk.rollouts, strict=True):
        assert packed.completion == row["completion"]
        held = {name for name in kinds if row[name] is not None}
        assert packed.columns.keys() == held
        for name in held:
            assert packed.columns[name].dtype == kinds[name]
            assert packed.columns[name].tobytes() == row[name].tobytes(), name
        details = {name: value for name, value in row.items() if name not in kinds and name != "completion"}
        assert packed.details.keys() == {name for name, value in details.items() if value is not None}
        for name, value in packed.details.items():
            assert np.array_equal(value, details[name]), name


@settings(max_examples=150, deadline=None)
@given(st.lists(rollout_rows(), min_size=1, max_size=5), st.none() | st.lists(st.integers(0, 9), max_size=3))
def test_any_rollouts_come_back_bit_for_bit(rows: list[dict[str, Any]], prompt_ids: list[int] | None) -> None:
    ids = None if prompt_ids is None else np.array(prompt_ids, np.int32)
    chunk = unpack_chunk(pack_chunk(table_of(rows), ids))
    assert_same(rows, chunk)
    assert (chunk.prompt_ids is None) == (ids is None)
    assert ids is None or np.array_equal(chunk.prompt_ids, ids)


@settings(max_examples=30, deadline=None)
@given(st.lists(rollout_rows(), min_size=3, max_size=6), st.data())
def test_a_slice_of_a_longer_table_comes_back_too(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    # A sliced and chunked table, as filtering makes them: offsets do not begin at zero.
    table = pa.concat_tables([table_of(rows[:1]), table_of(rows[1:])])
    assert_same(rows[start:stop], unpack_chunk(ChunkPacker(table).pack(start, stop)))
    assert_same(rows[start:stop], unpack_chunk(pack_chunk(table.slice(start, stop - start))))


def test_nan_payloads_and_negative_zero_survive_the_difference_to_the_sampler() -> None:
    odd = np.array([0x7FC00001, 0xFFC0BEEF, 0x80000000, 0x00000000, 0x7F800000, 0x00000001], np.uint32).view(np.float32)
    row = {"completion": b"", "sampler_logprobs": odd, "policy_logprobs": odd[::-1].copy()}
    packed = unpack_chunk(pack_chunk(table_of([row]))).rollouts[0]
    assert packed.columns["sampler_logprobs"].tobytes() == odd.tobytes()
    assert packed.columns["policy_logprobs"].tobytes() == odd[::-1].tobytes()


def test_null_and_empty_are_not_the_same() -> None:
    empty, missing = {"completion": b"", "entropy": np.zeros(0, np.float32)}, {"completion": b""}
    first, second = unpack_chunk(pack_chunk(table_of([empty, missing]))).rollouts
    assert len(first.columns["entropy"]) == 0
    assert "entropy" not in second.columns


def test_only_the_wanted_columns_are_read() -> None:
    rollouts = next(steps(uuid.uuid4(), steps=1, groups=1, group_size=4, tokens=16)).rollouts
    payload = pack_chunk(rollouts)
    whole, part = unpack_chunk(payload), unpack_chunk(payload, columns=frozenset({"policy_logprobs"}))
    assert [list(r.columns) for r in part.rollouts] == [["policy_logprobs"]] * 4
    for one, other in zip(whole.rollouts, part.rollouts, strict=True):
        assert other.columns["policy_logprobs"].tobytes() == one.columns["policy_logprobs"].tobytes()
        assert other.completion == one.completion


def test_a_rollout_of_512_tokens_and_2_kb_of_text_takes_5_kb() -> None:
    rollouts = next(steps(uuid.uuid4(), steps=1, groups=4, group_size=8)).rollouts
    packer = ChunkPacker(rollouts)
    size = sum(len(packer.pack(start, start + 8)) for start in range(0, 32, 8)) / 32
    # 512 ids, two log-probabilities and advantages of 4 bytes each and the text are 10,240 bytes.
    assert size < 4_950


def test_a_constant_column_costs_almost_nothing() -> None:
    rollouts = next(steps(uuid.uuid4(), steps=1, groups=1, group_size=8)).rollouts
    mask = pa.array([np.ones(512, np.uint8)] * 8, pa.list_(pa.uint8()))
    with_mask = rollouts.set_column(rollouts.schema.get_field_index("loss_mask"), "loss_mask", mask)
    assert len(pack_chunk(with_mask)) - len(pack_chunk(rollouts)) < 30
    bare = rollouts.set_column(
        rollouts.schema.get_field_index("token_advantages"), "token_advantages", pa.nulls(8, pa.list_(pa.float32()))
    )
    assert len(pack_chunk(rollouts)) - len(pack_chunk(bare)) < 8 * 20


@pytest.mark.parametrize("count", [0, 65])
def test_a_chunk_holds_1_to_64_rollouts(count: int) -> None:
    table = complete(pa.table({"completion": pa.array([b""] * count, pa.large_binary())}), ROLLOUTS)
    with pytest.raises(ValueError, match="1 to 64"):
        pack_chunk(table)


def small_payload() -> bytes:
    return pack_chunk(next(steps(uuid.uuid4(), steps=1, groups=1, group_size=3, tokens=20)).rollouts, np.arange(3))


def test_a_damaged_payload_is_refused_and_nothing_else_happens() -> None:
    payload, rng = small_payload(), random.Random(0)
    for end in range(len(payload)):
        with pytest.raises(ChunkError):
            unpack_chunk(payload[:end])
    with pytest.raises(ChunkError, match="too many"):
        unpack_chunk(payload + b"x")
    for _ in range(2000):
        flipped = bytearray(payload)
        flipped[rng.randrange(len(payload))] ^= 1 << rng.randrange(8)
        # A flipped bit of a raw frame is for the SHA-256 beside it to find.
        with contextlib.suppress(ChunkError):
            unpack_chunk(bytes(flipped))


def with_header(**changes: Any) -> bytes:
    payload = small_payload()
    _, _, packed, _ = PREFIX.unpack_from(payload)
    header = json.loads(zstandard.ZstdDecompressor().decompress(payload[PREFIX.size : PREFIX.size + packed])) | changes
    raw = json.dumps(header).encode()
    body = zstandard.ZstdCompressor().compress(raw)
    return PREFIX.pack(b"RLVC", 1, len(body), len(raw)) + body + payload[PREFIX.size + packed :]


@pytest.mark.parametrize(
    "changes",
    [
        {"lengths": [10**18] * 3},
        {"lengths": [10**30] * 3},
        {"lengths": [2**24] * 64, "columns": [[f"x_{i}", "<f4", None, None, None, [[0, 0]] * 4] for i in range(9)]},
        {"lengths": []},
        {"lengths": [-1, 1, 1]},
        {"lengths": None},
        {"columns": [["token_ids", "<O", None, None, None, [[0, 0]] * 8]]},
        {"columns": [["policy_logprobs", "<f4", None, None, "sampler_logprobs", [[0, 0]] * 4]]},
        {"columns": [["completion", "bytes", None, [-5, 5, 0], None, [[0, 0]]]]},
        {"columns": [["completion", "bytes", None, [2**40, 0, 0], None, [[0, 65]]]]},
        {"columns": [["seed", "<i8", "11", None, None, [[0, 0]]]]},
        {"columns": [[{}, "<f4", None, None, None, []]]},
        {"columns": "no"},
        {"prompt_ids": [10**12, [0, 1]]},
    ],
)
def test_a_hostile_header_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ChunkError):
        unpack_chunk(with_header(**changes))


def test_a_newer_version_says_so() -> None:
    payload = bytearray(small_payload())
    payload[4] = 2
    with pytest.raises(ChunkError, match="version 2"):
        unpack_chunk(bytes(payload))
