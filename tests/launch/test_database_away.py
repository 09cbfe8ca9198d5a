"""Postgres goes away and comes back while a run trains. A server of its own, since it is killed."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rlviewer.embedded import paths
from rlviewer.embedded.folders import make_home
from rlviewer.embedded.postgres import Postgres
from tests.launch.conftest import ROOT, wait_until

pytestmark = pytest.mark.timeout(180)

CONFIG = """
name = "step_seconds=0.2"
steps = {steps}
[checkpoint]
every_steps = 5
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def postgres(home: Path) -> Iterator[Postgres]:
    server = Postgres(home, make_home(home), durable=True)
    assert server.claim(timeout=0)
    server.start()
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture
def environment(home: Path, postgres: Postgres) -> dict[str, str]:
    own = {
        "DATABASE_URL": paths.postgres_url(home),
        "REDIS_URL": f"redis+socket://{home}/none.sock",
        "RLVIEWER_HOME": str(home),
        "RLVIEWER_TRAINER_MODULE": "tests.launch.scripted_trainer",
    }
    environment = {**os.environ, **own}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environment, check=True)
    return environment


def ask(home: Path, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(paths.postgres_url(home)) as connection:
        return connection.execute(sql).fetchall()


def kill_hard(postgres: Postgres) -> None:
    """The server and its backends, all at once, as a power loss would."""
    assert postgres.process is not None
    for child in Path(f"/proc/{postgres.process.pid}/task/{postgres.process.pid}/children").read_text().split():
        with contextlib.suppress(ProcessLookupError):  # a backend whose client has just left
            os.kill(int(child), 9)
    postgres.process.kill()
    postgres.process.wait()


def test_incident_D4_training_goes_on_without_postgres_and_nothing_is_lost_or_doubled(
    home: Path, postgres: Postgres, environment: dict[str, str]
) -> None:
    config = home / "config.toml"
    config.write_text(CONFIG.format(steps=70))
    command = subprocess.Popen(
        [sys.executable, "manage.py", "train", str(config)],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: ask(home, "SELECT max(index) FROM runs_step")[0][0] is not None, 30, "the first step")
    kill_hard(postgres)
    spools = home / "runs"
    wait_until(lambda: len(list(spools.glob("*/spool/*.batch"))) >= 10, 30, "batches to wait on disk")
    assert command.poll() is None
    postgres.lock.release()
    assert postgres.claim(timeout=10)
    postgres.start()
    postgres.wait_ready()
    _, err = command.communicate(timeout=90)
    assert command.returncode == 0, err
    assert ask(home, "SELECT state, state_reason, rollout_count FROM runs_run") == [("finished", "", 140)]
    assert ask(home, "SELECT count(*), count(DISTINCT index) FROM runs_step WHERE is_current") == [(70, 70)]
    assert ask(home, "SELECT count(*) FROM runs_rollout") == [(140,)]
    assert ask(home, "SELECT sum(received), sum(stored), count(*) FROM ingest_batch") == [(140, 140, 70)]
    assert ask(home, "SELECT count(*) FROM ingest_parkedbatch") == [(0,)]
    assert not list(spools.glob("*/spool/*"))


def test_incident_D4_a_run_that_ends_while_postgres_is_away_is_recorded_when_it_is_back(
    home: Path, postgres: Postgres, environment: dict[str, str]
) -> None:
    config = home / "config.toml"
    config.write_text(CONFIG.format(steps=20))
    command = subprocess.Popen([sys.executable, "manage.py", "train", str(config)], cwd=ROOT, env=environment)
    wait_until(lambda: ask(home, "SELECT max(index) FROM runs_step")[0][0] is not None, 30, "the first step")
    kill_hard(postgres)
    status = next(home.glob("runs/*/attempts/1/status.json"))
    wait_until(lambda: '"finished"' in status.read_text(), 30, "the trainer to finish by itself")
    time.sleep(1)
    postgres.lock.release()
    assert postgres.claim(timeout=10)
    postgres.start()
    postgres.wait_ready()
    assert command.wait(60) == 0
    assert ask(home, "SELECT state, rollout_count FROM runs_run") == [("finished", 40)]
