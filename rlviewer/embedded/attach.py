"""What a command wraps its work in: the running stack's database, else an embedded one for the command's own time."""

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from django.conf import settings
from django.core.management import call_command

from rlviewer.embedded import paths
from rlviewer.embedded.database import disconnect, ping
from rlviewer.embedded.folders import make_home
from rlviewer.embedded.postgres import Postgres
from rlviewer.embedded.processes import EmbeddedError, Holder, command_name
from rlviewer.embedded.redis import Redis

ATTACH_SECONDS = 60.0


class Users:
    """The commands at work on a data folder's database; whoever started it waits for the others before it stops it."""

    def __init__(self, home: Path) -> None:
        self.fd = os.open(paths.lock(home, "users"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def join(self) -> bool:
        """Whether we are counted in now; not while the database is being stopped."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def leave(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def wait_for_others(self) -> None:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("Other commands still use this database; it stops when they have ended\n")
            fcntl.flock(self.fd, fcntl.LOCK_EX)

    def close(self) -> None:
        os.close(self.fd)


@contextlib.contextmanager
def attached(*, redis: bool = False) -> Iterator[None]:
    """Within the block the database answers and is migrated; with `redis`, so does the broker.

    Nothing is started where DATABASE_URL (REDIS_URL) says which one to use. Call it from the main thread.

    Raises:
        EmbeddedError: what could not start, and why.
    """
    home: Path = settings.HOME
    with contextlib.ExitStack() as stack:
        if settings.USES_EMBEDDED_POSTGRES or (redis and settings.USES_EMBEDDED_REDIS):
            account = make_home(home)
            if redis and settings.USES_EMBEDDED_REDIS:
                stack.enter_context(_redis_of(Redis(home, account)))
            if settings.USES_EMBEDDED_POSTGRES:
                stack.enter_context(_database_of(Postgres(home, account)))
        yield


@contextlib.contextmanager
def _database_of(postgres: Postgres) -> Iterator[None]:
    users = Users(postgres.home)
    try:
        is_ours = _attach_or_claim(postgres, users)
        try:
            if is_ours:
                postgres.start()
                postgres.wait_ready()
                call_command("migrate", interactive=False, verbosity=0)
            yield
            if is_ours:
                users.wait_for_others()
        finally:
            if is_ours:
                disconnect()
                postgres.stop()
    finally:
        users.close()


def _attach_or_claim(postgres: Postgres, users: Users) -> bool:
    """True when the database is ours to start; False when it runs and waits for us before it stops."""
    deadline = time.monotonic() + ATTACH_SECONDS
    while True:
        if postgres.claim(timeout=0):
            postgres.lock.sign(Holder(os.getpid(), command_name()))
            return True
        if users.join():
            with contextlib.suppress(psycopg.OperationalError):
                ping()
                return False
            users.leave()
        if time.monotonic() > deadline:
            holder = postgres.lock.holder()
            who = f"{holder.command} (process {holder.pid})" if holder else "another process"
            raise EmbeddedError(
                f"{who} holds {postgres.home}, but its database does not answer: {postgres.last_words()}"
            )
        time.sleep(0.1)


@contextlib.contextmanager
def _redis_of(server: Redis) -> Iterator[None]:
    deadline = time.monotonic() + ATTACH_SECONDS
    is_ours = False
    while not server.is_ready():
        if server.claim(timeout=0):
            is_ours = True
            server.start()
            server.wait_ready()
            break
        if time.monotonic() > deadline:
            raise EmbeddedError(f"Redis does not answer at {server.socket}")
        time.sleep(0.1)
    try:
        yield
    finally:
        if is_ours:
            server.stop()
