"""A frozen process is told from one that works or waits on purpose."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from rlviewer.launch import freeze, hosts
from rlviewer.launch.freeze import FreezeWatch

BUSY = "while True: pass"
ASLEEP = "import signal; signal.pause()"


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freeze, "STOPPED_SECONDS", 0.5)
    monkeypatch.setattr(freeze, "IDLE_SECONDS", 1.0)


@pytest.fixture
def child(request: pytest.FixtureRequest) -> "Iterator[subprocess.Popen[bytes]]":
    process = subprocess.Popen([sys.executable, "-c", request.param], start_new_session=True)
    time.sleep(0.5)
    yield process
    process.kill()
    process.wait()


def watch(watch: FreezeWatch, seconds: float = 1.6, *, is_paused: bool = False) -> str:
    """What is said of a process that is looked at ten times a second."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if reason := watch.reason(is_paused=is_paused):
            return reason
        time.sleep(0.1)
    return ""


@pytest.mark.parametrize("child", [BUSY], indirect=True)
def test_a_stopped_process_is_frozen_and_a_continued_one_is_not(child: "subprocess.Popen[bytes]") -> None:
    watched = FreezeWatch(child.pid)
    child.send_signal(signal.SIGSTOP)
    time.sleep(0.05)
    assert watched.is_stopped
    assert watch(watched).startswith("the process was stopped (SIGSTOP)")
    child.send_signal(signal.SIGCONT)
    assert watch(watched) == ""


@pytest.mark.parametrize("child", [ASLEEP], indirect=True)
def test_a_process_that_neither_works_nor_writes_is_frozen(child: "subprocess.Popen[bytes]") -> None:
    assert watch(FreezeWatch(child.pid)).startswith("it neither wrote a status nor used the CPU")
    assert watch(FreezeWatch(child.pid), is_paused=True) == ""


@pytest.mark.parametrize("child", [BUSY], indirect=True)
def test_a_long_step_is_not_frozen(child: "subprocess.Popen[bytes]") -> None:
    assert watch(FreezeWatch(child.pid)) == ""


@pytest.mark.parametrize("child", [ASLEEP], indirect=True)
def test_a_status_starts_the_wait_again(child: "subprocess.Popen[bytes]") -> None:
    watched = FreezeWatch(child.pid)
    for _ in range(4):
        assert watch(watched, 0.5) == ""
        watched.moved()


@pytest.mark.parametrize("child", [ASLEEP], indirect=True)
def test_a_reused_process_number_is_another_process(child: "subprocess.Popen[bytes]") -> None:
    birth = hosts.birth_mark(child.pid)
    assert birth == hosts.birth_mark(child.pid) != hosts.birth_mark(1)
    child.kill()
    child.wait()
    assert hosts.birth_mark(child.pid) == ""


def test_a_holder_is_dead_only_on_its_own_host() -> None:
    mine = hosts.new_holder()
    host, pid, *_ = mine.rsplit(":", 3)
    assert not hosts.is_dead_here(mine)
    assert hosts.is_this_process(mine)
    assert hosts.is_dead_here(f"{host}:{pid}:other.1:x")
    assert not hosts.is_dead_here(f"elsewhere:{pid}:other.1:x")
