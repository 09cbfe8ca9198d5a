"""One attempt from taking its lease to recording its end. The task and the commands call the same `run_attempt`."""

import logging
import signal
import threading
import time
from collections.abc import Callable

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection

from rlviewer.launch import hosts, leases
from rlviewer.launch.drainer import Drainer
from rlviewer.launch.freeze import FreezeWatch
from rlviewer.launch.process import RunFolder, TrainerProcess, TrainerRecord
from rlviewer.launch.reasons import Ending, Verdict
from rlviewer.launch.reports import finish_attempt, record_start, record_status
from rlviewer.launch.status import TrainerStatus
from rlviewer.runs.models import Attempt

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
WISH_SECONDS = 0.5
WATCH_SECONDS = 1.0
HEARTBEAT_SECONDS = 5.0
DATABASE_RETRY_SECONDS = 2.0
# From "stop" to the signal that says it again, and to the end of patience; the promise is 10 s.
TERM_SECONDS, KILL_SECONDS = 4.0, 7.5
# Batches that cannot be stored for another reason than an absent database stay in the spool for the sweeper.
LAST_DRAIN_SECONDS = 60.0

DATABASE_AWAY = (OperationalError, InterfaceError)

# Holders of leases that this process looks after; the sweeper ends what it holds and has lost sight of.
ACTIVE: set[str] = set()


def run_attempt(
    attempt_id: int,
    *,
    interrupted: threading.Event,
    interruption: str = "the worker was shut down",
    on_status: Callable[[TrainerStatus], None] | None = None,
) -> Verdict | None:
    """Train an attempt to its end if nobody else has taken it; None when another has, or the lease was lost.

    Args:
        interrupted: set it to have the trainer stop at its next step; another worker resumes the run.
        interruption: how the reason says that it was set.
        on_status: called with each new status.
    """
    holder = hosts.new_holder()
    # Before the lease is taken: the sweeper beside us must never see one that nobody looks after.
    ACTIVE.add(holder)
    try:
        fence = leases.acquire(attempt_id, holder, settings.LEASE_SECONDS)
        if fence is None:
            return None
        attempt = Attempt.objects.select_related("run").get(pk=attempt_id)
        return _Supervision(attempt, fence, interrupted, interruption, on_status).run()
    finally:
        ACTIVE.discard(holder)


