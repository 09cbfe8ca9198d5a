"""Export and import: the same run again, byte for byte, and nothing of a damaged or hostile folder."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from rlviewer.accounts.models import Project
from rlviewer.ingest import archive
from rlviewer.ingest.archive import ArchiveError
from rlviewer.ingest.consistency import problems
from rlviewer.ingest.exporting import UNFINISHED, export_run
from rlviewer.ingest.importing import import_run
from rlviewer.ingest.models import Batch, RefusedRow
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Attempt, Checkpoint, Rollout, Run, RunState, TokenChunk, Vocabulary
from tests.factories import fill_run, make_batch, make_project, make_run
from training import vocabulary


@pytest.fixture
def filled(run: Run) -> Run:
    return fill(run)


@pytest.fixture(scope="module")
def exported(django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported run that is in no database."""
    folder = tmp_path_factory.mktemp("archive") / "out"
    with django_db_blocker.unblock(), transaction.atomic():
        export_run(fill(make_run(make_project())), folder)
        transaction.set_rollback(True)
    return folder


def fill(run: Run) -> Run:
    """A run with everything a run can hold: two attempts, refused rows, odd bytes and numbers, an extra column."""
    fill_run(run, 3)
    Attempt.objects.create(run=run, number=2, state="failed", reason="killed by signal 9", signal=9, exit_code=None)
    odd = make_batch(
        run, attempt=2, step=2, completion=[b"a\x00b", b"\xff\xfe", b"", "\ud83d".encode("utf-8", "surrogatepass")] * 4,
        parsed_answer=[b"x" * 5000, None, b"", b"\0"] * 4, transform=['{"name": "shuffle"}', None] * 8,
        reward=[float("nan"), -0.0, float("inf"), None] * 4, drop_reason=["nul \0 inside", None] * 8,
        turns=[b'[{"role": "user"}]', None] * 8, kept=[True, None] * 8,
        stop_reason=[*["stop"] * 15, "unknown"],
    )  # fmt: skip
    extra = [None if n % 3 else np.full(len(ids), n, np.float32) for n, ids in enumerate(odd.rollouts["token_ids"])]
    odd = replace(odd, rollouts=odd.rollouts.append_column("x_divergence", pa.array(extra, pa.list_(pa.float32()))))
    store_batch(odd, source="test")
    empty = make_batch(run, step=9)
    store_batch(
        replace(empty, rollouts=empty.rollouts.slice(0, 0), reward_spans=empty.reward_spans.slice(0, 0)), source="test"
    )
    Checkpoint.objects.create(run=run, attempt=run.attempts.get(number=1), step=2, size_bytes=123, sha256="ab" * 32)
    payload = vocabulary.pack([b"a", b"\xff", b"\0"])
    words = Vocabulary.objects.create(sha256=hashlib.sha256(payload).digest(), size=3, payload=payload)
    Run.objects.filter(pk=run.pk).update(
        state="finished", tags=["one", "two"], config={"b": [1, 2.5, None], "a": {"x": "\u00e9"}}, vocabulary=words, current_attempt=2,
    )  # fmt: skip
    Attempt.objects.filter(run=run, number=1).update(state="failed")
    run.refresh_from_db()
    return run


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_comes_back_byte_for_byte(filled: Run, tmp_path: Path) -> None:
    export_run(filled, tmp_path / "first")
    other = make_project("elsewhere")
    again = import_run(tmp_path / "first", other)
    export_run(again, tmp_path / "second")
    first, second = files_of(tmp_path / "first"), files_of(tmp_path / "second")
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    for name in (
        "rollout_count",
        "token_count",
        "last_step",
        "latest_reward",
        "base_pass",
        "latest_pass",
        "created_at",
        "tags",
        "config",
    ):
        assert getattr(again, name) == getattr(filled, name), name
    assert (again.rollout_count, again.uid == filled.uid, again.project) == (5 * 16 + 15, False, other)
    assert RefusedRow.objects.filter(batch__run=again).count() == 1
    assert Checkpoint.objects.get(run=again).is_deleted
    assert list(problems()) == []


def test_importing_twice_makes_two_runs(filled: Run, tmp_path: Path) -> None:
    export_run(filled, tmp_path / "out")
    first, second = (import_run(tmp_path / "out", filled.project) for _ in range(2))
    assert Rollout.objects.filter(run_id=first.pk).count() == Rollout.objects.filter(run_id=second.pk).count() == 95


