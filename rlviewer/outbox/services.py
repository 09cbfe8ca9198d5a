"""Add an announcement to the outbox, inside the caller's transaction."""

import json
from typing import Any

from django.db import connection

CHANNEL = "rlviewer_outbox"


def announce(topic: str, event: str, **payload: Any) -> int:
    """Add one announcement and return its number; readers are woken when the transaction commits.

    The topic's counter row stays locked until commit, so a reader never sees number n+1 before n.
    """
    if not connection.in_atomic_block:
        raise RuntimeError(
            f"announce({topic!r}, {event!r}) outside a transaction: it could speak of a write that fails"
        )
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO outbox_topic (name, seq) VALUES (%s, 1)"
            " ON CONFLICT (name) DO UPDATE SET seq = outbox_topic.seq + 1 RETURNING seq",
            [topic],
        )
        seq = int(cursor.fetchone()[0])
        cursor.execute(
            "INSERT INTO outbox_announcement (topic, seq, event, payload, created_at) VALUES (%s, %s, %s, %s, now())",
            [topic, seq, event, json.dumps(payload, allow_nan=False)],
        )
        # Postgres delivers it at commit; if nobody listens nothing is lost, the rows are what counts.
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, topic])
    return seq


def announce_run(run_id: int, project_id: int, event: str, **payload: Any) -> int:
    """Tell the run's pages and the pages that list its project's runs."""
    announce(f"project:{project_id}", event, run=run_id, **payload)
    return announce(f"run:{run_id}", event, **payload)


def current_seq(topic: str) -> int:
    """Number of the topic's newest announcement, 0 before the first. Ask before reading what a page shows."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT seq FROM outbox_topic WHERE name = %s", [topic])
        row = cursor.fetchone()
    return row[0] if row else 0


def prune(keep_per_topic: int = 2000) -> int:
    """Delete announcements that no open page can still need; a page that missed one refetches."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM outbox_announcement a USING outbox_topic t"
            " WHERE a.topic = t.name AND a.seq <= t.seq - %s AND a.created_at < now() - interval '1 hour'",
            [keep_per_topic],
        )
        return cursor.rowcount
