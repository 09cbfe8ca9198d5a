"""From the outbox to the open sockets of this web process: one task, one database connection, one encoding a frame.

The rows are the truth. A notification only says "look"; without one the relay looks every two seconds.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Iterable
from importlib import import_module
from itertools import groupby
from typing import Any

import psycopg
from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.db import connection
from django.utils.crypto import constant_time_compare

from rlviewer.accounts.models import User
from rlviewer.lib.json import dumps
from rlviewer.outbox.services import CHANNEL

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0
CHECK_SECONDS = 2.0  # with the poll before it, a revoked person is out well within five
PAUSE_SECONDS = 0.05  # between two reads, so that a burst becomes few queries
QUERY_SECONDS = 10.0
MAILBOX_FRAMES = 64

# Topics that moved (in either direction: a restored database counts lower), with the news of each. One row more than a
# mailbox holds is enough to know that it would overflow.
NEWS_SQL = """
SELECT topic.name, topic.seq, news.seq, news.event, news.payload
FROM unnest(%s::text[], %s::bigint[]) AS seen(name, seq)
JOIN outbox_topic topic ON topic.name = seen.name AND topic.seq <> seen.seq
LEFT JOIN LATERAL (
    SELECT a.seq, a.event, a.payload FROM outbox_announcement a
    WHERE a.topic = seen.name AND a.seq > seen.seq ORDER BY a.seq LIMIT %s
) news ON true
ORDER BY topic.name, news.seq
"""

# Who may still listen: the session lives, the person is active, and is a member or the site's admin.
ALLOWED_SQL = """
SELECT seen.session, person.id, seen.project, session.session_data, person.password, person.session_generation
FROM (SELECT DISTINCT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[])) AS seen(session, person, project)
JOIN django_session session ON session.session_key = seen.session AND session.expire_date > now()
JOIN accounts_user person ON person.id = seen.person AND person.is_active
WHERE person.is_superuser
   OR EXISTS (SELECT 1 FROM accounts_member m WHERE m.user_id = person.id AND m.project_id = seen.project)
