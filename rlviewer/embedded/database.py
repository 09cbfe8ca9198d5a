"""Ask the database whether it answers, on a connection outside the pool."""

import time

import psycopg
from django.db import connection, connections
from django.db.backends.postgresql.base import DatabaseWrapper


def ping(*, timeout_seconds: int = 2) -> None:
    """Return when the database answers a query; a pool that is all in use does not matter.

    Raises:
        psycopg.Error: it does not, and why.
    """
    options = {"connect_timeout": timeout_seconds, "options": f"-c statement_timeout={timeout_seconds * 1000}"}
    with psycopg.connect(**connection.get_connection_params() | options) as own:
        own.execute("SELECT 1")


def wait_until_it_answers(*, seconds: float) -> None:
    """Try again until it does; what it said last is raised at the end."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            ping()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def disconnect() -> None:
    """Close this thread's connection and the pool behind it."""
    wrapper = connections["default"]
    assert isinstance(wrapper, DatabaseWrapper)
    wrapper.close()
    wrapper.close_pool()
