"""The embedded servers by themselves: who may connect, odd folders, and what a crash leaves."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from rlviewer.embedded import paths
from rlviewer.embedded.folders import Account, FolderError, make_home, server_account
from rlviewer.embedded.postgres import Postgres
from rlviewer.embedded.processes import EmbeddedError, spawn
from rlviewer.embedded.redis import Redis
from tests.embedded.conftest import ROOT, processes_of, wait_until


@contextmanager
def serving(home: Path, *, durable: bool = False) -> Iterator[Postgres]:
    postgres = Postgres(home, make_home(home), durable=durable)
    assert postgres.claim(timeout=0)
    try:
        postgres.start()
        postgres.wait_ready()
        yield postgres
    finally:
        postgres.stop()


def ask(home: Path, query: str) -> object:
    with psycopg.connect(paths.postgres_url(home)) as connection:
        row = connection.execute(query).fetchone()
        return row[0] if row else None


def test_the_role_owns_its_database_and_is_no_superuser(home: Path) -> None:
    with serving(home, durable=True):
        assert ask(home, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
        assert ask(home, "SELECT current_user") == "rlviewer"
        assert ask(home, "SHOW listen_addresses") == ""
        assert [ask(home, f"SHOW {name}") for name in ("fsync", "synchronous_commit", "full_page_writes")] == ["on"] * 3
        assert ask(home, "SELECT count(*) FROM pg_extension WHERE extname = 'vector'") == 1
        with pytest.raises(psycopg.OperationalError, match="postgres"):
            psycopg.connect(f"user=postgres dbname=rlviewer host={paths.postgres_sockets(home)}")


def test_only_our_user_may_connect(home: Path) -> None:
    """The kernel says who is at the other end of the socket; a name that is not in the map is refused."""
    with serving(home) as postgres:
        assert ask(home, "SELECT 1") == 1
        rules = home / "postgres" / "pg_ident.conf"
        rules.write_text(rules.read_text().replace(f'"{Account.of(os.geteuid()).name}"', '"somebody-else"'))
        assert postgres.process
        postgres.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "Peer authentication failed" in refusal(home), seconds=30, what="the refusal")


def refusal(home: Path) -> str:
    try:
        ask(home, "SELECT 1")
    except psycopg.OperationalError as error:
        return str(error)
    return ""


def test_locks_of_a_power_loss_are_forgotten_even_when_their_process_id_is_taken(home: Path) -> None:
    with serving(home) as postgres:
        # Postgres itself takes a live process of its own user for the server that the file speaks of.
        other = spawn(["/bin/sleep", "60"], account=postgres.account)
    sockets = paths.postgres_sockets(home)
    lock = f"{other.pid}\n{home}/postgres\n1\n5432\n{sockets}\n\n"
    (home / "postgres" / "postmaster.pid").write_text(lock)
    (sockets / ".s.PGSQL.5432.lock").write_text(lock)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(sockets / ".s.PGSQL.5432"))
    try:
        with serving(home):
            assert ask(home, "SELECT 1") == 1
    finally:
        other.kill()
        other.wait()


def test_a_half_made_database_is_made_again(home: Path) -> None:
    make_home(home)
    (home / "postgres.new" / "base").mkdir(parents=True)
    (home / "postgres.new" / "PG_VERSION").write_text("18\n")
    with serving(home):
        assert ask(home, "SELECT 1") == 1


def test_nobody_starts_a_second_server_on_the_folder(home: Path) -> None:
    with serving(home) as first:
        assert not Postgres(home, first.account).claim(timeout=0.1)


def test_a_server_outside_our_lock_is_not_disturbed(home: Path) -> None:
    with serving(home) as first:
        os.close(first.lock.fd)
        first.lock.path.unlink()
        first.lock.fd = -1
        with pytest.raises(EmbeddedError, match="did not start"):
            Postgres(home, first.account).claim(timeout=0)
        assert ask(home, "SELECT 1") == 1


def test_committed_rows_survive_a_kill_of_everything(home: Path) -> None:
    script = f"""
import os, signal, psycopg
from pathlib import Path
from tests.embedded.test_postgres import serving
from rlviewer.embedded import paths
home = Path({str(home)!r})
with serving(home, durable=True) as postgres:
    with psycopg.connect(paths.postgres_url(home)) as connection:
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
    os.kill(postgres.process.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    wait_until(lambda: processes_of(home) == [], seconds=20, what="every server process to end")
    assert (home / "postgres" / "postmaster.pid").exists()
    with serving(home):
        assert ask(home, "SELECT count(*) FROM kept") == 1000


def test_a_long_path_gets_short_private_sockets(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 20) / "home"
    with serving(home):
        sockets = paths.postgres_sockets(home)
        assert not sockets.is_relative_to(home)
        assert sockets.stat().st_mode & 0o077 == 0
        assert ask(home, "SELECT 1") == 1
        redis = Redis(home, server_account(home))
        assert redis.claim(timeout=0)
        redis.start()
        redis.wait_ready()
        redis.stop()


def test_sockets_that_somebody_else_could_replace_are_refused(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 20) / "home"
    short = paths.postgres_sockets(home).parent
    short.mkdir(mode=0o777)
    short.chmod(0o777)
    try:
        with pytest.raises(FolderError, match="remove it"):
            make_home(home)
    finally:
        subprocess.run(["rm", "-rf", short], check=True)


def test_folders_above_keep_their_modes(tmp_path: Path) -> None:
    """Also one that the server's user may not enter."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    home = closed / "home"
    with serving(home):
        assert ask(home, "SELECT 1") == 1
    assert closed.stat().st_mode & 0o777 == 0o700
    assert closed.stat().st_uid == os.geteuid()


def test_redis_keeps_nothing_and_listens_on_its_socket_only(home: Path) -> None:
    redis = Redis(home, make_home(home))
    assert redis.claim(timeout=0)
    try:
        redis.start()
        redis.wait_ready()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(paths.redis_socket(home)))
            client.sendall(b"CONFIG GET port\r\nCONFIG GET save\r\nCONFIG GET maxmemory-policy\r\n")
            wait_until(lambda: b"noeviction" in client.recv(4096, socket.MSG_PEEK), seconds=30, what="the answers")
            assert client.recv(4096).split(b"\r\n")[4::5] == [b"0", b"", b"noeviction"]
    finally:
        redis.stop()
    assert processes_of(home) == []
