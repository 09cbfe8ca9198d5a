"""What happened to systems like ours must not happen here: data loss (D) and odd input (I)."""

import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from django.db import IntegrityError, OperationalError, connection, connections, transaction

from rlviewer.ingest import services
from rlviewer.ingest.consistency import problems
from rlviewer.ingest.drain import drain_spool
from rlviewer.ingest.models import Batch, ParkedBatch, RefusedRow
from rlviewer.ingest.parked import adopt_parked
from rlviewer.ingest.prompts import upsert_prompts
from rlviewer.ingest.services import store_batch
from rlviewer.lib.json import dumps, loads
from rlviewer.lib.text import bytes_from_text
from rlviewer.runs.models import Attempt, Group, MetricChunk, Prompt, Rollout, Run, Step
from rlviewer.runs.tokens import unpack_chunk
from tests.factories import make_batch, make_run
from training import spool
from training.records import RolloutBatch

NAN, INF = float("nan"), float("inf")


def completions(run: Run) -> list[bytes]:
    rollouts = (
        Rollout.objects.filter(run_id=run.pk).order_by("step__index", "group__index", "number").select_related("chunk")
    )
    return [unpack_chunk(bytes(r.chunk.payload)).rollouts[r.position].completion for r in rollouts]


def with_groups(batch: RolloutBatch, **columns: list[Any]) -> RolloutBatch:
    groups = batch.groups
    for name, values in columns.items():
        index = groups.schema.get_field_index(name)
        groups = groups.set_column(index, name, pa.array(values, groups.schema.field(index).type))
    return replace(batch, groups=groups)


def test_incident_D1_a_failure_between_claim_and_commit_loses_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OperationalError("the server went away")

    batch = make_batch(run)
    for place in ("upsert_prompts", "copy_rows", "append_metrics", "announce_run"):
        with monkeypatch.context() as patch:
            patch.setattr(services, place, fail)
            with pytest.raises(OperationalError):
                store_batch(batch, source="test")
        assert (Batch.objects.count(), Rollout.objects.count(), Step.objects.count(), Prompt.objects.count()) == (
            0,
            0,
            0,
            0,
        )
    outcomes = [store_batch(batch, source="test") for _ in range(3)]
    assert [outcome.was_known for outcome in outcomes] == [False, True, True]
    assert {outcome.stored for outcome in outcomes} == {16}
    assert Rollout.objects.count() == 16


def test_incident_D2_rollouts_before_their_run_wait_and_join_it(project: Any) -> None:
    run = make_run(project)
    batches = [make_batch(run, step=step) for step in (2, 0, 1)]
    Attempt.objects.all().delete()
    Run.objects.all().delete()
    for batch in [*batches, batches[0]]:
        outcome = store_batch(batch, source="test")
        assert (outcome.received, outcome.stored, outcome.parked) == (16, 0, 16)
    assert ParkedBatch.objects.count() == 3
    back = make_run(project, uid=run.uid)
    assert adopt_parked() == 3
    assert ParkedBatch.objects.count() == 0
    back.refresh_from_db()
    assert (back.rollout_count, back.last_step) == (48, 2)
    assert adopt_parked() == 0
    assert store_batch(batches[1], source="test").was_known


def test_incident_D5_bad_rows_take_no_good_ones_with_them(run: Run) -> None:
    stop = ["stop"] * 1000
    for row in (0, 500, 999):
        stop[row] = "exploded"
    answers: list[bytes | None] = [b"7"] * 1000
    answers[3] = b"nul \0 inside"
    answers[4] = b"x" * 100_000
    batch = make_batch(run, groups=125, group_size=8, tokens=2, stop_reason=stop, parsed_answer=answers)
    outcome = store_batch(batch, source="test")
    assert (outcome.received, outcome.stored, outcome.refused) == (1000, 997, 3)
    assert list(RefusedRow.objects.order_by("row_index").values_list("row_index", flat=True)) == [0, 500, 999]
    assert Rollout.objects.count() == 997
    assert list(problems()) == []


