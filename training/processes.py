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
# From a broken connection to the end of the process that was at its other end.
GONE_SECONDS = 2.0


def is_among_others() -> bool:
    """Whether whoever started this process said that it is one of several."""
    return "WORLD_SIZE" in os.environ


@contextlib.contextmanager
def further_processes(count: int, arguments: Sequence[str], on_death: Callable[[str], None]) -> Iterator[None]:
    """`python -m training.run ARGUMENTS` so many times beside this process, as ranks 1 and up; this one becomes rank 0.

    Args:
        on_death: told in another thread when one of them has died and this process has not noticed.
    Raises:
        RuntimeError: one of them is gone, in place of what that led to here.
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
        except RuntimeError as error:
            # What a process sees when another is gone says little.
            if gone := _first_gone(started):
                raise RuntimeError(gone) from error
            raise
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
        on_death(_ended(rank, code))


def _ended(rank: int, code: int) -> str:
    return f"process {rank} of the run ended with {f'code {code}' if code >= 0 else f'signal {-code}'}"


def _first_gone(started: Sequence["subprocess.Popen[bytes]"]) -> str | None:
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        for rank, process in enumerate(started, start=1):
            if (code := process.poll()) is not None:
                return _ended(rank, code)
        time.sleep(0.05)
    return None


def _end(started: Sequence["subprocess.Popen[bytes]"]) -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    for process in started:
        try:
            process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
