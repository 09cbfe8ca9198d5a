"""What every worker does every few seconds, so that nothing depends on a message, a process or a host staying alive."""

import logging
import os
import time
from collections.abc import Callable
from datetime import timedelta

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.backends.utils import CursorWrapper
from django.utils import timezone
from django.utils.module_loading import import_string
from kombu.exceptions import OperationalError as BrokerAway

from rlviewer.analysis import jobs
from rlviewer.counterfactual import jobs as replay_jobs
from rlviewer.ingest.models import ParkedBatch
from rlviewer.launch import hosts, leases, repairs, services, supervise, worker
from rlviewer.launch.models import Worker
from rlviewer.launch.services import FOREGROUND, announce_state, hint_workers, name_of
from rlviewer.outbox import services as outbox
from rlviewer.runs.models import Attempt, Run, RunState
from rlviewer.search.lag import PENDING
from rlviewer.signal import lag as signal_lag
from rlviewer.watch import counting

log = logging.getLogger(__name__)

ANNOUNCE_SECONDS = 10
ABANDONED_SECONDS = 60
HOUSEKEEPING_SECONDS = 30.0
# Texts of this many steps are indexed in one sweep; a sweep must stay short.
STEPS_AT_A_TIME = 50
# What a sweep gives to working steps out: beside a trainer, which wants the processor, under a tenth of the time.
IDLE_SECONDS, BUSY_SECONDS = 5.0, 0.4
SWEEPER_LOCK = 0x726C76  # an advisory lock of Postgres


class Sweeper:
    """Every chore is harmless to repeat and a transaction of its own."""

    def __init__(self, queues: list[str]) -> None:
        self.queues = queues
        self.host = hosts.host_name()
        self.name = f"{self.host}:{os.getpid()}:{hosts.birth_mark(os.getpid())}"
        self.has_backlog = False  # stored steps wait to be worked out
        self._next_housekeeping = 0.0

    @property
    def is_idle(self) -> bool:
        return not supervise.ACTIVE

    def sweep(self) -> bool:
        """One round; True when it announced work that this idle worker could take."""
        self.has_backlog = False
        is_housekeeping = time.monotonic() >= self._next_housekeeping
        if is_housekeeping:
            self._next_housekeeping = time.monotonic() + HOUSEKEEPING_SECONDS
        try:
            self._do(self.say_hello)
            self._do(lambda: repairs.mend(with_spools=is_housekeeping))
            self._do(mark_silent)
            self._do(expire_leases)
            self._do(end_abandoned)
            has_announced = self.is_idle and self._do(lambda: announce_queued(self.queues))
            for name in settings.WORKER_CHORES:
                self._do(import_string(name))
            self._do(index_texts)
            self._do(count_searches)
            self._do(embed_waiting)
            self._do(replay_waiting)
            seconds = IDLE_SECONDS if self.is_idle else BUSY_SECONDS
            self.has_backlog = self._do(lambda: compute_signals(seconds=seconds)) is True
            if is_housekeeping:
                self._do(adopt_orphans)
                self._do(prune)
            return bool(has_announced)
        except (OperationalError, InterfaceError) as error:
            log.warning("sweep put off, database away: %s", error)
        finally:
            connection.close()
        return False

    def _do(self, chore: Callable[[], object]) -> object:
        """A chore that fails by a mistake of ours must not keep the others from being done."""
        try:
            return chore()
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            log.exception("a chore of the sweep failed; the next round tries it again")
            return None

    def say_hello(self) -> None:
        Worker.objects.update_or_create(
            name=self.name,
            defaults={"seen_at": timezone.now()},
            create_defaults={
                "host": self.host,
                "pid": os.getpid(),
                "queues": ",".join(self.queues),
                "devices": hosts.gpu_names(),
                "seen_at": timezone.now(),
            },
        )

    def say_goodbye(self) -> None:
        try:
            Worker.objects.filter(name=self.name).delete()
        except (OperationalError, InterfaceError):
            log.info("database away; the list of workers forgets this one by itself")
        finally:
            connection.close()


def announce_queued(queues: list[str]) -> bool:
    """Say again that there is work, when nobody has taken it for a while; the message may be lost."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE launch_lease l SET announced_at = now() FROM runs_attempt a JOIN runs_run r ON r.id = a.run_id"
            " WHERE l.attempt_id = a.id AND a.state = 'queued' AND r.state = 'queued' AND r.queue = ANY(%s)"
            " AND l.announced_at < now() - make_interval(secs => %s) RETURNING a.id, r.queue",
            [queues, ANNOUNCE_SECONDS],
        )
        waiting = sorted(cursor.fetchall())
    try:
        for attempt_id, queue in waiting:
            hint_workers(attempt_id, queue)
    except BrokerAway as error:
        log.warning("broker away, %s queued attempts stay unannounced: %s", len(waiting), error)
        return False
    return bool(waiting)


def end_abandoned() -> None:
    """End what a command in a terminal queued and never took; it takes what it queues at once."""
    long_ago = timezone.now() - timedelta(seconds=ABANDONED_SECONDS)
    for run in Run.objects.filter(
        state=RunState.QUEUED, queue=FOREGROUND, attempts__state=RunState.QUEUED, attempts__created_at__lt=long_ago
    ):
        services.end_abandoned(run)


def prune() -> None:
    """Forget what no page can need."""
    with transaction.atomic(), connection.cursor() as cursor:
        _one_at_a_time(cursor)
        outbox.prune()
        cursor.execute("DELETE FROM launch_worker WHERE seen_at < now() - interval '1 day'")


def _one_at_a_time(cursor: CursorWrapper) -> None:
    """Keep the sweepers of other workers out of the same rows until the transaction ends."""
    cursor.execute("SELECT pg_advisory_xact_lock(%s)", [SWEEPER_LOCK])


def index_texts() -> None:
    """Make new completions searchable."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT EXISTS (SELECT {PENDING})")
        has_pending = cursor.fetchone()[0]
    if has_pending:
        # Loads numpy, 40 MB that a worker with nothing to read does without.
        from rlviewer.search.services import index_pending

        index_pending(STEPS_AT_A_TIME)