def test_incident_D7_lower_steps_after_a_resume_are_kept_beside(run: Run) -> None:
    for step in (999, 1000):
        store_batch(make_batch(run, step=step), source="test")
    Attempt.objects.create(run=run, number=2)
    resumed = [make_batch(run, attempt=2, step=step) for step in (500, 1000)]
    for batch in [*resumed, *resumed]:
        store_batch(batch, source="test")
    # What the first attempt had still in its spool arrives last and is kept, but never becomes current again.
    store_batch(make_batch(run, step=500), source="test")
    store_batch(make_batch(run, step=1000, seed=1, groups=6), source="test")
    found = {(s.attempt.number, s.index): s.is_current for s in Step.objects.select_related("attempt")}
    assert found == {(1, 999): True, (1, 1000): False, (2, 500): True, (2, 1000): True, (1, 500): False}
    run.refresh_from_db()
    assert run.last_step == 1000
    assert run.latest_reward == Step.objects.get(attempt__number=2, index=1000).reward_mean
    assert run.rollout_count == Rollout.objects.count() == 5 * 16 + 8
    assert list(problems()) == []


WRITER = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "rlviewer.settings"
import django
django.setup()
from dataclasses import replace
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Run
from tests.factories import make_batch
writer, count = int(sys.argv[1]), int(sys.argv[2])
batch = make_batch(Run.objects.get(), groups=1, group_size=count, tokens=3, seed=writer)
batch = replace(batch, reward_spans=batch.reward_spans.slice(0, 0))
groups = batch.groups.set_column(0, "index", [[writer]])
for number in range(count):
    header = replace(batch.header, batch_id=f"0000000{writer}-0000-0000-0000-{number:012d}")
    outcome = store_batch(replace(batch, header=header, groups=groups, rollouts=batch.rollouts.slice(number, 1)), source="test")
    assert outcome.stored == 1, outcome
