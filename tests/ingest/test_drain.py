"""The spool into the database: whatever dies at whatever moment, every rollout is stored exactly once."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import DataError, OperationalError, connections

from rlviewer.embedded import paths
from rlviewer.embedded.folders import make_home
from rlviewer.embedded.postgres import Postgres
from rlviewer.ingest import drain
from rlviewer.ingest.consistency import problems
from rlviewer.ingest.drain import drain_spool
from rlviewer.ingest.models import Batch, ParkedBatch
from rlviewer.runs.models import Rollout, Run, Step
from tests.factories import make_batch
from training import spool
from training.records import RolloutBatch


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    return tmp_path


def fill(run_dir: Path, run: Run, steps: int, **shape: int) -> list[Path]:
    return [spool.put(run_dir / "spool", make_batch(run, step=step, **shape)) for step in range(steps)]


def test_files_are_stored_in_order_and_deleted(run: Run, run_dir: Path) -> None:
    paths = fill(run_dir, run, 3)
    result = drain_spool(run_dir)
    assert (result.files, result.received, result.stored, result.damaged) == (3, 48, 48, 0)
    assert list(Step.objects.order_by("id").values_list("index", flat=True)) == [0, 1, 2]
    assert not any(path.exists() for path in paths)
    assert Batch.objects.filter(source="spool").count() == 3
    assert all(len(sha256) == 64 for sha256 in Batch.objects.values_list("sha256", flat=True))


def test_a_folder_without_files_or_none_at_all_is_no_trouble(db: None, tmp_path: Path) -> None:
    assert drain_spool(tmp_path).files == 0


def test_a_file_left_by_a_crash_after_the_commit_is_only_deleted(run: Run, run_dir: Path) -> None:
    (path,) = fill(run_dir, run, 1)
    data = path.read_bytes()
    drain_spool(run_dir)
    path.write_bytes(data)
    result = drain_spool(run_dir)
    assert (result.files, result.stored) == (1, 0)
    assert not path.exists()
    assert Rollout.objects.count() == 16


def test_a_file_is_deleted_only_after_its_commit(run: Run, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = fill(run_dir, run, 2)

    def away(*_: object, **__: object) -> None:
        raise OperationalError("the database system is shutting down")

    with monkeypatch.context() as patch:
        patch.setattr(drain, "store_prepared", away)
        with pytest.raises(OperationalError):
            drain_spool(run_dir)
    assert first.exists() and second.exists()
    assert drain_spool(run_dir).stored == 32


def too_large() -> OperationalError:
    error = OperationalError("index row size 3000 exceeds btree version 4 maximum 2704")
    error.__cause__ = psycopg.errors.ProgramLimitExceeded()
    return error


@pytest.mark.parametrize("error", [DataError("value out of range"), too_large()], ids=["data", "limit"])
def test_a_batch_that_postgres_refuses_is_parked_for_a_person(
    run: Run, run_dir: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    first, second = fill(run_dir, run, 2)
    data = first.read_bytes()
    real = drain.store_prepared

    def picky(prepared: object, **rest: object) -> object:
        if prepared.header.step == 0:  # type: ignore[attr-defined]
            raise error
        return real(prepared, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(drain, "store_prepared", picky)
    result = drain_spool(run_dir)
    assert (result.damaged, result.stored) == (1, 16)
    parked = ParkedBatch.objects.get()
    assert bytes(parked.payload) == data
    assert str(error) in parked.reason
    assert not first.exists() and not second.exists()


def test_a_mistake_of_our_own_parks_the_batch_and_stops_no_other(
    run: Run, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(run_dir, run, 2)
    real = drain.prepare

    def broken(batch: RolloutBatch) -> object:
        return real(batch) if batch.header.step else {}["nothing"]

    monkeypatch.setattr(drain, "prepare", broken)
    result = drain_spool(run_dir)
    assert (result.damaged, result.stored) == (1, 16)
    assert "KeyError" in ParkedBatch.objects.get().reason


def test_a_damaged_file_too_large_for_a_row_is_put_aside(
    run: Run, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "MAX_PARKED_BYTES", 10)
    path = run_dir / "spool" / "0001-00000000-1-x.batch"
    path.write_bytes(b"RLVBAT1\n" + b"x" * 100)
    drain_spool(run_dir)
    parked = ParkedBatch.objects.get()
    assert (bytes(parked.payload), parked.reason.endswith("renamed to 0001-00000000-1-x.batch.damaged")) == (b"", True)
    assert [p.name for p in (run_dir / "spool").iterdir()] == ["0001-00000000-1-x.batch.damaged"]
    assert drain_spool(run_dir).files == 0


def test_what_cannot_be_read_stays_and_stops_no_other(run: Run, run_dir: Path) -> None:
    fill(run_dir, run, 1)
    odd = run_dir / "spool" / "0000-00000000-1-folder.batch"
    odd.mkdir()
    assert drain_spool(run_dir).stored == 16
    assert odd.is_dir()


def test_a_batch_of_an_unknown_run_is_parked_and_its_file_deleted(run: Run, run_dir: Path) -> None:
    fill(run_dir, Run(pk=0, uid=uuid.UUID("11111111-2222-3333-4444-555555555555")), 1)
    result = drain_spool(run_dir)
    assert (result.parked, result.stored, result.damaged) == (16, 0, 0)
    assert str(ParkedBatch.objects.get().run_uid).startswith("11111111")


@pytest.mark.django_db(transaction=True)
def test_two_drains_of_one_folder_store_once(run: Run, run_dir: Path) -> None:
    fill(run_dir, run, 8)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            drain_spool(run_dir)
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert Rollout.objects.count() == 8 * 16
    assert not list(spool.waiting(run_dir / "spool"))


DRAIN = """
import os, sys
from pathlib import Path
os.environ["DJANGO_SETTINGS_MODULE"] = "rlviewer.settings"
import django
django.setup()
from rlviewer.ingest.drain import drain_spool
print("ready", flush=True)
drain_spool(Path(sys.argv[1]))
"""


def start_drain(run_dir: Path, database_url: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "DATABASE_URL": database_url}
    process = subprocess.Popen([sys.executable, "-c", DRAIN, str(run_dir)], env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def kill_until_done(run: Run, run_dir: Path, database_url: str, *, steps: int, kills: int, seed: int) -> None:
    fill(run_dir, run, steps, groups=16, group_size=8, tokens=64)
    rng = random.Random(seed)
    killed = 0
    while any(True for _ in spool.waiting(run_dir / "spool")):
        process = start_drain(run_dir, database_url)
        if killed < kills:
            time.sleep(rng.uniform(0, 0.6))
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait(timeout=120)
    assert Rollout.objects.count() == steps * 128
    assert Rollout.objects.values("group__step__index", "group__index", "number").distinct().count() == steps * 128
    assert Batch.objects.count() == steps
    assert list(problems()) == []


@pytest.mark.django_db(transaction=True)
def test_kill_9_of_the_drain_at_random_instants(run: Run, run_dir: Path, database_url: str) -> None:
    kill_until_done(run, run_dir, database_url, steps=16, kills=4, seed=0)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("seed", range(5))
def test_kill_9_of_the_drain_50_times(run: Run, run_dir: Path, database_url: str, seed: int) -> None:
    kill_until_done(run, run_dir, database_url, steps=60, kills=50, seed=seed)


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[Postgres]:
    """A durable server of this test's own, since it is going to be killed."""
    home = tmp_path / "home"
    server = Postgres(home, make_home(home))
    assert server.claim(timeout=0)
    server.start()
    server.wait_ready()
    try:
        yield server
    finally:
        server.stop()