def count_searches() -> None:
    """Count what saved searches find in new steps."""
    if counting.has_news():
        counting.count_pending()


def compute_signals(*, seconds: float) -> bool:
    """Work out what new steps taught, the newest first, for about so long; True when some were and more may wait."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT EXISTS (SELECT {signal_lag.PENDING})")
        has_pending = cursor.fetchone()[0]
    if has_pending:
        # Loads numpy and Arrow, as above.
        from rlviewer.signal.services import compute_pending

        return compute_pending(STEPS_AT_A_TIME, seconds=seconds) > 0
    return False


def embed_waiting() -> None:
    """Embed what somebody asked for, in a thread beside whatever this worker does."""
    if jobs.is_waiting():
        # Loads numpy, as above.
        from rlviewer.analysis.worker import start

        start(worker.interrupted)


def replay_waiting() -> None:
    """Work out what other algorithms would have made of stored steps, in a thread beside whatever this worker does."""
    if replay_jobs.is_waiting():
        # Loads numpy and Arrow, as above.
        from rlviewer.counterfactual.worker import start

        start(worker.interrupted)


def adopt_orphans() -> None:
    """Store batches that came before their attempt was known, now that it is."""
    if ParkedBatch.objects.adoptable().exists():
        # Loads Arrow, as above.
        from rlviewer.ingest.parked import adopt_parked

        adopt_parked()


def mark_silent() -> None:
    """Show as silent what has not been heard of; the next heartbeat corrects it."""
    with transaction.atomic(), connection.cursor() as cursor:
        # It locks many runs at once, and only then topics, as everybody else.
        _one_at_a_time(cursor)
        cursor.execute(
            # A row that somebody holds locked is being written to; the next look takes it if they froze.
            "UPDATE runs_run r SET state = 'silent', state_reason = 'not heard from since '"
            "  || to_char(unheard.heartbeat_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC'"
            " FROM (SELECT q.id, l.heartbeat_at FROM runs_run q JOIN runs_attempt a ON a.run_id = q.id"
            "  AND a.number = q.current_attempt JOIN launch_lease l ON l.attempt_id = a.id"
            "  WHERE l.holder <> '' AND l.heartbeat_at < now() - make_interval(secs => %s)"
            "  AND q.state IN ('queued', 'starting', 'running', 'paused', 'stopping') FOR UPDATE OF q SKIP LOCKED"
            " ) unheard WHERE r.id = unheard.id RETURNING r.id",
            [settings.SILENT_SECONDS],
        )
        for run in Run.objects.filter(pk__in=[row[0] for row in cursor.fetchall()]).order_by("pk"):
            announce_state(run)


def expire_leases() -> None:
    """Give up what has been silent for a whole lease. Its holder keeps the fence, and corrects it if it comes back.

    What a dead process of this host held is not given up: the repairs end it, whose reason says more and which resumes it.
    A transaction each: the topics of one run stay locked until commit, and whoever stores the next run's rollouts may wait
    for them.
    """
    overdue = Attempt.objects.filter(
        state__in=["starting", "running", "paused", "stopping"],
        lease__holder__gt="",
        lease__expires_at__lt=timezone.now(),
    )
    for attempt_id, fence, holder in list(overdue.values_list("pk", "lease__fence", "lease__holder")):
        if hosts.is_dead_here(holder):
            continue
        with transaction.atomic():
            run = leases.lock_run(attempt_id, fence)
            attempt = overdue.select_related("lease").filter(pk=attempt_id).first()
            if run is None or attempt is None:
                continue  # it came back in this moment
            attempt.state, attempt.ended_at = RunState.FAILED, timezone.now()
            attempt.reason = f"not seen since {attempt.lease.heartbeat_at:%Y-%m-%d %H:%M:%S} UTC (host {attempt.host})"
            if run.wanted == "stop":
                attempt.state, attempt.reason = (
                    RunState.STOPPED,
                    f"stopped by {name_of(run.wanted_by)}; {attempt.reason}",
                )
            attempt.save(update_fields=["state", "reason", "ended_at"])
            if attempt.number == run.current_attempt:
                run.state, run.state_reason, run.ended_at = attempt.state, attempt.reason, attempt.ended_at
                run.save(update_fields=["state", "state_reason", "ended_at"])
                announce_state(run)
