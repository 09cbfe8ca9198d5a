"""Start and stop child processes that never outlive us, and the lock that says who runs what on a data folder."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rlviewer.embedded import paths
from rlviewer.embedded.folders import Account

CHILD = Path(__file__).with_name("child.py")
LOG_LIMIT_BYTES = 8 * 1024 * 1024


class EmbeddedError(RuntimeError):
    """A service could not start; the text says which, why and what to do."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, as it wrote it down itself."""

    pid: int
    command: str
    address: str = ""


class Lock:
    """An flock on `HOME/locks/<name>`. A child that inherits `fd` holds it too, so it is free only when both ended."""

    def __init__(self, home: Path, name: str) -> None:
        self.path = paths.lock(home, name)
        self.fd = -1

    def acquire(self, *, timeout: float = 0.0) -> bool:
        """Whether we hold it now; tries again for `timeout` seconds."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(fd)
                    return False
                time.sleep(0.05)
            else:
                self.fd = fd
                return True

    def sign(self, holder: Holder) -> None:
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, json.dumps(asdict(holder)).encode(), 0)

    def holder(self) -> Holder | None:
        """Who signed last; only of use while somebody holds the lock."""
        try:
            return Holder(**json.loads(self.path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def is_held(self) -> bool:
        """Whether anybody holds it, asked without taking it for longer than the question."""
        if not self.acquire():
            return True
        self.release()
        return False

    def release(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def command_name() -> str:
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]])


@contextlib.contextmanager
def log_file(home: Path, name: str) -> Iterator[int]:
    """Open `HOME/logs/<name>.log` to append; what grew past the limit becomes `<name>.log.1`."""
    path = paths.logs(home) / f"{name}.log"
    if path.exists() and path.stat().st_size > LOG_LIMIT_BYTES:
        path.replace(path.with_suffix(".log.1"))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def spawn(
    command: Sequence[str],
    *,
    account: Account | None = None,
    reach: Sequence[Path] = (),
    on_parent_death: signal.Signals = signal.SIGKILL,
    keep_fds: Sequence[int] = (),
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own. Call it from the main thread: the child dies with the calling thread."""
    words = [sys.executable, "-I", "-S", str(CHILD), "--parent", str(os.getpid())]
    words += ["--on-parent-death", on_parent_death.name]
    if account is not None and account.uid != os.geteuid():
        words += ["--user", f"{account.uid}:{account.gid}"]
        words += [f"--reach={path}" for path in reach]
    return subprocess.Popen(
        [*words, "--", *command],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        cwd=cwd,
        pass_fds=keep_fds,
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes], *signals: tuple[signal.Signals, float]) -> None:
    """Send each signal and wait its seconds, until the process ended; SIGKILL is always the last."""
    for number, seconds in (*signals, (signal.SIGKILL, 30.0)):
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
