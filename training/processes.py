"""The further processes of a run that is shared among several on this host. Imports no torch.

The process that was started leads. It starts the others, which end with it however it ends; whoever started the run deals
with this one process alone. Under torchrun nothing is started here.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

LEADER = "127.0.0.1"
# For the others to write their last words and go, and for the leader to notice by itself.
GRACE_SECONDS = 10.0


def is_among_others() -> bool:
    """Whether whoever started this process said that it is one of several."""
    return "WORLD_SIZE" in os.environ


@contextlib.contextmanager
def further_processes(count: int, arguments: Sequence[str], on_death: Callable[[str], None]) -> Iterator[None]:
    """`python -m training.run ARGUMENTS` so many times beside this process, as ranks 1 and up; this one becomes rank 0.

    Args:
        on_death: told in another thread when one of them has died and this process has not noticed.
    """
    with socket.socket() as free:
        free.bind((LEADER, 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(count + 1), "MASTER_ADDR": LEADER, "MASTER_PORT": str(port)}
    # A pipe that closes with this process.
    read_end, lifeline = os.pipe()
    started = []
    try:
        for rank in range(1, count + 1):
            place = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, "-u", "-m", "training.run", *arguments, "--parent-fd", str(read_end)]
            started.append(subprocess.Popen(command, env=os.environ | place, pass_fds=(read_end,)))
        os.close(read_end)
        leaving = threading.Event()
        for number, process in enumerate(started, start=1):
            threading.Thread(target=_watch, args=(number, process, leaving, on_death), daemon=True).start()
        os.environ.update(shared | {"RANK": "0", "LOCAL_RANK": "0"})
        try:
            yield
        finally:
            leaving.set()
            for name in (*shared, "RANK", "LOCAL_RANK"):
                del os.environ[name]
    finally:
        _end(started)
        os.close(lifeline)


def _watch(
    rank: int, process: "subprocess.Popen[bytes]", leaving: threading.Event, on_death: Callable[[str], None]
) -> None:
    code = process.wait()
    if not leaving.wait(GRACE_SECONDS):
        on_death(f"process {rank} of the run ended with {f'code {code}' if code >= 0 else f'signal {-code}'}")


def _end(started: Sequence["subprocess.Popen[bytes]"]) -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    for process in started:
        try:
            process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
