"""What the holder of a lease reports of its attempt. Each write shows the fence and changes nothing without it."""

from dataclasses import replace
from typing import Any

from django.db import connection, transaction
from django.db.models import Max
from django.utils import timezone

from rlviewer.launch import leases
from rlviewer.launch.reasons import Ending, Verdict, judge
from rlviewer.launch.services import FOREGROUND, add_next_attempt, announce_state, name_of
from rlviewer.launch.status import TrainerStatus
from rlviewer.runs.models import Attempt, Checkpoint, Run, RunState

# An accident may pass; the third of a kind will not.
MAX_DEATHS = 3
LIVE_STATES = {RunState.STARTING, RunState.RUNNING, RunState.PAUSED, RunState.STOPPING}


def record_start(attempt_id: int, fence: int, *, host: str, pid: int) -> bool:
    """The trainer's process exists."""
    with transaction.atomic():
        run = leases.lock_run(attempt_id, fence)
        if run is None:
            return False
        Attempt.objects.filter(pk=attempt_id).update(host=host, pid=pid)
        run.started_at = run.started_at or timezone.now()
        run.save(update_fields=["started_at"])
        _set_run_state(run, attempt_id, RunState.STARTING)
    return True


def record_status(attempt_id: int, fence: int, status: TrainerStatus, *, host: str) -> bool:
    """Bring attempt, run and checkpoints to what the trainer last said; also ends silence. Final states come later."""
    with transaction.atomic():
        run = leases.lock_run(attempt_id, fence)
        if run is None:
            return False
        state = RunState(status.state) if status.state in LIVE_STATES else None
        columns: dict[str, Any] = {"resumed_from_step": status.resumed_from_step}
        if state is not None:
            columns |= {"state": state, "reason": "", "ended_at": None}
        Attempt.objects.filter(pk=attempt_id).update(**columns)
        _write_checkpoints(run, attempt_id, status, host)
        if run.attempts.get(pk=attempt_id).number == run.current_attempt:
            run.plugins = status.plugins or run.plugins
            run.hardware = status.hardware or run.hardware
            run.code_version = status.code_version[:80] or run.code_version
            run.save(update_fields=["plugins", "hardware", "code_version"])
        if state is not None:
            _set_run_state(run, attempt_id, RunState.STOPPING if run.wanted == "stop" else state)
    return True


def finish_attempt(attempt_id: int, fence: int, ending: Ending, status: TrainerStatus, *, host: str) -> Verdict | None:
    """Record how an attempt ended, give its lease up and, after an accident, queue the next attempt.

    An attempt that was given up before (its host was not heard of for a whole lease) queues none: a person decides.

    None when the lease is not the caller's: another attempt speaks for the run by now.
    """
    with transaction.atomic():
        run = leases.lock_run(attempt_id, fence)
        if run is None:
            return None
        attempt = Attempt.objects.get(pk=attempt_id)
        _write_checkpoints(run, attempt_id, status, host)
        verdict = judge(ending, status, wanted=run.wanted, wanted_by=name_of(run.wanted_by))
        if verdict.resumes and RunState(attempt.state).is_terminal:
            # Its lease had run out: people have seen the run as over since, and may not want it any more.
            reason = f"{verdict.reason}; not resumed by itself: {attempt.reason}"
            verdict = replace(verdict, reason=reason, resumes=False)
        leases.release(attempt_id, fence)
        attempt.state, attempt.reason = verdict.state, verdict.reason
        attempt.ended_at = attempt.ended_at or timezone.now()
        attempt.exit_code, attempt.signal = ending.code, ending.signal
        attempt.resumed_from_step = status.resumed_from_step
        attempt.deaths += verdict.is_death and not _is_excused(ending, attempt, status)
        attempt.save()
        if attempt.number == run.current_attempt:
            _end_or_resume(run, attempt, verdict, ending, status)
    return verdict


def _end_or_resume(run: Run, attempt: Attempt, verdict: Verdict, ending: Ending, status: TrainerStatus) -> None:
    run.state, run.state_reason, run.ended_at = verdict.state, verdict.reason, attempt.ended_at
    # A command in a terminal goes on by itself; once it has ended nobody trains in its place unasked.
    resumes = verdict.resumes and not (run.queue == FOREGROUND and (ending.worker_died or ending.interruption))
    if resumes and attempt.deaths >= MAX_DEATHS:
        run.state_reason += f"; given up after {attempt.deaths} deaths"
    elif resumes:
        following = add_next_attempt(run, deaths=attempt.deaths)
        run.state_reason += f"; resumed as attempt {following.number} from {_resume_place(run, status)}"
    run.save(update_fields=["state", "state_reason", "ended_at"])
    announce_state(run)


def _resume_place(run: Run, status: TrainerStatus) -> str:
    """Where the next attempt will go on; one that died before it looked leaves what earlier ones saved."""
    saved = status.last_checkpoint
    if saved is None:
        saved = run.checkpoints.filter(is_deleted=False).aggregate(newest=Max("step"))["newest"]
    return "the start" if saved is None else f"checkpoint {saved}"


def _is_excused(ending: Ending, attempt: Attempt, status: TrainerStatus) -> bool:
    """A worker may be restarted any number of times, as long as the run gets on in between."""
    return bool(ending.worker_died) and (status.last_checkpoint or 0) > (status.resumed_from_step or 0)


def _set_run_state(run: Run, attempt_id: int, state: RunState) -> None:
    """Show `state` unless a newer attempt speaks for the run."""
    is_current = run.attempts.filter(pk=attempt_id, number=run.current_attempt).exists()
    if is_current and (run.state != state or run.ended_at is not None):
        # The reason tells of the last accident until the resumed attempt trains.
        keep_reason = state == RunState.STARTING
        run.state, run.state_reason, run.ended_at = state, run.state_reason if keep_reason else "", None
        run.save(update_fields=["state", "state_reason", "ended_at"])
        announce_state(run)


def _write_checkpoints(run: Run, attempt_id: int, status: TrainerStatus, host: str) -> None:
    """The rows of this host's checkpoints follow what lies on its disk, once the trainer has looked."""
    if status.checkpoints is None:
        return
    kept = {int(item["step"]): item for item in status.checkpoints}
    known = set()
    for row in Checkpoint.objects.filter(run=run, host=host, is_deleted=False):
        if row.step in kept:
            known.add(row.step)
        else:
            row.is_deleted = True
            row.save(update_fields=["is_deleted"])
    with connection.cursor() as cursor:
        for step in sorted(kept.keys() - known):
            item = kept[step]
            cursor.execute(
                "INSERT INTO runs_checkpoint (run_id, attempt_id, step, size_bytes, sha256, host, is_deleted, saved_at)"
                " VALUES (%s, %s, %s, %s, %s, %s, false, now()) ON CONFLICT ON CONSTRAINT checkpoint_unique"
                " DO UPDATE SET is_deleted = false, size_bytes = EXCLUDED.size_bytes, sha256 = EXCLUDED.sha256",
                [run.pk, attempt_id, step, int(item["size_bytes"]), str(item.get("sha256") or ""), host],
            )
