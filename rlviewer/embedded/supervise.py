"""Run the whole stack of one data folder: `python -m rlviewer.embedded.supervise`, which is what `make run` starts.

One single-threaded process that imports no Django starts Postgres, Redis, web and worker, starts again what dies, and
stops all of it on Ctrl-C, SIGTERM or SIGHUP. If it is killed itself, the kernel signals every child (child.py).
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from rlviewer.embedded.child import PR_SET_PDEATHSIG, prctl
from rlviewer.embedded.folders import FolderError, make_home
from rlviewer.embedded.postgres import Postgres
from rlviewer.embedded.processes import EmbeddedError, Holder, Lock, end, log_file, spawn
from rlviewer.embedded.redis import Redis
from rlviewer.embedded.secret_key import ensure_secret_key
from rlviewer.embedded.service import Service, say
from rlviewer.embedded.serving import Address, address_from_environment, refuse_unsafe
from rlviewer.env import env_bool, env_path, env_secret, env_str

CHECKOUT = Path(__file__).resolve().parents[2]
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# How long a server of an earlier, killed start gets to finish its shutdown.
PREDECESSOR_SECONDS = 60.0
# A worker asks its trainer to stop at the next step, within 10 s; else the run goes on from its last checkpoint later.
GRACE_SECONDS = 15.0


class StopRequested(Exception):
    """Somebody asked us to stop."""


def listen(address: Address) -> socket.socket:
    """The socket that the web process will accept from.

    Raises:
        EmbeddedError: the port is taken, or the address is not ours.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((address.host, address.port))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        raise EmbeddedError(
            f"cannot listen at {address.host}:{address.port} ({error.strerror}): stop what uses the port,"
            f" or choose another one: RLVIEWER_PORT={address.port + 1} make run"
        ) from None
    return sock


