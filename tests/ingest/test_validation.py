"""A bad row is refused with its index and its reason, and the good ones stay."""

import json
import uuid
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rlviewer.ingest.validation import check
from rlviewer.runs.models import Run
from tests.factories import make_batch
from training.records import RecordError, RolloutBatch

NAN = float("nan")
NESTED: list[Any] = []
for _ in range(100):
    NESTED = [NESTED]
RUN = Run(pk=1, uid=uuid.UUID(int=1))


def changed(batch: RolloutBatch, table: str, column: str, row: int, value: Any) -> RolloutBatch:
    """The batch with one cell replaced."""
    rows = getattr(batch, table)
    index = rows.schema.get_field_index(column)
    values = rows.column(index).to_pylist()
    values[row] = value
    return replace(batch, **{table: rows.set_column(index, column, pa.array(values, rows.schema.field(index).type))})


def without_last(batch: RolloutBatch, column: str, row: int) -> RolloutBatch:
    return changed(batch, "rollouts", column, row, batch.rollouts[column][row].as_py()[:-1])


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("group", 99, "group 99 is no row of the batch's 4 groups"),
        ("group", None, "group -1 is no row"),
        ("number", None, "number must be 0 or more, got None"),
        ("number", -3, "number must be 0 or more, got -3"),
        ("number", 0, "number 0 appears twice in group row 1"),
        ("completion", None, "completion is missing"),
        ("stop_reason", "finished", "stop_reason 'finished' is not one of stop, length, error"),
        ("stop_reason", None, "stop_reason None is not one of"),
        ("drop_reason", "x" * 61, "drop_reason has 61 characters, the limit is 60"),
        ("transform", "[1]", "transform: must be a JSON object"),
        ("transform", '{"a": NaN}', "transform: NaN is not JSON"),
        ("turns", b"{}", "turns: must be a JSON list"),
        ("turns", b"\xff", "turns: not JSON"),
        ("branch_token", 10_000, "branch_token 10000 lies outside the tokens"),
        ("step_boundaries", [0, 10_000], "step_boundaries lie outside the tokens, at entry 1"),
        ("token_ids", [1, -5], "token_ids has a negative value at token 1"),
        ("token_ids", [1, None, 3], "token_ids has a missing value at token 1"),
        ("loss_mask", [0, 2], "loss_mask has a value over 1 at token 1"),
        ("clip_flag", [4], "clip_flag has a value over 3 at token 0"),
        ("origin", [0, 0, 9], "origin has a value over 4 at token 2"),
        ("entropy", [0.5, None], "entropy has a missing value at token 1"),
    ],
)
def test_a_bad_cell_refuses_its_row_only(column: str, value: Any, reason: str) -> None:
    batch = make_batch(RUN)
    if isinstance(value, list) and column != "step_boundaries":
        # Keep the length, so that the value is what is wrong.
        length = len(batch.rollouts[column][5])
        value = (value + [0] * length)[:length]
    checked = check(changed(batch, "rollouts", column, 5, value))
    assert [refusal.row_index for refusal in checked.refused] == [5]
    assert reason in checked.refused[0].reason
    assert checked.rollouts.num_rows == 15
    assert 5 not in checked.row_indexes


@pytest.mark.parametrize("column", ["sampler_logprobs", "policy_logprobs", "loss_mask", "token_policy_version"])
def test_per_token_columns_are_as_long_as_the_tokens(column: str) -> None:
    checked = check(without_last(make_batch(RUN), column, 7))
    assert [refusal.row_index for refusal in checked.refused] == [7]
    assert checked.refused[0].reason.startswith(f"{column} has ")


def test_extra_columns_are_checked_too() -> None:
    batch = make_batch(RUN)
    lengths = [len(ids) for ids in batch.rollouts["token_ids"]]
    values = [np.zeros(length - (row == 3), np.float32) for row, length in enumerate(lengths)]
    batch = replace(batch, rollouts=batch.rollouts.append_column("x_div", pa.array(values, pa.list_(pa.float32()))))
    assert [refusal.row_index for refusal in check(batch).refused] == [3]


