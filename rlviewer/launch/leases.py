"""Leases: exactly one process speaks for an attempt, however often Celery delivers it.

An attempt is leased at most once in its life: taking it is the step from queued to starting. The fence is the number that
the holder shows with every write; `revoke` raises it, and from then on the old holder's writes change nothing.
"""

from django.db import connection

from rlviewer.runs.models import Run


def acquire(attempt_id: int, holder: str, seconds: float) -> int | None:
    """Take a queued attempt and return the fence; None when it is taken, over or gone. One statement."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH taken AS (UPDATE runs_attempt SET state = 'starting', started_at = now()"
            "  WHERE id = %s AND state = 'queued' RETURNING id)"
            " UPDATE launch_lease SET fence = fence + 1, holder = %s, acquired_at = now(), heartbeat_at = now(),"
            "  expires_at = now() + make_interval(secs => %s)"
            " FROM taken WHERE attempt_id = taken.id RETURNING fence",
            [attempt_id, holder, seconds],
        )
        row = cursor.fetchone()
    return int(row[0]) if row else None


def heartbeat(attempt_id: int, fence: int, seconds: float) -> bool:
    """Say that the holder lives. False: the lease is no longer the caller's, who must stop.

    A lease that ran out while its host was unreachable comes back to life, unless it was revoked in between.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE launch_lease SET heartbeat_at = now(), expires_at = now() + make_interval(secs => %s)"
            " WHERE attempt_id = %s AND fence = %s AND holder <> ''",
            [seconds, attempt_id, fence],
        )
        return cursor.rowcount == 1


def release(attempt_id: int, fence: int) -> bool:
    """Give the lease up; the attempt is over."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE launch_lease SET holder = '' WHERE attempt_id = %s AND fence = %s AND holder <> ''",
            [attempt_id, fence],
        )
        return cursor.rowcount == 1


def revoke(attempt_id: int) -> None:
    """Take the lease away from whoever holds it."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE launch_lease SET holder = '', fence = fence + 1 WHERE attempt_id = %s", [attempt_id])


def lock_run(attempt_id: int, fence: int) -> Run | None:
    """Lock the attempt's run and lease until the transaction ends; None when the lease is not the caller's any more.

    Every write of a holder starts with it, so a stale holder writes nothing. The run is locked first, here as everywhere.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("lock_run outside a transaction guards nothing")
    run = Run.objects.select_for_update(no_key=True, of=("self",)).filter(attempts__id=attempt_id).first()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM launch_lease WHERE attempt_id = %s AND fence = %s AND holder <> '' FOR NO KEY UPDATE",
            [attempt_id, fence],
        )
        return run if cursor.fetchone() else None
