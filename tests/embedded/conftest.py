"""Whole stacks started as `make run` starts them, and a look at every process they leave."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from rlviewer.embedded.folders import Account
from rlviewer.embedded.processes import spawn

ROOT = Path(__file__).resolve().parents[2]
OURS = ("DATABASE_URL", "REDIS_URL", "RLVIEWER_SECRET_KEY", "RLVIEWER_HOME", "DEMO")
START_SECONDS = 90.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(is_so: Callable[[], object], *, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def environment_for(home: Path, **changes: str) -> dict[str, str]:
    """A newcomer's environment: nothing of this test session's own servers."""
    inherited = {name: value for name, value in os.environ.items() if name not in OURS}
    return inherited | {"RLVIEWER_HOME": str(home), "PYTHONPATH": str(ROOT)} | changes


def processes_of(home: Path) -> list[psutil.Process]:
    """Every process whose command, folder or environment names this data folder."""
    found = []
    for process in psutil.process_iter():
        try:
            marks = [*process.cmdline(), process.cwd(), process.environ().get("RLVIEWER_HOME", "")]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(home) in mark for mark in marks):
            found.append(process)
    return found


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


class Stack:
    """One `python -m rlviewer.embedded.supervise`, what it printed, and its end."""

    def __init__(self, home: Path, *, account: Account | None = None, **changes: str) -> None:
        self.home = home
        changes.setdefault("RLVIEWER_PORT", str(free_port()))
        self.port = int(changes["RLVIEWER_PORT"])
        self.url = f"http://127.0.0.1:{self.port}"
        self.output_file = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = spawn(
            [sys.executable, "-m", "rlviewer.embedded.supervise"],
            account=account,
            reach=(Path(sys.executable).resolve(), ROOT / "manage.py"),
            stdout=self.output_file.fileno(),
            stderr=subprocess.STDOUT,
            env=environment_for(home, **changes),
            cwd=ROOT,
        )

    @property
    def output(self) -> str:
        size = os.fstat(self.output_file.fileno()).st_size
        return os.pread(self.output_file.fileno(), size, 0).decode()

    def wait_ready(self) -> "Stack":
        def is_ready() -> bool:
            assert self.process.poll() is None, self.output
            return "Ctrl-C stops everything" in self.output

        wait_until(is_ready, seconds=START_SECONDS, what="the stack to start")
        return self

    def health(self) -> int:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=10).status_code
        except httpx.TransportError:
            return 0

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def wait_for_child(self, mark: str) -> psutil.Process:
        """The living child whose command line holds `mark`."""

        def find() -> list[psutil.Process]:
            children = psutil.Process(self.process.pid).children()
            return [
                child for child in children if mark in " ".join(command_of(child)) and "-S" not in command_of(child)
            ]

        wait_until(find, seconds=START_SECONDS, what=f"the child {mark}")
        return find()[0]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """An empty data folder's path; whatever a failed test left running on it is ended."""
    path = tmp_path / "home"
    yield path
    for process in processes_of(path):
        process.kill()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that was started on an empty folder."""
    home = tmp_path_factory.mktemp("stack") / "home"
    stack = Stack(home)
    try:
        yield stack.wait_ready()
    finally:
        stack.stop()
        for process in processes_of(home):
            process.kill()