"""


def four_writers(database_url: str, count: int) -> None:
    """Four processes append to the same run, step and metrics at once, one rollout at a time."""
    env = {**os.environ, "DATABASE_URL": database_url}
    command = [sys.executable, "-c", WRITER]
    writers = [subprocess.Popen([*command, str(n), str(count)], env=env, stderr=subprocess.PIPE) for n in range(4)]
    for writer in writers:
        _, errors = writer.communicate(timeout=3600)
        assert writer.returncode == 0, errors.decode()[-2000:]
    run = Run.objects.get()
    assert Rollout.objects.filter(run_id=run.pk).count() == run.rollout_count == Batch.objects.count() == 4 * count
    assert list(Group.objects.order_by("index").values_list("index", "size_got")) == [(n, count) for n in range(4)]
    assert Step.objects.get().rollout_count == 4 * count
    assert sum(len(chunk.steps) for chunk in MetricChunk.objects.filter(name="loss")) == 4 * count
    assert list(problems()) == []


@pytest.mark.django_db(transaction=True)
def test_incident_D8_appending_one_at_a_time_from_4_processes_overwrites_nothing(run: Run, database_url: str) -> None:
    four_writers(database_url, 12)


@pytest.mark.torture
@pytest.mark.django_db(transaction=True)
def test_incident_D8_appending_1000_each(run: Run, database_url: str) -> None:
    four_writers(database_url, 1000)


def test_incident_D9_a_damaged_file_is_parked_and_stops_no_other(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    paths = [spool.put(folder, make_batch(run, step=step)) for step in range(4)]
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[:-1])
    flipped = bytearray(paths[2].read_bytes())
    flipped[len(flipped) // 2] ^= 4
    paths[2].write_bytes(flipped)
    (folder / "0001-00000009-1-x.batch.part").write_bytes(whole[:1000])
    result = drain_spool(tmp_path)
    assert (result.files, result.damaged, result.stored) == (4, 2, 32)
    assert list(Step.objects.order_by("index").values_list("index", flat=True)) == [0, 3]
    parked = {bytes(row.payload): row.reason for row in ParkedBatch.objects.all()}
    assert parked.keys() == {whole[:-1], bytes(flipped)}
    assert all("damaged or cut short" in reason for reason in parked.values())
    assert [path.name for path in folder.iterdir()] == ["0001-00000009-1-x.batch.part"]


def test_incident_D9_every_cut_and_every_flipped_bit_is_noticed(run: Run) -> None:
    data = make_batch(run, groups=1, group_size=2, tokens=3).to_bytes()
    rng = np.random.default_rng(0)
    damaged = [data[:cut] for cut in rng.integers(0, len(data), 200)]
    for position in rng.integers(0, len(data), 400).tolist():
        flipped = bytearray(data)
        flipped[position] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(flipped))
    for bad in damaged:
        with pytest.raises(ValueError, match="x: "):
            RolloutBatch.from_bytes(bad, where="x")


def test_incident_D13_a_batch_is_stored_whole_or_not_at_all(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch(run, groups=125, group_size=8, tokens=2)
    with connection.cursor() as cursor:
        # The database itself refuses the 500th rollout.
        cursor.execute("ALTER TABLE runs_rollout ADD CONSTRAINT no_500 CHECK (NOT (policy_version = 500))")
    versions = [500 if row == 500 else 0 for row in range(1000)]
    with pytest.raises(IntegrityError, match="no_500"):
        store_batch(make_batch(run, groups=125, group_size=8, tokens=2, policy_version=versions), source="test")
    assert (Rollout.objects.count(), Batch.objects.count()) == (0, 0)
    assert store_batch(batch, source="test").stored == 1000
    assert store_batch(batch, source="test").was_known
    assert Rollout.objects.count() == 1000


def test_incident_D14_a_retry_with_nan_is_known_and_costs_little(run: Run) -> None:
    with connection.cursor() as cursor:
        # A run with a million points of one metric.
        cursor.execute(
            "INSERT INTO runs_metricchunk (run_id, attempt_id, name, part, steps, values)"
            " SELECT %s, %s, 'loss', p, array_fill(p, ARRAY[256]), array_fill('NaN'::float8, ARRAY[256])"
            " FROM generate_series(0, 3905) p",
            [run.pk, Attempt.objects.get().pk],
        )
    batch = make_batch(run, groups=16, reward=[NAN] * 64, advantage=[NAN] * 64)
    batch = replace(batch, metrics=pa.table({"name": ["loss", "kl_k1"], "value": [NAN, NAN]}))
    start = time.perf_counter()
    store_batch(batch, source="test")
    first = time.perf_counter() - start
    start = time.perf_counter()
    assert store_batch(batch, source="test").was_known
    assert time.perf_counter() - start < 2 * first
    assert Rollout.objects.count() == 64
    last = MetricChunk.objects.filter(name="loss").order_by("-part")[0]
    assert (last.part, len(last.steps)) == (3906, 1)


ODD_BYTES = [
    b"a\x00b",
    b"\\u0000",
    b"\xed\xa0\xbd",  # a lone surrogate
    b"\xf0\x9f\x98",  # an emoji cut in two
    b"\xc0\xaf",  # an overlong slash
    b"\xef\xbb\xbfBOM",
    "\u202eright to left\u0645".encode(),
    ("e" + "\u0301" * 100_000).encode(),
    "\U0010ff41".encode(),  # a character of the escape's own block
    b"",
    b"\xff" * 20,
    b"quote\" comma, newline\r\n backslash \\N \\. tab\t",
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD_BYTES, ids=lambda odd: repr(odd[:12]))
def test_incident_I1_I2_odd_bytes_are_kept_without_loss_everywhere(run: Run, odd: bytes) -> None:
    texts = {name: [odd] * 4 for name in ("completion", "feedback", "parsed_answer", "sketch")}
    batch = with_groups(make_batch(run, groups=1, **texts), prompt=[odd], answer=[odd], oracle_trace=[odd])
    assert store_batch(batch, source="test").stored == 4
    assert completions(run) == [odd] * 4
    rollout = Rollout.objects.select_related("chunk").earliest("id")
    details = unpack_chunk(bytes(rollout.chunk.payload)).rollouts[0].details
    assert details["feedback"] == details["parsed_answer"] == details["sketch"] == odd
    prompt = Prompt.objects.get()
    assert bytes(prompt.text) == bytes(prompt.answer or b"") == bytes(prompt.oracle_trace or b"") == odd
    assert rollout.parsed_answer is not None
    if len(rollout.parsed_answer) < 200:
        assert bytes_from_text(rollout.parsed_answer) == odd
    else:
        assert rollout.parsed_answer.endswith("…")


@pytest.mark.parametrize("odd", ["a\x00b", "\ud83d"], ids=["nul", "surrogate"])
def test_incident_I1_I2_odd_characters_in_json_and_short_texts(run: Run, odd: str) -> None:
    raw = json.dumps({"name": odd})
    short = odd.replace("\ud83d", "\ufffd")  # an Arrow string cannot hold a lone surrogate
    batch = make_batch(run, groups=1, transform=[raw] * 4, drop_reason=[short] * 4, turns=[f"[{raw}]".encode()] * 4)
    batch = with_groups(
        batch, parameters=[raw], sampling=[raw], stratum_keys=[raw], generator=[short], queue_state=[short]
    )
    spans = batch.reward_spans.set_column(5, "name", pa.array([short] * 8)).set_column(
        6, "version", pa.array([short] * 8)
    )
    header = replace(batch.header, events=[{"kind": odd}], phase_seconds={odd: 1.0})
    metrics = pa.table({"name": [short], "value": [1.0]})
    outcome = store_batch(replace(batch, header=header, reward_spans=spans, metrics=metrics), source="test")
    assert outcome.stored == 4
    group, rollout, step = (
        Group.objects.select_related("prompt").get(),
        Rollout.objects.earliest("id"),
        Step.objects.get(),
    )
    for stored in (
        group.sampling["name"],
        group.stratum_keys["name"],
        group.prompt.parameters["name"],
        step.events[0]["kind"],
    ):
        assert bytes_from_text(stored) == odd.encode("utf-8", "surrogatepass")
    for stored in (
        rollout.drop_reason,
        group.prompt.generator,
        MetricChunk.objects.get().name,
        rollout.reward_parts.first().name,
    ):
        assert bytes_from_text(stored) == short.encode()


ODD_FLOATS = [NAN, INF, -INF, -0.0, 1e300, -1e300, 1e-50, 5e-324, 1.7976931348623157e308]


def as_float32(value: float) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.array([value, 1.0]).astype(np.float32)


def test_incident_I3_odd_numbers_are_kept_and_counted(run: Run) -> None:
    count = len(ODD_FLOATS)
    tokens = [as_float32(value) for value in ODD_FLOATS]
    columns: dict[str, list[Any]] = dict.fromkeys(
        ("sampler_logprobs", "policy_logprobs", "entropy", "token_advantages", "token_weights"), tokens
    )
    nothing = dict.fromkeys(
        ("ref_logprobs", "loss_mask", "clip_flag", "origin", "token_policy_version", "step_boundaries"), [None] * count
    )
    batch = make_batch(
        run,
        groups=1,
        group_size=count,
        reward=ODD_FLOATS,
        advantage=ODD_FLOATS,
        token_ids=[[1, 2]] * count,
        **columns,
        **nothing,
    )
    spans = batch.reward_spans.slice(0, 0)
    metrics = pa.table({"name": [f"m{i}" for i in range(count)], "value": ODD_FLOATS})
    with np.errstate(all="ignore"):
        outcome = store_batch(replace(batch, reward_spans=spans, metrics=metrics), source="test")
    assert outcome.stored == count
    rows = Rollout.objects.order_by("number").select_related("chunk")
    for value, tokens_in, rollout in zip(ODD_FLOATS, tokens, rows, strict=True):
        assert struct.pack("d", rollout.reward) == struct.pack("d", value) or value != value == (
            rollout.reward == rollout.reward
        )
        packed = unpack_chunk(bytes(rollout.chunk.payload)).rollouts[rollout.position]
        assert packed.columns["sampler_logprobs"].tobytes() == tokens_in.tobytes()
    step = Step.objects.get()
    assert step.unscored_count == 3  # NaN and both infinities
    assert step.reward_mean is not None
    for table in (Rollout, Step, Group, MetricChunk):
        for row in table.objects.values():
            text = dumps({name: value for name, value in row.items() if isinstance(value, float | list | int | str)})
            json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert [struct.pack("d", c.values[0]) for c in MetricChunk.objects.order_by("name")][1:] == [
        struct.pack("d", v) for v in ODD_FLOATS
    ][1:]


def test_incident_I5_long_and_incompressible_texts_meet_a_limit_or_a_digest(run: Run) -> None:
    rng = np.random.default_rng(0)
    noise = "".join(chr(c) for c in rng.integers(33, 0x2FFF, 10_000))
    batch = with_groups(make_batch(run, groups=2), prompt=[noise.encode(), b"short"], answer=[noise.encode()] * 2)
    batch = with_groups(batch, generator=["addition", noise])
    metrics = pa.table({"name": [noise, "loss"], "value": [1.0, 2.0]})
    outcome = store_batch(replace(batch, metrics=metrics), source="test")
    assert (outcome.stored, outcome.refused) == (4, 4)
    assert "generator has 10000 characters, the limit is 120" in RefusedRow.objects.all()[0].reason
    assert bytes(Prompt.objects.get().text) == noise.encode()
    assert [event["kind"] for event in Step.objects.get().events] == ["refused-metric"]
    assert not MetricChunk.objects.exclude(name="loss").exists()


@pytest.mark.parametrize(
    "parameters",
    [
        '{"a":' * 20_000 + "1" + "}" * 20_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a": ' + "9" * 5000 + "}",
        '{"a": 1e400}',
        '{"a": Infinity}',
        '{"a": "' + "x" * 1_000_001 + '"}',
    ],
    ids=["depth 20,000", "depth 100,000", "5,000 digits", "1e400", "Infinity", "1 MB"],
)
def test_incident_I6_I7_json_that_could_not_be_read_back_is_refused(run: Run, parameters: str) -> None:
    batch = with_groups(
        make_batch(run, groups=2), parameters=[parameters, '{"big": 18446744073709551616, "small": 1e-300}']
    )
    outcome = store_batch(batch, source="test")
    assert (outcome.stored, outcome.refused) == (4, 4)
    assert all("parameters: " in reason for reason in RefusedRow.objects.values_list("reason", flat=True))
    assert Prompt.objects.get().parameters == {"big": 2**64, "small": 1e-300}
    assert loads(dumps(Prompt.objects.get().parameters)) == {"big": 2**64, "small": 1e-300}


def test_incident_I4_5_mb_of_text_is_stored_whole(run: Run) -> None:
    text = " ".join(f"word{n}" for n in range(550_000)).encode()
    assert len(text) > 5_000_000
    store_batch(make_batch(run, groups=1, completion=[text, b"a", b"b", b"c"]), source="test")
    assert completions(run) == [text, b"a", b"b", b"c"]


def at_once(work: Callable[[int], object], count: int) -> None:
    """Run `work(0)` to `work(count - 1)` in threads that start together; raises what any of them raised."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def one(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=one, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.django_db(transaction=True)