class _Supervision:
    def __init__(
        self,
        attempt: Attempt,
        fence: int,
        interrupted: threading.Event,
        interruption: str,
        on_status: Callable[[TrainerStatus], None] | None,
    ) -> None:
        self.attempt_id = attempt.pk
        self.fence = fence
        self.interrupted = interrupted
        self.interruption = interruption
        self.on_status = on_status
        self.folder = RunFolder(str(attempt.run.uid), attempt.number)
        self.config_toml = attempt.run.config_toml
        self.resumes = attempt.number > 1
        self.host = hosts.host_name()
        self.status = TrainerStatus()
        self.wanted = attempt.run.wanted
        self.asked = ""  # the word that the trainer has been given
        self.has_lease = True
        self.frozen = ""
        self.out_of_grace = False
        self._status_stamp = 0
        self._reported: tuple[object, ...] = ()
        self._stop_since: float | None = None
        self._termed = False
        self._heartbeat_seconds = min(HEARTBEAT_SECONDS, settings.LEASE_SECONDS / 3)
        self._next_heartbeat = self._next_watch = self._next_talk = 0.0

    def run(self) -> Verdict | None:
        oom_kills = hosts.oom_kills()
        try:
            TrainerRecord.end_trainers(self.folder.run_uid, upto=self.folder.attempt)
            self.folder.prepare(self.config_toml)
            self.trainer = TrainerProcess.start(self.folder, resume=self.resumes)
        except OSError as error:
            log.exception("attempt %s: could not start its trainer", self.attempt_id)
            return self._finish(Ending(could_not_start=str(error)))
        log.info("attempt %s: trainer %s started in %s", self.attempt_id, self.trainer.pid, self.folder.root)
        self.freeze = FreezeWatch(self.trainer.pid)
        drainer = Drainer(self.folder.root)
        note: TrainerRecord | None = None
        failure = ""
        try:
            drainer.start()
            note = TrainerRecord.write(self.attempt_id, self.fence, self.trainer)
            while not self.trainer.has_exited():
                self._tick()
                time.sleep(POLL_SECONDS)
        except Exception as error:
            log.exception("attempt %s: supervision failed, ending its trainer", self.attempt_id)
            failure = f"its worker failed ({type(error).__name__}: {error})"
        finally:
            # Also when this process is told to exit: no trainer outlives its supervision.
            self.trainer.signal_group(signal.SIGKILL)
            code = self.trainer.reap()
            if note is not None:
                note.remove()
            drainer.finish()
        self._read_status()
        self._wait_for(drainer)
        ending = Ending(
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            frozen=self.frozen,
            out_of_grace=self.out_of_grace,
            out_of_memory=hosts.oom_kills() > oom_kills >= 0,
            worker_died=failure,
            interruption=self.interruption if self.interrupted.is_set() else "",
            last_words=self.folder.last_words(),
        )
        return self._finish(ending)

    def _tick(self) -> None:
        now = time.monotonic()
        self._read_status()
        if now >= self._next_talk:
            self._talk_to_database(now)
        if not self.has_lease:
            log.warning("attempt %s: lease lost, ending its trainer", self.attempt_id)
            self.trainer.signal_group(signal.SIGKILL)
        elif self.wanted == "stop" or self.interrupted.is_set():
            self._press_to_stop(now)
        elif self.asked != self.wanted:
            self._ask(self.wanted)
        if now >= self._next_watch:
            self._next_watch = now + WATCH_SECONDS
            self.trainer.trim_log()
            self.frozen = self.freeze.reason(is_paused=self.status.state == "paused")
            if self.frozen:
                self.trainer.signal_group(signal.SIGKILL)

    def _read_status(self) -> None:
        try:
            stamp = self.folder.status.stat().st_mtime_ns
        except OSError:
            return
        status = TrainerStatus.read(self.folder.status) if stamp != self._status_stamp else None
        if status is not None:
            self.status, self._status_stamp = status, stamp
            self.freeze.moved()
            if self.on_status is not None:
                self.on_status(status)

    def _talk_to_database(self, now: float) -> None:
        """Heartbeat, what people want, what the trainer says. While the database is away training goes on."""
        self._next_talk = now + WISH_SECONDS
        try:
            if now >= self._next_heartbeat:
                self.has_lease = leases.heartbeat(self.attempt_id, self.fence, settings.LEASE_SECONDS)
                self._next_heartbeat = now + self._heartbeat_seconds
            row = Attempt.objects.filter(pk=self.attempt_id).values_list("run__wanted", "run__state", "pid").first()
            if row is None:
                self.has_lease = False  # the run was deleted
                return
            self.wanted, run_state, pid = row
            if pid != self.trainer.pid:
                self.has_lease &= record_start(self.attempt_id, self.fence, host=self.host, pid=self.trainer.pid)
            # A sweeper that missed us wrote silent or failed over what is true.
            news = (*_reportable(self.status), run_state if run_state in {"silent", "failed"} else "")
            if self.status.pid and news != self._reported:
                self.has_lease &= record_status(self.attempt_id, self.fence, self.status, host=self.host)
                self._reported = (*_reportable(self.status), "")
        except DATABASE_AWAY as error:
            self._database_away(error)

    def _press_to_stop(self, now: float) -> None:
        if self._stop_since is None:
            self._stop_since = now
            self._ask("stop")
        waited = now - self._stop_since
        if waited >= KILL_SECONDS or (waited >= WATCH_SECONDS and self.freeze.is_stopped):
            self.out_of_grace = True
            self.trainer.signal_group(signal.SIGKILL)
        elif waited >= TERM_SECONDS and not self._termed:
            self._termed = True
            self.trainer.signal_leader(signal.SIGTERM)

    def _ask(self, word: str) -> None:
        self.trainer.ask(word)
        self.asked = word

    def _wait_for(self, drainer: Drainer) -> None:
        """Keep the lease while the last batches are stored."""
        patience_ends = time.monotonic() + LAST_DRAIN_SECONDS
        while drainer.is_alive() and self.has_lease:
            drainer.join(POLL_SECONDS)
            now = time.monotonic()
            if now >= self._next_heartbeat:
                try:
                    self.has_lease = leases.heartbeat(self.attempt_id, self.fence, settings.LEASE_SECONDS)
                    self._next_heartbeat = now + self._heartbeat_seconds
                except DATABASE_AWAY as error:
                    self._database_away(error)
                    patience_ends = now + LAST_DRAIN_SECONDS
                    if self.interrupted.is_set():
                        break
            if now >= patience_ends and drainer.is_stuck:
                break
        if not self.has_lease:
            drainer.join(LAST_DRAIN_SECONDS)
        drainer.abandon()

    def _finish(self, ending: Ending) -> Verdict | None:
        while True:
            try:
                verdict = finish_attempt(self.attempt_id, self.fence, ending, self.status, host=self.host)
                if verdict is None:
                    log.warning("attempt %s: its lease is gone; another attempt speaks for the run", self.attempt_id)
                else:
                    log.info("attempt %s: %s %s", self.attempt_id, verdict.state, verdict.reason)
                return verdict
            except DATABASE_AWAY as error:
                self._database_away(error)
                if self.interrupted.is_set():
                    # A sweeper of this host finds the dead holder and reads the end from status.json.
                    return None
                time.sleep(DATABASE_RETRY_SECONDS)

    def _database_away(self, error: Exception) -> None:
        log.warning("attempt %s: database away, trying again: %s", self.attempt_id, error)
        connection.close()
        self._next_talk = time.monotonic() + DATABASE_RETRY_SECONDS


def _reportable(status: TrainerStatus) -> tuple[object, ...]:
    """What of a status the database holds; steps arrive with their batches."""
    return status.state, status.last_checkpoint, status.resumed_from_step, status.code_version