class Stack:
    """Everything `make run` starts, in the order it is started."""

    def __init__(self, home: Path, address: Address) -> None:
        self.home = home
        self.address = address
        self.account = make_home(home)
        self.lock = Lock(home, "stack")
        self.postgres = None if env_str("DATABASE_URL") else Postgres(home, self.account)
        self.redis = None if env_str("REDIS_URL") else Redis(home, self.account)
        self.services: list[Service] = []
        self.listener: socket.socket | None = None
        self.channel: socket.socket | None = None
        self.is_prepared = False

    def claim(self) -> None:
        """Make folder and port ours, or say who has them."""
        if not self.lock.acquire():
            holder = self.lock.holder() or Holder(0, "another program")
            raise EmbeddedError(
                f"rlviewer already runs on {self.home}: {holder.address} (process {holder.pid}). Stop it there first,"
                " or run a second one with another RLVIEWER_HOME and RLVIEWER_PORT"
            )
        self.listener = listen(self.address)
        self.lock.sign(Holder(os.getpid(), "make run", self.address.url))
        ensure_secret_key(self.home)
        refuse_unsafe(self.address, env_secret("RLVIEWER_SECRET_KEY", self.home / "secrets" / "django"))
        for server in (self.postgres, self.redis):
            if server is not None and not server.claim(timeout=0):
                other = server.lock.holder()
                user = f"{other.command}, process {other.pid}" if other else "another process"
                say(f"{self.home} is still in use by {user}; waiting for it to end")
                if not server.claim(timeout=PREDECESSOR_SECONDS):
                    raise EmbeddedError(f"{self.home} is still in use by {user}: start again when it has ended")
            if server is not None:
                server.lock.sign(Holder(os.getpid(), "make run"))

    def start(self) -> None:
        """From nothing to a page: Python imports in web and prepare while the database is made and started."""
        with log_file(self.home, "prepare") as log:
            prepare = spawn(
                [sys.executable, "-m", "rlviewer.embedded.prepare"],
                stdout=subprocess.PIPE,
                stderr=log,
                env=child_env(self.home),
            )
        web = Service("web", self._start_web)
        web.begin()
        self.services.append(web)
        try:
            for server in (self.redis, self.postgres):
                if server is not None:
                    name = type(server).__name__
                    service = Service(name, server.start)
                    service.begin()
                    self.services.insert(0, service)
            self._wait_for(prepare)
        except BaseException:
            end(prepare)
            raise
        self.is_prepared = True
        assert prepare.stdout is not None
        if added := json.loads(prepare.stdout.read()):
            say(f"Sign in as {added['admin']} with the password {added['password']} (shown only this once)")
        self._let_go()
        self._wait_until_up()
        worker = Service("worker", self._start_worker)
        worker.begin()
        self.services.append(worker)
        say(f"rlviewer is ready: {self.address.url}")
        say(f"  data and logs are in {self.home}; Ctrl-C stops everything")
        if env_bool("DEMO", False):
            self._launch_demo()

    def watch(self) -> None:
        while True:
            pause(1.0)
            for service in self.services:
                service.look()

    def stop(self) -> None:
        """Web and worker first, side by side; the servers when nobody uses them any more."""
        if self.channel is not None:
            self.channel.close()
        users = [s.process for s in self.services if s.name in {"web", "worker"} and s.process is not None]
        for process in users:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        for process in users:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            end(process)
        for server in (self.redis, self.postgres):
            if server is not None:
                server.stop()
        if self.listener is not None:
            self.listener.close()
        self.lock.release()

    def _start_web(self) -> subprocess.Popen[bytes]:
        assert self.listener is not None
        self.channel, theirs = socket.socketpair()
        fds = (self.listener.fileno(), theirs.fileno())
        with theirs, log_file(self.home, "web") as log:
            process = spawn(
                [
                    sys.executable, "-m", "rlviewer.embedded.web",
                    "--listen-fd", str(fds[0]), "--channel-fd", str(fds[1]),
                ],
                keep_fds=fds, stdout=log, stderr=log, env=child_env(self.home),
            )  # fmt: skip
        if self.is_prepared:
            self._let_go()
        return process

    def _start_worker(self) -> subprocess.Popen[bytes]:
        with log_file(self.home, "worker") as log:
            return spawn(worker_command(), stdout=log, stderr=log, env=child_env(self.home))

    def _let_go(self) -> None:
        assert self.channel is not None
        with contextlib.suppress(OSError):
            self.channel.sendall(b"go")

    def _wait_for(self, prepare: subprocess.Popen[bytes]) -> None:
        while prepare.poll() is None:
            pause(0.02)
            for server in (self.postgres, self.redis):
                if server is not None and server.process is not None and server.process.poll() is not None:
                    server.wait_ready()
        if prepare.returncode != 0:
            lines = (self.home / "logs" / "prepare.log").read_text(errors="replace").strip().splitlines()
            raise EmbeddedError("the database could not be prepared:\n  " + "\n  ".join(lines[-5:]))

    def _wait_until_up(self) -> None:
        assert self.channel is not None
        self.channel.setblocking(False)
        while True:
            with contextlib.suppress(BlockingIOError):
                if self.channel.recv(2) == b"up":
                    return
                raise EmbeddedError(f"the web process did not start; see {self.home / 'logs' / 'web.log'}")
            pause(0.02)

    def _launch_demo(self) -> None:
        command = [sys.executable, "manage.py", "launch", "training/data/demo.toml", "--project", "Demo"]
        launch = spawn(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=child_env(self.home), cwd=CHECKOUT
        )
        try:
            while launch.poll() is None:
                pause(0.1)
        except BaseException:
            end(launch)
            raise
        said = launch.stdout.read().decode(errors="replace").strip() if launch.stdout else ""
        say(f"  demo: {said}")


def worker_command() -> list[str]:
    queues = "cpu,gpu" if Path("/dev/nvidia0").exists() else "cpu"
    return [
        sys.executable, "-m", "celery", "--app", "rlviewer", "worker", "--pool", "threads", "--concurrency", "1",
        "--queues", queues, "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING",
    ]  # fmt: skip


def child_env(home: Path) -> dict[str, str]:
    return os.environ | {"RLVIEWER_HOME": str(home), "PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": "1"}


def pause(seconds: float) -> None:
    """Sleep, but wake for a child's death and raise when we are to stop."""
    got = signal.sigtimedwait((*STOP_SIGNALS, signal.SIGCHLD), seconds)
    if got is not None and got.si_signo in STOP_SIGNALS:
        raise StopRequested


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stop-with-parent", action="store_true", help="stop when the parent (make) dies")
    args = parser.parse_args()
    os.umask(0o077)
    # Signals wait until we ask for them, so none arrives between two steps of a start or a stop.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, signal.SIGCHLD))
    if args.stop_with_parent:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    stack = None
    try:
        stack = Stack(env_path("RLVIEWER_HOME", CHECKOUT / ".rlviewer"), address_from_environment())
        stack.claim()
        stack.start()
        stack.watch()
    except StopRequested:
        say("\nStopping")
        return 0
    except (EmbeddedError, FolderError, ImproperlyConfigured, OSError) as error:
        say(f"rlviewer: {error}")
        return 1
    finally:
        if stack is not None:
            stack.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
