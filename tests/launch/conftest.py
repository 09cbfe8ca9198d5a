"""Real workers, a real broker and a committed database."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from rlviewer.accounts.models import Project
from rlviewer.celery import app
from rlviewer.embedded.redis import program
from rlviewer.launch.process import RunFolder, TrainerRecord
from rlviewer.launch.services import launch_run
from rlviewer.runs.models import Run, RunState
from tests.factories import make_project, make_user
from training.config import RunConfig

ROOT = Path(__file__).resolve().parents[2]


class Broker:
    """A Redis of our own, which may be flushed, stopped and started."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "redis.sock"
        self.url = f"redis+socket://{self.socket}"
        self.client = redis.Redis(unix_socket_path=str(self.socket))
        self.start()

    def start(self) -> None:
        options = ["--port", "0", "--unixsocket", str(self.socket), "--save", "", "--dir", str(self.socket.parent)]
        self.process = subprocess.Popen([str(program()), *options], stdout=subprocess.DEVNULL)
        wait_until(self.is_up, 10, "Redis to start")

    def is_up(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Workers:
    """Workers as a supervisor starts them, and what a test asks of them."""

    def __init__(self, folder: Path, home: Path, broker: Broker, database_url: str, project: Project) -> None:
        self.folder = folder
        self.broker = broker
        self.project = project
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "DATABASE_URL": database_url,
            "REDIS_URL": broker.url,
            "RLVIEWER_HOME": str(home),
            "RLVIEWER_VISIBILITY_TIMEOUT_SECONDS": "5",
            "RLVIEWER_TRAINER_MODULE": "tests.launch.scripted_trainer",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, **environment: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "celery", "-A", "rlviewer", "worker", "--pool=threads", "--concurrency=1"]
        command += ["--queues=cpu", "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=INFO"]
        with open(self.folder / f"worker-{len(self.processes)}.log", "wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**self.environment, **environment}, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def explain(self, run: Run) -> str:
        folder = RunFolder(str(run.uid), run.current_attempt)
        log = folder.log.read_text() if folder.log.exists() else "no log"
        attempts = list(run.attempts.order_by("number").values("number", "state", "reason"))
        return f"the run is {run.state}: {run.state_reason}\n{attempts}\n{log}\n{self.log()}"

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("worker-*.log")))

    def launch(self, script: str = "quick", *, steps: int = 5, **config: Any) -> Run:
        raw = {"name": script, "steps": steps, "checkpoint": {"every_steps": 1}, **config}
        return launch_run(None, self.project, RunConfig.from_dict(raw))

    def wait_for(self, run: Run, *states: str, seconds: float = 30, from_end: bool = False) -> Run:
        """Wait until the run is in one of `states`; another final state ends the wait unless `from_end`."""

        def is_there() -> bool:
            run.refresh_from_db()
            assert from_end or run.state in states or not RunState(run.state).is_terminal, self.explain(run)
            return run.state in states

        wait_until(is_there, seconds, f"run {run.pk} to be {' or '.join(states)}", lambda: self.explain(run))
        return run

    def wait_for_step(self, run: Run, step: int, seconds: float = 30) -> Run:
        def is_there() -> bool:
            run.refresh_from_db()
            return run.last_step is not None and run.last_step >= step

        wait_until(is_there, seconds, f"step {step} of run {run.pk}", lambda: self.explain(run))
        return run

    def trainer_of(self, run: Run) -> TrainerRecord:
        return next(note for note in TrainerRecord.all() if note.run_uid == str(run.uid))

    def starts(self, run: Run) -> list[dict[str, Any]]:
        """Every trainer that ever started for a run, as the trainers wrote it down."""
        path = RunFolder(str(run.uid), 1).root / "starts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for note in TrainerRecord.all():
            note.kill()


def wait_until(condition: Callable[[], bool], seconds: float, what: str, explain: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {what}\n{explain()}")
        time.sleep(0.1)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.stop()


@pytest.fixture
def workers(
    transactional_db: None,
    tmp_path: Path,
    settings: Any,
    broker: Broker,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Workers]:
    home = tmp_path / "home"
    home.mkdir()
    settings.HOME = home
    monkeypatch.setitem(app.conf, "broker_url", broker.url)
    forget_broker()
    workers = Workers(tmp_path, home, broker, database_url, make_project(admin=make_user("alice")))
    yield workers
    workers.stop()
    forget_broker()


def forget_broker() -> None:
    """Celery keeps connections to the broker that it first saw."""
    from kombu import pools

    pools.reset()
    app._pool = None
    app.amqp.__dict__.pop("_producer_pool", None)