def test_the_files_hold_the_original_columns(filled: Run, tmp_path: Path) -> None:
    export_run(filled, tmp_path / "out")
    batch = make_batch(filled, step=1)
    table = pq.read_table(tmp_path / "out" / "rollouts-00000.parquet").to_pylist()
    rows = [row for row in table if (row["attempt"], row["split"], row["step"]) == (1, "train", 1)]
    for row, original in zip(rows, batch.rollouts.to_pylist(), strict=True):
        # repr, since NaN is not equal to itself
        assert {name: repr(row[name]) for name in original} == {name: repr(value) for name, value in original.items()}


def test_a_long_run_is_cut_into_files_of_whole_steps(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "ROLLOUTS_PER_FILE", 40)
    fill_run(run, 5)
    export_run(run, tmp_path / "out")
    names = [path.name for path in sorted((tmp_path / "out").glob("rollouts-*"))]
    assert names == [f"rollouts-{n:05d}.parquet" for n in range(4)]
    assert import_run(tmp_path / "out", run.project).rollout_count == 7 * 16


def test_a_run_that_is_not_over_is_exported_as_stopped(run: Run, tmp_path: Path) -> None:
    Run.objects.filter(pk=run.pk).update(state="running")
    export_run(run, tmp_path / "out")
    again = import_run(tmp_path / "out", run.project)
    assert (again.state, again.state_reason) == (RunState.STOPPED, UNFINISHED)
    export_run(again, tmp_path / "second")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "second")


def test_a_failed_export_leaves_nothing(filled: Run, tmp_path: Path) -> None:
    TokenChunk.objects.all().update(payload=b"broken")
    with pytest.raises(ValueError, match="chunk"):
        export_run(filled, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("/nonexistent")])
def test_an_export_never_writes_over_anything(run: Run, tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "out")
    with pytest.raises(ArchiveError, match="exists already"):
        export_run(run, tmp_path / "out")


