"""Starting and idling: `make run` on an empty and a warm data folder, beside the peers' servers on the same Postgres."""

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.peers import PEERS, RunningPeer, clean_environment, free_port
from bench.report import matmul_seconds, middle, say, table
from bench.server import BenchServer

CHECKOUT = Path(__file__).resolve().parents[1]
ROUNDS = {"small": 2, "full": 5}
START_SECONDS = 60.0
SETTLE_SECONDS = 8.0
WATCH_SECONDS = 10.0


@dataclass
class Stack:
    """`make run` on a data folder, from its start to the first page."""

    home: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Seconds to the first page."""
        environment = {**clean_environment(), "RLVIEWER_HOME": str(self.home), "RLVIEWER_PORT": str(self.port)}
        start = time.perf_counter()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["make", "run"], cwd=CHECKOUT, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        while not self.serves():
            if self.process.poll() is not None or time.perf_counter() - start > START_SECONDS:
                raise RuntimeError(f"make run served no page within {START_SECONDS:.0f} s; see {self.log}")
            time.sleep(0.01)
        return time.perf_counter() - start

    @property
    def log(self) -> Path:
        return self.home.with_name(f"{self.home.name}.log")

    def serves(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("GET", "/sign-in/")
            return connection.getresponse().status == 200
        return False

    def stop(self) -> None:
        """As Ctrl-C does."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGINT)
            self.process.wait(60)
            self.process = None


def family(*pids: int) -> list[psutil.Process]:
    leaders = [psutil.Process(pid) for pid in pids]
    return [*leaders, *(child for leader in leaders for child in leader.children(recursive=True))]


def idle(processes: Iterable[psutil.Process]) -> tuple[float, float]:
    """Summed proportional memory in MB, and the share of one processor used while nobody asks anything."""
    alive = list(processes)
    before = sum(sum(process.cpu_times()[:2]) for process in alive)
    time.sleep(WATCH_SECONDS)
    share = (sum(sum(process.cpu_times()[:2]) for process in alive) - before) / WATCH_SECONDS
    return sum(process.memory_full_info().pss for process in alive) / 1e6, share


def run(size: str, folder: Path) -> list[str]:
    empty: list[float] = []
    warm: list[float] = []
    home = folder / "stack-home"
    stack = Stack(home)
    memory = cpu = 0.0
    for number in range(ROUNDS[size]):
        shutil.rmtree(home, ignore_errors=True)
        for seconds in (empty, warm):
            seconds.append(stack.start())
            if number == 0 and seconds is warm:
                assert stack.process is not None
                time.sleep(SETTLE_SECONDS)
                memory, cpu = idle(family(stack.process.pid))
            stack.stop()
        say(f"round {number + 1}: first page after {empty[-1]:.1f} s empty, {warm[-1]:.1f} s warm")
    rows = [
        [
            "rlviewer, with Postgres and Redis",
            f"{middle(empty):.1f}",
            f"{middle(warm):.1f}",
            f"{memory:.0f}",
            f"{cpu:.1%}",
        ]
    ]
    with BenchServer(folder / "home") as server:
        rows += [peer_row(RunningPeer.launch(peer, folder, server), ROUNDS[size]) for peer in PEERS]
    return [
        "From `make run` to the first page, and what the whole stack uses while nobody asks anything (summed PSS). A peer is"
        " its server alone, on a Postgres that already runs.",
        "",
        *table(["", "start, empty (s)", "start, warm (s)", "idle memory (MB)", "idle processor (of one core)"], rows),
        "",
        f"Yardstick: 4096^3 float32 matmul {matmul_seconds():.2f} s.",
    ]


def peer_row(running: RunningPeer, rounds: int) -> list[str]:
    try:
        for _ in range(rounds):
            running.kill()
            running.start()
        assert running.process is not None
        time.sleep(SETTLE_SECONDS)
        memory, cpu = idle(family(running.process.pid))
    finally:
        running.kill()
    first, *later = running.start_seconds
    return [running.peer.title, f"{first:.1f}", f"{middle(later):.1f}", f"{memory:.0f}", f"{cpu:.1%}"]
