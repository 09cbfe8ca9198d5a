"""The trainer as a child process: started fresh, told through a file, gone with its whole group."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from django.conf import settings

from rlviewer.embedded import paths
from rlviewer.launch.hosts import birth_mark, host_name
from rlviewer.lib.child import TRAINER_VARIABLES, outside_environment
from training.spool import write_bytes_durably

LOG_LIMIT_BYTES = 8_000_000
LOG_KEEP_BYTES = 1_000_000
EARLIER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where one attempt of a run keeps its files on this host."""

    run_uid: str
    attempt: int

    @property
    def root(self) -> Path:
        return paths.runs(settings.HOME) / self.run_uid

    @property
    def attempt_folder(self) -> Path:
        return self.root / "attempts" / str(self.attempt)

    @property
    def log(self) -> Path:
        return self.attempt_folder / "log.txt"

    @property
    def status(self) -> Path:
        return self.attempt_folder / "status.json"

    @property
    def control(self) -> Path:
        return self.attempt_folder / "control"

    def prepare(self, config_toml: str) -> None:
        """Make the folders and write the configuration from the database, so that any host can take the run."""
        for folder in (self.root / "spool", self.root / "checkpoints", self.attempt_folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_bytes_durably(self.root / "config.toml", config_toml.encode())

    def last_words(self) -> str:
        """The last line of the log, for an end that nothing else explains."""
        with contextlib.suppress(OSError), open(self.log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
            lines = file.read().decode("utf-8", "replace").replace("\0", "").split("\n")
            return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
        return ""


class TrainerProcess:
    """A running trainer. It leads its own process group, and a pipe tells it when this process dies."""

    def __init__(self, folder: RunFolder, popen: "subprocess.Popen[bytes]", lifeline: int) -> None:
        self.folder = folder
        self.pid = popen.pid
        self._popen = popen
        self._lifeline = lifeline

    @classmethod
    def start(cls, folder: RunFolder, *, resume: bool) -> Self:
        read_end, lifeline = os.pipe()
        command = [sys.executable, "-X", "faulthandler", "-u", "-m", settings.TRAINER_MODULE]
        command += ["--run-dir", str(folder.root), "--run-uid", folder.run_uid, "--attempt", str(folder.attempt)]
        command += ["--parent-fd", str(read_end), *(["--resume"] if resume else [])]
        try:
            with open(folder.log, "ab") as log:
                popen = subprocess.Popen(
                    command,
                    cwd=settings.BASE_DIR,
                    env=trainer_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(read_end,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.close(read_end)
        return cls(folder, popen, lifeline)

    def has_exited(self) -> bool:
        # Not reaped yet: its group's number stays taken until the rest of the group is killed too.
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def reap(self) -> int:
        """Kill what is left of the group of a trainer that has exited, and return its code (negative: a signal)."""
        self.signal_group(signal.SIGKILL)
        code = self._popen.wait()
        os.close(self._lifeline)
        return code

    def ask(self, word: str) -> None:
        """run, pause or stop; the trainer reads it between steps."""
        write_bytes_durably(self.folder.control, word.encode())

    def signal_leader(self, number: signal.Signals) -> None:
        """Signal only the trainer itself; what it started is its own to end."""
        os.kill(self.pid, number)  # not reaped, so the number is still its own

    def signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def trim_log(self) -> None:
        """Keep the log bounded: past the limit only its tail stays. The trainer appends, so it never notices."""
        with contextlib.suppress(OSError):
            size = self.folder.log.stat().st_size
            if size > LOG_LIMIT_BYTES:
                with open(self.folder.log, "r+b") as file:
                    file.seek(size - LOG_KEEP_BYTES)
                    tail = file.read()
                    file.truncate(0)
                with open(self.folder.log, "ab") as file:
                    file.write(b"[%d bytes of log dropped here]\n" % (size - LOG_KEEP_BYTES) + tail)


def trainer_environment() -> dict[str, str]:
    """The environment without what opens our stores, and with what the trainer wants where nobody says otherwise."""
    return {**TRAINER_VARIABLES, **outside_environment()}


@dataclass(frozen=True, slots=True)
class TrainerRecord:
    """A note on this host's disk that a trainer lives, for whoever must end it when its worker is gone."""

    attempt_id: int
    fence: int
    run_uid: str
    attempt: int
    pid: int
    birth: str
    path: Path

    @staticmethod
    def folder() -> Path:
        # Containers that share a data folder do not share process numbers.
        return settings.HOME / "trainers" / host_name()

    @classmethod
    def write(cls, attempt_id: int, fence: int, trainer: TrainerProcess) -> Self:
        cls.folder().mkdir(parents=True, exist_ok=True)
        run = trainer.folder
        path = cls.folder() / f"{attempt_id}.json"
        note = cls(attempt_id, fence, run.run_uid, run.attempt, trainer.pid, birth_mark(trainer.pid), path)
        values = {f.name: getattr(note, f.name) for f in fields(cls) if f.name != "path"}
        write_bytes_durably(path, json.dumps(values).encode())
        return note

    @classmethod
    def all(cls) -> list[Self]:
        found = []
        for path in sorted(cls.folder().glob("*.json")):
            with contextlib.suppress(OSError, ValueError, TypeError):
                found.append(cls(**json.loads(path.read_bytes()), path=path))
        return found

    def is_alive(self) -> bool:
        return bool(self.birth) and birth_mark(self.pid) == self.birth

    def kill(self) -> None:
        """End the trainer and all of its group, if it is still that process."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    @classmethod
    def end_trainers(cls, run_uid: str, *, upto: int) -> None:
        """End trainers of this run's attempts up to one: each may still hold the run's folder."""
        deadline = time.monotonic() + EARLIER_SECONDS
        for note in cls.all():
            is_meant = note.run_uid == run_uid and note.attempt <= upto
            while is_meant and note.is_alive() and time.monotonic() < deadline:
                note.kill()
                time.sleep(0.05)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