def rewritten(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def with_table(folder: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a table and its checksum: what a hostile writer would do."""
    pq.write_table(change(pq.read_table(folder / name)), folder / name)
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    rewritten(folder, lambda manifest: manifest["files"][name].update(sha256=digest))


def with_cell(column: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(column)
        values = table.column(index).to_pylist()
        values[row] = value
        return table.set_column(index, column, pa.array(values, table.schema.field(index).type))

    return change


def cut(folder: Path) -> None:
    data = (folder / "rollouts-00000.parquet").read_bytes()
    (folder / "rollouts-00000.parquet").write_bytes(data[:-10])


def flip(folder: Path) -> None:
    data = bytearray((folder / "groups-00000.parquet").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "groups-00000.parquet").write_bytes(data)


def link(folder: Path) -> None:
    (folder / "spans-00000.parquet").rename(folder.parent / "elsewhere")
    (folder / "spans-00000.parquet").symlink_to(folder.parent / "elsewhere")


def pipe(folder: Path) -> None:
    (folder / "steps.parquet").unlink()
    os.mkfifo(folder / "steps.parquet")


def named(name: str) -> Callable[[Path], None]:
    return lambda folder: rewritten(folder, lambda m: m["files"].update({name: {"rows": 1, "sha256": "0" * 64}}))


def manifest(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: rewritten(folder, lambda m: m.update(changes))


def of_run(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: rewritten(folder, lambda m: m["run"].update(changes))


def of_attempt(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: rewritten(folder, lambda m: m["attempts"][0].update(changes))


def cell(name: str, column: str, row: int, value: Any) -> Callable[[Path], None]:
    return lambda folder: with_table(folder, name, with_cell(column, row, value))


def table(name: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    return lambda folder: with_table(folder, name, change)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "rollouts-00000.parquet: damaged"),
        (flip, "groups-00000.parquet: damaged"),
        (link, "spans-00000.parquet: Too many levels of symbolic links"),
        (pipe, "steps.parquet: not a plain file"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json: No such file"),
        (lambda folder: (folder / "manifest.json").write_bytes(b"\xff{"), "manifest.json: not JSON"),
        (lambda folder: (folder / "manifest.json").write_text("[" * 100_000), "manifest.json: "),
        (lambda folder: (folder / "trackers.parquet").unlink(), "trackers.parquet: No such file"),
        (named("../../etc/passwd"), "is no file of an exported run"),
        (named("/etc/passwd"), "is no file of an exported run"),
        (named("rollouts-00000.parquet/../x"), "is no file of an exported run"),
        (named("rollouts-00000.parquet\n"), "is no file of an exported run"),
        (named("rollouts-00007.parquet"), "rollouts-00007.parquet: No such file"),
        (manifest(format="zip"), "not the manifest of an exported run"),
        (manifest(version=2), "version 2"),
        (manifest(attempts=None), "run, attempts or files is missing"),
        (manifest(attempts=[]), "attempts [] with attempt 2"),
        (manifest(files={}), "the manifest lists no steps.parquet"),
        (of_run(state="running"), "state 'running'"),
        (of_run(state=["finished"]), "state ['finished']"),
        (of_run(name="n" * 201), "name: "),
        (of_run(name=None), "name: "),
        (of_run(seed=2**63), "seed: "),
        (of_run(steps_planned="many"), "steps_planned: "),
        (of_run(created_at="yesterday"), "'yesterday' is no time"),
        (of_run(created_at=None), "created_at"),
        (of_run(ended_at="0001-01-01T00:00:00+00:00"), "is no time"),
        (of_run(tags=["t" * 61]), "tags: "),
        (of_run(tags="no list"), "tags: must be a list"),
        (of_run(config=[]), "config: must be an object"),
        (of_run(project_id=1), "must hold"),
        (of_run(current_attempt=7), "attempt 7 as the current one"),
        (of_attempt(number=2), "attempts [2]"),
        (of_attempt(number=0), "attempt"),
        (of_attempt(state="queued"), "state 'queued'"),
        (cell("rollouts-00000.parquet", "stop_reason", 3, "bang"), "rollout 3: stop_reason 'bang'"),
        (cell("rollouts-00000.parquet", "token_ids", 3, [-1]), "rollout 3: "),
        (cell("rollouts-00000.parquet", "group", 3, 77), "rollout 3: group"),
        (cell("spans-00000.parquet", "step", 3, 77), "of a step without groups"),
        (cell("groups-00000.parquet", "attempt", 0, 5), "step"),
        (cell("groups-00000.parquet", "parameters", 0, "{"), "parameters: not JSON"),
        (cell("spans-00000.parquet", "number", 0, 77), "no rollout"),
        (cell("spans-00000.parquet", "token_end", 0, 7777), "its tokens lie outside the rollout"),
        (cell("steps.parquet", "events", 0, "[NaN]"), "NaN is not JSON"),
        (cell("steps.parquet", "step", 0, 5), "is missing or appears in two parts"),
        (cell("steps.parquet", "step", 0, -5), "step"),
        (cell("metrics.parquet", "attempt", 0, 9), "is no point of this run"),
        (cell("metrics.parquet", "name", 0, "n" * 121), "metric name has 121 characters"),
        (cell("metrics.parquet", "value", 0, None), "is no point of this run"),
        (cell("trackers.parquet", "prompt", 0, b"x" * 16), "no group has the prompt"),
        (cell("checkpoints.parquet", "sha256", 0, "x" * 65), "is no checkpoint of this run"),
        (cell("checkpoints.parquet", "step", 0, None), "is no checkpoint of this run"),
        (cell("refused.parquet", "split", 0, "s" * 41), "names no step of this run"),
        (table("steps.parquet", lambda t: t.drop_columns(["events"])), "its columns are"),
        (table("rollouts-00000.parquet", lambda t: t.append_column("evil", pa.nulls(t.num_rows))), "its columns are"),
        (table("metrics.parquet", lambda t: t.set_column(3, "value", pa.array(["x"] * t.num_rows))), "not a readable"),
        (table("steps.parquet", lambda t: pa.concat_tables([t, t.slice(0, 1)])), "a step appears twice"),
        (table("rollouts-00000.parquet", lambda t: pa.concat_tables([t, t.slice(0, 1)])), "appears twice"),
    ],
)  # fmt: skip
def test_a_damaged_or_hostile_folder_is_refused_whole(
    project: Project, exported: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    folder = shutil.copytree(exported, tmp_path / "out")
    damage(folder)
    with pytest.raises(ArchiveError) as refused:
        import_run(folder, project)
    assert message in str(refused.value)
    assert (Run.objects.count(), Batch.objects.count(), Rollout.objects.count()) == (0, 0, 0)


def test_commands(filled: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    call_command("export_run", str(filled.uid), "--to", out)
    call_command("import_run", out, "--project", "Arithmetic")
    assert "7 steps, 95 rollouts" in capsys.readouterr().out
    assert Run.objects.latest("id").rollout_count == 95
    for arguments, message in [
        (["export_run", "999999", "--to", out + "2"], "there is no run 999999"),
        (["export_run", "x", "--to", out + "2"], "neither the number nor the UUID"),
        (["export_run", str(filled.pk), "--to", out], "exists already"),
        (["import_run", out, "--project", "nope"], "there is no project 'nope'; there are: arithmetic"),
        (["import_run", out + "3", "--project", "arithmetic"], "No such file"),
    ]:
        with pytest.raises(CommandError, match=message):
            call_command(*arguments)
