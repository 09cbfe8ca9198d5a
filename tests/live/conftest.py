"""A real web server on the test database, and sockets to it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client
from websockets.sync.client import ClientConnection, connect

from rlviewer.accounts.models import User

POOL = 4
APPLICATION = "rlviewer-under-test"


@dataclass(frozen=True)
class WebServer:
    port: int
    pid: int

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, path: str) -> str:
        return f"ws://127.0.0.1:{self.port}{path}"

    def open(self, path: str, cookie: str = "", **options: Any) -> ClientConnection:
        options = {"origin": self.origin, "compression": None, "proxy": None, **options}
        return connect(self.url(path), additional_headers={"Cookie": cookie} if cookie else {}, **options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def web(database_url: str) -> Iterator[WebServer]:
    port = free_port()
    changed = {
        "DATABASE_URL": f"{database_url}&application_name={APPLICATION}",
        "RLVIEWER_DB_POOL": str(POOL),
        "RLVIEWER_PORT": str(port),
    }
    process = subprocess.Popen([sys.executable, "-m", "rlviewer.embedded.web"], env={**os.environ, **changed})
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, "the web server ended at once"
            time.sleep(0.1)
        yield WebServer(port, process.pid)
    finally:
        process.terminate()
        process.wait(20)


def cookie_of(user: User) -> str:
    """A new session of this person, as a Cookie header."""
    client = Client()
    client.force_login(user)
    return f"sessionid={client.cookies['sessionid'].value}"