@pytest.mark.parametrize("name", ["x_", "x_a b", "x_{0}", "x_" + "a" * 60])
def test_extra_columns_have_plain_names(name: str) -> None:
    batch = make_batch(RUN)
    values = pa.nulls(16, pa.list_(pa.float32()))
    with pytest.raises(RecordError, match="per-token column"):
        check(replace(batch, rollouts=batch.rollouts.append_column(name, values)))


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("index", -1, "index must be 0 or more"),
        ("index", 0, "index 0 is also that of group row 0"),
        ("prompt", None, "prompt is missing"),
        ("size_asked", -1, "size_asked must be 0 or more"),
        ("generator", "g" * 121, "generator has 121 characters"),
        ("parameters", "{", "parameters: not JSON"),
        ("parameters", "[]", "parameters: must be a JSON object"),
        ("sampling", '{"a": 1e999}', "sampling: number 1e999... is out of range"),
        ("stratum_keys", '{"a": 1, "a": 2}', "stratum_keys: a key appears twice"),
        ("prompt_ids", [1, -1], "prompt_ids has a negative token id"),
        ("prompt_ids", [1, None], "prompt_ids has a missing value"),
    ],
)
def test_a_bad_group_refuses_its_rollouts_only(column: str, value: Any, reason: str) -> None:
    checked = check(changed(make_batch(RUN), "groups", column, 2, value))
    assert [refusal.row_index for refusal in checked.refused] == [8, 9, 10, 11]
    assert all(reason in refusal.reason for refusal in checked.refused)
    assert [group["index"] for group in checked.groups] == [0, 1, 3]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("token_start", -1, "its tokens lie outside the rollout"),
        ("token_end", 10_000, "its tokens lie outside the rollout"),
        ("token_end", 0, "its tokens lie outside the rollout"),
        ("value", None, "its value is missing"),
        ("kind", "bonus", "its kind is not one of outcome"),
        ("name", "n" * 61, "its name is too long"),
        ("version", "\0" * 21, "its version is too long"),
    ],
)
def test_a_bad_span_refuses_its_rollout(column: str, value: Any, reason: str) -> None:
    checked = check(changed(make_batch(RUN), "reward_spans", column, 9, value))
    assert [refusal.row_index for refusal in checked.refused] == [4]  # two spans a rollout
    assert checked.refused[0].reason.startswith(f"reward span 9: {reason}")
    assert set(checked.spans["rollout"].to_pylist()) == set(range(15))


def test_what_belongs_to_no_rollout_is_noted() -> None:
    batch = changed(make_batch(RUN), "reward_spans", "rollout", 0, 77)
    batch = replace(batch, metrics=pa.table({"name": ["m" * 121, "loss"], "value": [1.0, 2.0]}))
    checked = check(batch)
    assert [note["kind"] for note in json.loads(checked.events)] == ["refused-span", "refused-metric"]
    assert checked.metrics == [("loss", 2.0)]
    assert checked.refused == []


def test_rows_in_any_order_are_sorted_by_group_and_number() -> None:
    batch = make_batch(RUN)
    order = np.random.default_rng(0).permutation(16)
    mixed = replace(batch, rollouts=batch.rollouts.take(order))
    checked = check(replace(mixed, reward_spans=batch.reward_spans.slice(0, 0)))
    assert checked.rollouts["number"].to_pylist() == [0, 1, 2, 3] * 4
    assert checked.group_of.tolist() == sorted([0, 1, 2, 3] * 4)
    assert checked.row_indexes.tolist() == np.argsort(order).tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt": 0}, {"attempt": 2**31}, {"attempt": True}, {"step": -1}, {"step": 1.5}, {"split": ""}, {"split": "s" * 41},
        {"split": "a\0b"}, {"batch_id": "x"}, {"run_uid": None}, {"phase_seconds": []}, {"phase_seconds": {"a": "b"}}, {"phase_seconds": {"a": NAN}}, {"events": [{1, 2}]}, {"events": [NESTED]}, {"events": {}}, {"events": ["x"]}, {"source": "s" * 41},
    ],
)  # fmt: skip
def test_a_bad_header_refuses_the_batch(changes: dict[str, Any]) -> None:
    batch = make_batch(RUN)
    with pytest.raises(RecordError):
        check(replace(batch, header=replace(batch.header, **changes)))


def test_offsets_outside_their_buffer_are_found_before_they_are_followed() -> None:
    batch = make_batch(RUN)
    offsets = np.full(17, 5, dtype=np.int64)
    offsets[0], offsets[3] = 0, 10**12
    wild = pa.Array.from_buffers(pa.large_binary(), 16, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"short")])
    index = batch.rollouts.schema.get_field_index("completion")
    with pytest.raises(RecordError, match="damaged table"):
        check(replace(batch, rollouts=batch.rollouts.set_column(index, "completion", wild)))
