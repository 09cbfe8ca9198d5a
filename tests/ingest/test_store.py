"""store_batch: what is stored is what was written, once, in the right place."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from django.db import connection

from rlviewer.ingest.metrics import append_metrics
from rlviewer.ingest.models import Batch, RefusedRow
from rlviewer.ingest.services import store_batch
from rlviewer.outbox.models import Announcement
from rlviewer.runs.models import (
    Group,
    MetricChunk,
    Prompt,
    PromptTracker,
    RewardPart,
    Rollout,
    Run,
    Step,
    TokenChunk,
)
from rlviewer.runs.tokens import PackedRollout, unpack_chunk
from tests.factories import fill_run, make_batch, make_run
from training.records import TOKEN_COLUMNS, RolloutBatch


def packed(rollout: Rollout) -> PackedRollout:
    return unpack_chunk(bytes(rollout.chunk.payload)).rollouts[rollout.position]


def test_every_column_of_every_rollout_is_stored(run: Run) -> None:
    batch = make_batch(run)
    outcome = store_batch(batch, source="test")
    assert (outcome.received, outcome.stored, outcome.refused, outcome.parked, outcome.was_known) == (
        16,
        16,
        0,
        0,
        False,
    )
    stored = Rollout.objects.order_by("group__index", "number").select_related("group", "chunk")
    for row, rollout in zip(batch.rollouts.to_pylist(), stored, strict=True):
        assert (rollout.group.index, rollout.number) == (row["group"], row["number"])
        for name in ("reward", "advantage"):
            assert np.array_equal(getattr(rollout, name), row[name], equal_nan=True)
        for name in ("correct", "kept", "answer_cluster", "policy_version", "staleness_steps"):
            assert getattr(rollout, name) == row[name]
        assert rollout.get_stop_reason_display() == row["stop_reason"]
        assert rollout.parsed_answer == row["parsed_answer"].decode()
        assert rollout.drop_reason == (row["drop_reason"] or "")
        chunk = packed(rollout)
        assert chunk.completion == row["completion"]
        for name in TOKEN_COLUMNS.keys() - {"recomputed_logprobs"}:
            assert chunk.columns[name].tobytes() == np.array(row[name], chunk.columns[name].dtype).tobytes(), name
        assert "recomputed_logprobs" not in chunk.columns
        for name in ("seed", "feedback", "parsed_answer"):
            assert chunk.details[name] == row[name]
    assert RewardPart.objects.count() == 32
    first = Rollout.objects.earliest("id")
    kinds = [(part.part, part.kind, part.token_end) for part in first.reward_parts.order_by("part")]
    assert kinds == [(0, "outcome", first.length_tokens), (1, "format", first.length_tokens)]


def test_groups_and_prompts_keep_what_the_task_said(run: Run) -> None:
    batch = make_batch(run)
    store_batch(batch, source="test")
    for row, group in zip(
        batch.groups.to_pylist(), Group.objects.order_by("index").select_related("prompt"), strict=True
    ):
        assert bytes(group.prompt.text) == row["prompt"]
        assert bytes(group.prompt.answer) == row["answer"]
        assert group.prompt.parameters == {"digits": 2}
        assert (group.task_seed, group.size_got) == (row["task_seed"], 4)
        assert unpack_chunk(bytes(group.chunks.get().payload)).prompt_ids.tolist() == row["prompt_ids"]
    assert [group.dead_cause for group in Group.objects.order_by("index")][:2] == ["all_right", "all_wrong"]
    tracker = PromptTracker.objects.get()
    assert (tracker.base_pass_rate, tracker.base_samples, tracker.value) == (0.25, 4, None)


def test_what_the_writer_says_of_a_group_is_kept(run: Run) -> None:
    batch = make_batch(run, groups=2)
    groups = batch.groups
    for name, values in {"reward_mean": [7.0, None], "dead_cause": ["", "single"], "size_got": [9, None]}.items():
        index = groups.schema.get_field_index(name)
        groups = groups.set_column(index, name, pa.array(values, groups.schema.field(index).type))
    store_batch(replace(batch, groups=groups), source="test")
    first, second = Group.objects.order_by("index")
    assert (first.reward_mean, first.dead_cause, first.size_got) == (7.0, "", 9)
    assert (second.reward_mean, second.dead_cause, second.size_got) == (0.0, "single", 4)


def test_a_group_over_64_rollouts_takes_several_chunks(run: Run) -> None:
    store_batch(make_batch(run, groups=2, group_size=130, tokens=2), source="test")
    assert list(TokenChunk.objects.order_by("group", "part").values_list("part", "rollout_count")) == [
        (0, 64), (1, 64), (2, 2), (0, 64), (1, 64), (2, 2)
    ]  # fmt: skip
    last = Rollout.objects.select_related("chunk").get(group__index=1, number=129)
    assert (last.position, last.chunk.part) == (1, 2)
    assert len(packed(last).columns["token_ids"]) == last.length_tokens


def test_huge_rollouts_share_a_chunk_with_few(run: Run) -> None:
    texts = [b"x" * 5_000_000] * 8
    store_batch(make_batch(run, groups=1, group_size=8, completion=texts), source="test")
    assert list(TokenChunk.objects.order_by("part").values_list("rollout_count", flat=True)) == [3, 3, 2]
    assert {len(packed(rollout).completion) for rollout in Rollout.objects.select_related("chunk")} == {5_000_000}


def test_further_per_token_columns_need_no_migration(run: Run) -> None:
    batch = make_batch(run)
    values = [
        None if row % 2 else np.full(len(ids), 0.5, np.float32) for row, ids in enumerate(batch.rollouts["token_ids"])
    ]
    extra = batch.rollouts.append_column("x_teacher_divergence", pa.array(values, pa.list_(pa.float32())))
    store_batch(replace(batch, rollouts=extra), source="test")
    with_it, without = Rollout.objects.order_by("id").select_related("chunk")[:2]
    assert set(packed(with_it).columns["x_teacher_divergence"]) == {0.5}
    assert "x_teacher_divergence" not in packed(without).columns


def test_steps_and_summaries(run: Run) -> None:
    fill_run(run, 3)
    step = Step.objects.get(run=run, split="train", index=2)
    rollouts = Rollout.objects.filter(step=step)
    rewards = [r.reward for r in rollouts if r.reward == r.reward]
    assert (step.rollout_count, step.group_count, step.unscored_count) == (16, 4, 1)
    assert step.reward_mean == pytest.approx(sum(rewards) / 15)
    assert step.pass_rate == sum(r.correct for r in rollouts) / 16
    assert (step.dead_right, step.dead_wrong) == (1, 1)
    assert step.phase_seconds["sample"] == 0.3
    assert step.tokens_sampled == sum(r.length_tokens for r in rollouts)
    assert step.tokens_trained == sum(r.length_tokens for r in rollouts if r.kept)
    heldout = Step.objects.filter(run=run, split="heldout").order_by("index")
    assert {step.tokens_trained for step in heldout} == {0}
    assert (run.last_step, run.rollout_count, run.latest_reward) == (2, 5 * 16, step.reward_mean)
    assert (run.base_pass, run.latest_pass) == (heldout[0].pass_rate, heldout[1].pass_rate)
    assert run.latest_dead_share == step.dead_groups / 4
    assert run.token_count == sum(Step.objects.values_list("tokens_sampled", flat=True))


def test_a_step_is_announced_to_the_run_and_its_project(run: Run) -> None:
    store_batch(make_batch(run, step=3), source="test")
    payload = {"step": 3, "split": "train", "attempt": 1, "rollouts": 16}
    assert list(Announcement.objects.order_by("topic").values_list("topic", "event", "payload")) == [
        (f"project:{run.project_id}", "step-stored", payload | {"run": run.pk}),
        (f"run:{run.pk}", "step-stored", payload),
    ]


def test_metrics_fill_parts_of_256_points(run: Run) -> None:
    attempt = run.attempts.get()
    with connection.cursor() as cursor:
        for step in range(258):
            points = [("loss", float(step)), ("odd", float("nan")), ("odd", -0.0)]
            append_metrics(cursor, run.pk, attempt.pk, step, points)
    first, second = MetricChunk.objects.filter(name="loss").order_by("part")
    assert (first.steps, first.values) == (list(range(256)), [float(n) for n in range(256)])
    assert (second.part, second.steps, second.values) == (1, [256, 257], [256.0, 257.0])
    odd = MetricChunk.objects.filter(name="odd").order_by("part")
    assert [len(chunk.steps) for chunk in odd] == [256, 256, 4]
    assert str(odd[0].values[:2]) == "[nan, -0.0]"


def test_a_refused_row_is_kept_with_its_bytes(run: Run) -> None:
    batch = make_batch(run, number=[0, 1, 2, 3, 0, 1, 1, 3, *[0, 1, 2, 3] * 2])
    outcome = store_batch(batch, source="test")
    assert (outcome.received, outcome.stored, outcome.refused) == (16, 15, 1)
    ledger = Batch.objects.get()
    assert (ledger.received, ledger.stored, ledger.refused, ledger.parked) == (16, 15, 1, 0)
    refused = RefusedRow.objects.get()
    assert (refused.row_index, refused.reason) == (6, "number 1 appears twice in group row 1")
    (row,) = pa.ipc.open_stream(bytes(refused.payload)).read_all().to_pylist()
    assert row["completion"] == batch.rollouts["completion"][6].as_py()
    assert Step.objects.get().rollout_count == 15


def test_later_batches_add_to_a_step(run: Run) -> None:
    """A group may come in pieces; its place in the group is what tells rollouts apart."""
    whole = make_batch(run, groups=2)

    def piece(batch_id: str, rows: list[int]) -> RolloutBatch:
        header = replace(whole.header, batch_id=f"00000000-0000-0000-0000-{batch_id:0>12}")
        return replace(
            whole, header=header, rollouts=whole.rollouts.take(rows), reward_spans=whole.reward_spans.slice(0, 0)
        )

    assert store_batch(piece("1", [0, 1, 4]), source="test").stored == 3
    outcome = store_batch(piece("2", [1, 2, 3, 5, 6]), source="test")
    assert (outcome.received, outcome.stored, outcome.refused) == (5, 4, 1)
    assert "rollout 1 of group 0 was already stored by another batch" in RefusedRow.objects.get().reason
    assert list(Batch.objects.order_by("id").values_list("received", "stored", "refused")) == [(3, 3, 0), (5, 4, 1)]
    step = Step.objects.get()
    assert (step.rollout_count, step.group_count, step.dead_groups) == (7, 2, 2)
    assert step.tokens_sampled == sum(Rollout.objects.values_list("length_tokens", flat=True))
    assert list(Group.objects.order_by("index").values_list("size_got", "dead_cause")) == [
        (4, "all_right"),
        (3, "all_wrong"),
    ]
    assert list(TokenChunk.objects.order_by("group", "part").values_list("part", "rollout_count")) == [
        (0, 2),
        (1, 2),
        (0, 1),
        (1, 2),
    ]
    for rollout in Rollout.objects.select_related("chunk", "group"):
        assert (
            packed(rollout).completion == whole.rollouts["completion"][rollout.group.index * 4 + rollout.number].as_py()
        )


def test_a_group_cannot_change_its_prompt(run: Run) -> None:
    store_batch(make_batch(run, groups=1), source="test")
    other = make_batch(run, groups=1, seed=9)
    outcome = store_batch(replace(other, rollouts=other.rollouts.slice(0, 1)), source="test")
    assert (outcome.stored, outcome.refused) == (0, 1)
    assert RefusedRow.objects.get().reason == "group 0 of this step already holds another prompt"


def test_two_runs_of_a_project_share_a_prompt(run: Run) -> None:
    store_batch(make_batch(run), source="test")
    store_batch(make_batch(make_run(run.project, "other")), source="test")
    assert Prompt.objects.count() == 4
    assert Group.objects.count() == 8


def test_a_prompt_without_an_answer_is_another_one(run: Run) -> None:
    batch = make_batch(run, groups=3)
    prompts = {"prompt": [b"p"] * 3, "answer": [b"", None, b""], "generator": ["addition", "addition", None]}
    groups = batch.groups
    for name, values in prompts.items():
        index = groups.schema.get_field_index(name)
        groups = groups.set_column(index, name, pa.array(values, groups.schema.field(index).type))
    store_batch(replace(batch, groups=groups), source="test")
    assert sorted(Prompt.objects.values_list("generator", "answer"), key=str) == [
        ("", b""),
        ("addition", None),
        ("addition", b""),
    ]


def test_an_empty_batch_still_makes_its_step(run: Run) -> None:
    batch = make_batch(run)
    empty = RolloutBatch(batch.header, *(table.slice(0, 0) for table in (batch.rollouts, batch.groups)), batch.metrics, batch.reward_spans.slice(0, 0))  # fmt: skip
    assert store_batch(empty, source="test").stored == 0
    assert Step.objects.get().reward_mean is None


def test_the_writers_clock_is_kept_beside_and_never_trusted(run: Run) -> None:
    """Incident I9."""
    for step, clock in enumerate(
        ["2036-01-01T00:00:00+00:00", "0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59Z", "yesterday", "1e300"]
    ):
        batch = make_batch(run, step=step)
        store_batch(replace(batch, header=replace(batch.header, written_at=clock)), source="test")
    assert [step.written_at and step.written_at.year for step in Step.objects.order_by("id")] == [
        2036,
        None,
        None,
        None,
        None,
    ]
    assert [step.index for step in Step.objects.order_by("id")] == [0, 1, 2, 3, 4]


def test_events_and_notes_are_shown_with_the_step(run: Run) -> None:
    batch = make_batch(run)
    header = replace(batch.header, events=[{"kind": "promotion", "text": "digits 2 to 3"}])
    store_batch(replace(batch, header=header, metrics=pa.table({"name": ["n" * 200], "value": [1.0]})), source="test")
    assert [event["kind"] for event in Step.objects.get().events] == ["promotion", "refused-metric"]
