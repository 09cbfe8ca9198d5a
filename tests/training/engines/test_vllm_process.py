"""The server's process, with a package in vLLM's place: who ends whom is the same."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from training.engines import vllm_process
from training.engines.vllm_process import ServerFailed, ServerProcess

STARTS_A_SERVER = """
import os, sys, time
from pathlib import Path
from training.engines.vllm_process import ServerProcess
server = ServerProcess([], environment=os.environ, log=Path(sys.argv[1]))
print(server._process.pid, Path(server.socket).parent, flush=True)
time.sleep(600)
"""
# Has a worker of its own, as vLLM does.
RUNS = "import os, subprocess, time\nopen(os.environ['WORKER'], 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\ntime.sleep(600)"
FAILS = "raise RuntimeError('no such device')"


@pytest.fixture
def environment(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    def make(package: str) -> dict[str, str]:
        (tmp_path / "vllm").mkdir()
        (tmp_path / "vllm" / "__init__.py").write_text(package)
        return {**os.environ, "PYTHONPATH": str(tmp_path), "WORKER": str(tmp_path / "worker")}

    return make


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(what: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.05)


def worker_of(environment: dict[str, str]) -> int:
    written = Path(environment["WORKER"])
    wait_for(lambda: written.exists() and written.read_text() != "", "the server does not run")
    return int(written.read_text())


def test_the_server_and_its_workers_end_with_a_trainer_that_is_killed(
    tmp_path: Path, environment: Callable[[str], dict[str, str]]
) -> None:
    variables = environment(RUNS)
    command = [sys.executable, "-c", STARTS_A_SERVER, str(tmp_path / "log")]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=vllm_process.PROJECT, env=variables)
    assert trainer.stdout is not None
    number, folder = trainer.stdout.readline().split()
    server, worker = int(number), worker_of(variables)
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    os.kill(trainer.pid, signal.SIGKILL)
    trainer.wait()
    wait_for(lambda: not is_running(server) and not is_running(worker), "server or worker is still there")
    assert not Path(folder).exists()


def test_closing_ends_the_server_and_its_workers(tmp_path: Path, environment: Callable[[str], dict[str, str]]) -> None:
    variables = environment(RUNS)
    process = ServerProcess([], environment=variables, log=tmp_path / "log")
    worker = worker_of(variables)
    process.close()
    wait_for(lambda: not is_running(worker), "the worker is still there")
    assert not Path(process.socket).parent.exists()


def test_a_server_that_fails_says_why(tmp_path: Path, environment: Callable[[str], dict[str, str]]) -> None:
    process = ServerProcess([], environment=environment(FAILS), log=tmp_path / "log")
    try:
        with pytest.raises(ServerFailed, match=r"ended with 1: RuntimeError: no such device; all of it in .*log"):
            process.wait_until_ready(lambda: False)
    finally:
        process.close()
