"""One Postgres for everybody: our embedded server with our settings, a database each for us and the peers."""

import os
import signal
import time
from pathlib import Path
from typing import Self

import psutil
import psycopg
from psycopg import sql

from bench.report import best_of
from rlviewer.embedded import paths
from rlviewer.embedded.folders import make_home
from rlviewer.embedded.postgres import Postgres


class BenchServer:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.account = make_home(home)
        self.postgres = Postgres(home, self.account)

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.postgres.stop()

    def _start(self) -> None:
        if not self.postgres.claim(timeout=10):
            raise SystemExit(f"{self.home} is in use by another benchmark; wait for it to end")
        self.postgres.start()
        self.postgres.wait_ready()

    def url(self, name: str) -> str:
        return f"postgresql://rlviewer@/{name}?host={paths.postgres_sockets(self.home)}"

    def fresh_database(self, name: str) -> str:
        """An empty database of this name; gives its address."""
        with psycopg.connect(self.url("rlviewer"), autocommit=True) as database:
            target = sql.Identifier(name)
            database.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(target))
            database.execute(sql.SQL("CREATE DATABASE {}").format(target))
        return self.url(name)

    def value(self, name: str, query: str) -> int:
        with psycopg.connect(self.url(name), autocommit=True) as database:
            row = database.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]

    def used_bytes(self, name: str) -> int:
        """Size of a database on disk once what is dead in it was cleared away."""
        with psycopg.connect(self.url(name), autocommit=True) as database:
            database.execute("VACUUM")
        return self.value(name, "SELECT pg_database_size(current_database())")

    def version(self) -> str:
        with psycopg.connect(self.url("rlviewer")) as database:
            return str(database.info.server_version // 10_000) + f".{database.info.server_version % 10_000}"

    def kill(self) -> None:
        """End every process of the server at once, as a power loss would, and start it again."""
        assert self.postgres.process is not None
        leader = psutil.Process(self.postgres.process.pid)
        family = [leader, *leader.children(recursive=True)]
        for process in family:
            os.kill(process.pid, signal.SIGKILL)
        self.postgres.process.wait()
        psutil.wait_procs(family, timeout=10)
        self.postgres.stop()
        self.postgres = Postgres(self.home, self.account)
        self._start()

    def count_seconds(self) -> float:
        """Yardstick: counting a million narrow rows, the best of five."""
        with psycopg.connect(self.url("rlviewer"), autocommit=True) as database:
            database.execute("DROP TABLE IF EXISTS yardstick")
            database.execute(
                "CREATE TABLE yardstick AS SELECT i AS id, i * 0.5 AS value FROM generate_series(1, 1000000) i"
            )
            database.execute("VACUUM ANALYZE yardstick")
            return best_of(5, lambda: database.execute("SELECT count(*) FROM yardstick").fetchone())

    def wait_for_rows(self, name: str, query: str, wanted: int, *, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while (found := self.value(name, query)) < wanted:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name}: {found} of {wanted} rows after {timeout:.0f} s")
            time.sleep(0.02)