WRITER_SETUP = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "rlviewer.settings"
import django
django.setup()
from pathlib import Path
from django.core.management import call_command
call_command("migrate", verbosity=0)
from tests.factories import make_batch, make_project, make_run
from training import spool
run = make_run(make_project())
folder = Path(sys.argv[1]) / "spool"
for step in range(int(sys.argv[2])):
    spool.put(folder, make_batch(run, step=step, groups=16, group_size=8, tokens=64))
"""

DRAIN_STUBBORNLY = """
import os, sys, time
from pathlib import Path
os.environ["DJANGO_SETTINGS_MODULE"] = "rlviewer.settings"
import django
django.setup()
from django.db import InterfaceError, OperationalError, connection
from rlviewer.ingest.drain import drain_spool
from training import spool
run_dir = Path(sys.argv[1])
print("ready", flush=True)
while any(spool.waiting(run_dir / "spool")):
    try:
        drain_spool(run_dir)
    except (OperationalError, InterfaceError):
        connection.close()
        time.sleep(0.05)
"""

CHECK = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "rlviewer.settings"
import django
django.setup()
from rlviewer.ingest.consistency import problems
from rlviewer.runs.models import Rollout, Run
from django.db import transaction
with transaction.atomic():
    print(Rollout.objects.count(), Run.objects.get().rollout_count, list(problems()))
"""


def python(code: str, *arguments: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_postgres_killed_and_started_again_while_draining(own_postgres: Postgres, run_dir: Path) -> None:
    home = own_postgres.home
    env = {**os.environ, "DATABASE_URL": paths.postgres_url(home), "RLVIEWER_HOME": str(home)}
    steps = 20
    python(WRITER_SETUP, str(run_dir), str(steps), env=env)
    drainer = subprocess.Popen(
        [sys.executable, "-c", DRAIN_STUBBORNLY, str(run_dir)], env=env, stdout=subprocess.PIPE, text=True
    )
    assert drainer.stdout is not None
    assert drainer.stdout.readline() == "ready\n"
    for signal_number, left in ((signal.SIGKILL, steps - 1), (signal.SIGQUIT, steps // 2)):
        while (waiting := len(list(spool.waiting(run_dir / "spool")))) > left:
            time.sleep(0.005)
        assert waiting > 0  # the drain is at work
        assert own_postgres.process is not None
        own_postgres.process.send_signal(signal_number)
        own_postgres.process.wait(timeout=30)
        own_postgres.start()
        own_postgres.wait_ready()
    drainer.communicate(timeout=120)
    assert drainer.returncode == 0
    assert python(CHECK, env=env) == f"{steps * 128} {steps * 128} []"
    with psycopg.connect(paths.postgres_url(home)) as link:
        assert link.execute("SELECT current_setting('fsync')").fetchone() == ("on",)