def test_incident_R8_writers_of_the_same_new_prompts_make_each_once(project: Any) -> None:
    batches = [make_batch(make_run(project, f"run {n}"), groups=20, group_size=1, tokens=1) for n in range(6)]
    batches = [
        with_groups(batch, prompt=[b"prompt %d" % i for i in range(20)], answer=[b"1"] * 20) for batch in batches
    ]
    at_once(lambda n: store_batch(batches[n], source="test"), 6)
    assert (Prompt.objects.count(), Group.objects.count()) == (20, 120)


@pytest.mark.django_db(transaction=True)
def test_incident_R8_prompts_in_any_order_never_wait_in_a_circle(project: Any) -> None:
    empty = dict.fromkeys(("generator", "parameters", "difficulty", "answer", "oracle_trace"))
    groups = [{**empty, "prompt": b"prompt %d" % n} for n in range(4000)]
    ids: dict[int, list[int]] = {}

    def write(writer: int) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            mine = groups if writer % 2 else groups[::-1]
            ids[writer] = upsert_prompts(cursor, project.pk, mine)[:: 1 if writer % 2 else -1]

    at_once(write, 4)
    assert Prompt.objects.count() == 4000
    assert ids[0] == ids[1] == ids[2] == ids[3]


@pytest.mark.django_db(transaction=True)
def test_the_same_batch_at_once_is_stored_once(run: Run) -> None:
    batch = make_batch(run, groups=8)
    outcomes = []
    at_once(lambda _: outcomes.append(store_batch(batch, source="test")), 6)
    assert sorted(outcome.was_known for outcome in outcomes) == [False, True, True, True, True, True]
    assert {outcome.stored for outcome in outcomes} == {32}
    assert Rollout.objects.count() == 32


@pytest.mark.django_db(transaction=True)
def test_different_batches_of_one_new_step_at_once_all_count(run: Run) -> None:
    whole = make_batch(run, groups=6)
    batches = []
    for group in range(6):
        header = replace(whole.header, batch_id=f"00000000-0000-0000-0000-{group:012d}")
        rows = whole.rollouts.slice(4 * group, 4)
        batches.append(replace(whole, header=header, rollouts=rows, reward_spans=whole.reward_spans.slice(0, 0)))
    at_once(lambda n: store_batch(batches[n], source="test"), 6)
    assert Step.objects.get().rollout_count == 24
    assert list(problems()) == []