"""


def frame(topic: str, seq: int, event: str, payload: dict[str, Any] | None = None) -> str:
    return dumps({**(payload or {}), "topic": topic, "seq": seq, "event": event})


class Mailbox:
    """Frames waiting for one socket. When it is full they all give way to one "refetch", so the newest wins."""

    def __init__(self, topic: str, project_id: int, user_id: int, session_key: str, seq: int) -> None:
        self.topic, self.seq = topic, seq
        self.identity = (session_key, user_id, project_id)
        self._frames: deque[str] = deque()
        self._closed = False
        self._wake = asyncio.Event()

    def put(self, seq: int, text: str) -> None:
        if self._closed:
            return
        self.seq = seq
        if len(self._frames) >= MAILBOX_FRAMES:
            self._frames.clear()
            text = frame(self.topic, seq, "refetch")
        self._frames.append(text)
        self._wake.set()

    def replace(self, seq: int, text: str) -> None:
        """`text` instead of everything that waits."""
        self._frames.clear()
        self.put(seq, text)

    def close(self) -> None:
        """What waits is dropped; the next read says that it is over."""
        self._closed = True
        self._frames.clear()
        self._wake.set()

    async def next(self) -> str | None:
        """The next frame; None when the mailbox was closed."""
        while not self._frames and not self._closed:
            self._wake.clear()
            await self._wake.wait()
        return None if self._closed else self._frames.popleft()


class Relay:
    """Runs while at least one socket is open; holds no connection otherwise."""

    def __init__(self) -> None:
        self._mailboxes: dict[str, set[Mailbox]] = {}
        self._seen: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, mailbox: Mailbox) -> None:
        # No await in here: nothing can be dispatched between the comparison and the registration.
        seen = self._seen.setdefault(mailbox.topic, mailbox.seq)
        mailbox.seq = max(mailbox.seq, seen)
        self._mailboxes.setdefault(mailbox.topic, set()).add(mailbox)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def unsubscribe(self, mailbox: Mailbox) -> None:
        boxes = self._mailboxes.get(mailbox.topic, set())
        boxes.discard(mailbox)
        if not boxes:
            self._mailboxes.pop(mailbox.topic, None)
            self._seen.pop(mailbox.topic, None)

    async def _run(self) -> None:
        failures = 0
        while self._mailboxes:
            try:
                async with await psycopg.AsyncConnection.connect(**connection_parameters()) as database:
                    await database.execute(f"LISTEN {CHANNEL}")
                    failures = 0
                    await self._follow(database)
            # Whatever it was, open pages must not go quiet until somebody restarts the server.
            except Exception as error:
                failures += 1
                delay = min(10.0, 0.25 * 2**failures) * random.uniform(0.5, 1.0)  # noqa: S311
                is_expected = isinstance(error, psycopg.Error | OSError | TimeoutError)
                logger.warning("live relay stopped, again in %.1f s: %r", delay, error, exc_info=not is_expected)
                await asyncio.sleep(delay)

    async def _follow(self, database: psycopg.AsyncConnection) -> None:
        checked = time.monotonic()
        while self._mailboxes:
            async with asyncio.timeout(QUERY_SECONDS):
                await self._read(database)
                if time.monotonic() - checked >= CHECK_SECONDS:
                    await self._check(database)
                    checked = time.monotonic()
            await asyncio.sleep(PAUSE_SECONDS)
            await self._wait_for_news(database)

    async def _wait_for_news(self, database: psycopg.AsyncConnection) -> None:
        deadline = time.monotonic() + POLL_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            topics = {note.payload async for note in database.notifies(timeout=left, stop_after=1)}
            if topics & self._mailboxes.keys():
                return

    async def _read(self, database: psycopg.AsyncConnection) -> None:
        seen = dict(self._seen)
        cursor = await database.execute(NEWS_SQL, [list(seen), list(seen.values()), MAILBOX_FRAMES + 1])
        for (topic, newest), rows in groupby(await cursor.fetchall(), key=lambda row: (row[0], row[1])):
            # Somebody may have left, or left and come back further on, while the query ran.
            if self._seen.get(topic) == seen[topic]:
                self._seen[topic] = newest
                self._deliver(topic, seen[topic], newest, [row[2:] for row in rows])

    def _deliver(self, topic: str, seen: int, newest: int, news: list[tuple[int | None, str, dict[str, Any]]]) -> None:
        boxes = self._mailboxes[topic]
        is_complete = [seq for seq, _, _ in news] == list(range(seen + 1, newest + 1)) and newest > seen
        if is_complete and len(news) <= MAILBOX_FRAMES:
            frames = [(seq, frame(topic, seq, event, payload)) for seq, event, payload in news if seq is not None]
            for mailbox in boxes:
                # One that came while the query ran may know the first of them already.
                for seq, text in frames:
                    if seq > mailbox.seq:
                        mailbox.put(seq, text)
            return
        text = frame(topic, newest, "refetch")
        for mailbox in boxes:
            mailbox.replace(newest, text)

    async def _check(self, database: psycopg.AsyncConnection) -> None:
        """Close the sockets of everybody who signed out, was signed out, was deactivated or left the project."""
        mailboxes = [mailbox for boxes in self._mailboxes.values() for mailbox in boxes]
        if not mailboxes:
            return  # the last one left while we were reading
        columns = [list(column) for column in zip(*(mailbox.identity for mailbox in mailboxes), strict=True)]
        cursor = await database.execute(ALLOWED_SQL, columns)
        allowed = allowed_identities(await cursor.fetchall())
        for mailbox in mailboxes:
            if mailbox.identity not in allowed:
                mailbox.close()


def allowed_identities(rows: Iterable[tuple[str, int, int, str, str, int]]) -> set[tuple[str, int, int]]:
    """Those whose session is still that person's, under today's password and session generation."""
    store = import_module(settings.SESSION_ENGINE).SessionStore()
    allowed = set()
    for session_key, user_id, project_id, data, password, generation in rows:
        session = store.decode(data)
        expected = User(password=password, session_generation=generation).get_session_auth_hash()
        if session.get(SESSION_KEY) == str(user_id) and constant_time_compare(
            session.get(HASH_SESSION_KEY, ""), expected
        ):
            allowed.add((session_key, user_id, project_id))
    return allowed


def connection_parameters() -> dict[str, Any]:
    """Django's database, for a connection of our own: autocommit, and noticed when the network drops it."""
    parameters = connection.get_connection_params()
    for only_djangos in ("cursor_factory", "context", "pool"):
        parameters.pop(only_djangos, None)
    keepalive = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "connect_timeout": 5}
    return {**parameters, **keepalive, "autocommit": True, "application_name": "rlviewer live relay"}


relay = Relay()
