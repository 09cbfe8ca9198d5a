"""How a trainer and whoever started it talk: status.json, the control file, signals and a pipe. Imports no torch."""

import contextlib
import fcntl
import json
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import IO, Any

PAUSE_POLL_SECONDS = 0.2
# Given back when the disk is full, so that the status can still say so.
RESERVE_BYTES = 65536


class FolderTaken(RuntimeError):
    """Another trainer works in this run folder."""


class Attempt:
    """One try of a run: its folder, what it reports and what is asked of it."""

    def __init__(self, run_folder: Path, number: int) -> None:
        self.run_folder = run_folder
        self.folder = run_folder / "attempts" / str(number)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.number = number
        self._stop_signalled = False
        self._started = time.monotonic()
        self.status: dict[str, Any] = {
            "state": "starting",
            "step": 0,
            "steps": 0,
            "phase": "starting",
            "rollouts": 0,
            "reason": "",
            "error": None,
            "resumed_from_step": None,
            "pid": os.getpid(),
            "last_checkpoint": None,
            "checkpoints": None,  # until it has looked
            "plugins": {},
            "hardware": {},
            "code_version": "",
            "seconds": 0.0,
        }
        self._reserve = self.folder / "reserve"

    def report(self, **changes: Any) -> None:
        """Replace status.json as a whole. It is news, not truth, so it is not fsynced."""
        self.status |= changes
        self.status["seconds"] = round(time.monotonic() - self._started, 3)
        part = self.folder / "status.json.part"
        part.write_text(json.dumps(self.status, allow_nan=False), encoding="utf-8")
        os.replace(part, self.folder / "status.json")

    def reserve_space(self) -> None:
        self._reserve.write_bytes(bytes(RESERVE_BYTES))

    def release_space(self) -> None:
        with contextlib.suppress(OSError):
            self._reserve.unlink(missing_ok=True)

    @property
    def wanted(self) -> str:
        """run, pause or stop: the control file's word, or stop once a signal asked for it."""
        if self._stop_signalled:
            return "stop"
        try:
            word = (self.folder / "control").read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return "run"
        return word if word in ("pause", "stop") else "run"

    def is_stop_wanted(self, *, phase: str) -> bool:
        """Whether to end at this step boundary; waits here while a pause is wanted."""
        if self.wanted == "pause":
            self.report(state="paused", phase="paused")
            while self.wanted == "pause":
                time.sleep(PAUSE_POLL_SECONDS)
            if self.wanted == "run":
                self.report(state="running", phase=phase)
        return self.wanted == "stop"

    def stop_on_signals(self) -> None:
        """SIGTERM and SIGINT ask for a stop at the next step boundary."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop_signalled = True


def take_folder(run_folder: Path) -> IO[str]:
    """Hold the run folder for this process, until it ends however it ends.

    Raises:
        FolderTaken: another process holds it.
    """
    lock = open(run_folder / "trainer.lock", "a+", encoding="utf-8")  # noqa: SIM115 - held open for the process' life
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise FolderTaken(f"{run_folder}: another trainer works in this folder; stop it first") from None
    # What trainers that were killed left half-written or held back: nobody else can be at it now.
    for pattern in ("attempts/*/status.json.part", "attempts/*/reserve"):
        for leftover in run_folder.glob(pattern):
            leftover.unlink(missing_ok=True)
    return lock


def die_with_parent(descriptor: int) -> None:
    """End this process at once when the other end of the pipe closes: a resume goes on from the last checkpoint."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(descriptor, 1):
                pass
        os._exit(1)

    threading.Thread(target=watch, name="parent-watcher", daemon=True).start()
