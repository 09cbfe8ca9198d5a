"""What a person asks of a run: launch, stop, pause, continue, resume. Each is one transaction; Celery only gets a hint."""

import logging
import math
from collections.abc import Iterator
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from rlviewer.accounts.models import Project, User
from rlviewer.accounts.services import SYSTEM, record
from rlviewer.celery import app
from rlviewer.launch import leases
from rlviewer.launch.models import Lease
from rlviewer.outbox.services import announce_run
from rlviewer.runs.models import Attempt, Run, RunState
from training import legality
from training.config import ConfigError, RunConfig

log = logging.getLogger(__name__)

RUN_ATTEMPT = "rlviewer.launch.tasks.run_attempt"
# Runs of a command in a terminal: no worker listens to it.
FOREGROUND = "foreground"
DEFAULT_QUEUE = "cpu"


class RunStateError(ValueError):
    """What was asked does not fit the run's state; the message is for the person who asked."""


def launch_run(user: User | None, project: Project, config: RunConfig, *, queue: str = DEFAULT_QUEUE) -> Run:
    """Queue a run and return it; nothing touches the disk until a worker takes it.

    Only a command in a terminal, where `user` is None, may name files and code of the worker's.

    Raises:
        ConfigError: the configuration cannot run; `key` names the field.
    """
    legality.check(config, takes_own=user is None)
    raw = config.to_dict()
    _check_storable(raw)
    with transaction.atomic():
        run = Run.objects.create(
            project=project,
            name=config.name,
            queue=queue,
            algorithm=config.algorithm,
            task=config.task.name,
            model=config.model.path,
            base_model=config.model.path,
            seed=config.seed,
            steps_planned=config.steps,
            config=raw,
            config_toml=config.to_toml(),
            plugins={hook: list(names) for hook, names in legality.resolve(config).parts.items()},
            repeat_group=config.repeat_digest(),
            created_by=user,
        )
        _add_attempt(run)
        record(user, "launch", f"run:{run.id}", project, name=run.name)
        announce_run(run.id, project.id, "run-added", state=run.state)
    return run


def stop_run(user: User | None, run: Run) -> None:
    """Ask a run to stop at its next step; a queued one stops at once.

    Raises:
        RunStateError: it is over already.
    """
    with transaction.atomic():
        run = _locked(run)
        if RunState(run.state).is_terminal:
            raise RunStateError(f"The run is {run.state} already.")
        run.wanted, run.wanted_by, run.state = "stop", user, RunState.STOPPING
        _end_queued(run, f"stopped by {name_of(user)} before it started")
        run.save(update_fields=["wanted", "wanted_by", "state", "state_reason", "ended_at"])
        _tell(user, "stop", run)


def end_abandoned(run: Run) -> None:
    """End a run that its command in a terminal queued and, killed, did not begin; nobody else will."""
    with transaction.atomic():
        run = _locked(run)
        if _end_queued(run, "the command that queued it ended before it started"):
            run.save(update_fields=["state", "state_reason", "ended_at"])
            announce_state(run)


def pause_run(user: User | None, run: Run) -> None:
    """Ask a run to wait before its next step, keeping its place in memory.

    Raises:
        RunStateError: it is not training.
    """
    with transaction.atomic():
        run = _locked(run)
        if run.wanted == "stop" or run.state not in {RunState.STARTING, RunState.RUNNING, RunState.SILENT}:
            raise RunStateError(f"Only a run that is training can pause; this one is {run.state}.")
        run.wanted, run.wanted_by = "pause", user
        run.save(update_fields=["wanted", "wanted_by"])
        _tell(user, "pause", run)


def continue_run(user: User | None, run: Run) -> None:
    """Let a paused run go on.

    Raises:
        RunStateError: it is not paused.
    """
    with transaction.atomic():
        run = _locked(run)
        if run.wanted != "pause" or RunState(run.state).is_terminal:
            raise RunStateError(f"The run is not paused; it is {run.state}.")
        run.wanted, run.wanted_by = "run", user
        run.save(update_fields=["wanted", "wanted_by"])
        _tell(user, "continue", run)


def resume_run(user: User | None, run: Run) -> Attempt:
    """Queue a new attempt of a run that stopped or failed; it starts from the newest intact checkpoint.

    Raises:
        RunStateError: the run is still going, has done all its steps, or was not trained here.
    """
    with transaction.atomic():
        run = _locked(run)
        if run.state not in {RunState.STOPPED, RunState.FAILED}:
            raise RunStateError(f"Only a stopped or failed run can be resumed; this one is {run.state}.")
        last = run.attempts.order_by("-number").first()
        if last is None or not Lease.objects.filter(attempt=last).exists():
            raise RunStateError("This run was not trained here; its checkpoints stayed where it was.")
        # An unreachable host may still be training it and would otherwise report over the new attempt.
        leases.revoke(last.pk)
        if run.queue == FOREGROUND:
            run.queue = DEFAULT_QUEUE  # its command is gone; a worker goes on
        run.wanted = "run"  # also when it was paused as it failed
        attempt = add_next_attempt(run, deaths=0)
        run.state_reason = f"resumed by {name_of(user)} as attempt {attempt.number}"
        run.save(update_fields=["state_reason", "queue"])
        _tell(user, "resume", run)
    return attempt


def add_next_attempt(run: Run, *, deaths: int) -> Attempt:
    """Queue the next attempt of a locked run whose last attempt is over; `deaths`: those that led to it."""
    run.state, run.wanted, run.ended_at = RunState.QUEUED, "pause" if run.wanted == "pause" else "run", None
    run.current_attempt += 1
    run.save(update_fields=["state", "wanted", "ended_at", "current_attempt"])
    return _add_attempt(run, deaths=deaths)


def hint_workers(attempt_id: int, queue: str) -> None:
    """Tell Celery to look at an attempt. It may get lost: the sweeper of an idle worker says it again."""
    app.send_task(RUN_ATTEMPT, args=[attempt_id], queue=queue, retry=False)


def name_of(user: User | None) -> str:
    return user.get_username() if user is not None else SYSTEM


def _locked(run: Run) -> Run:
    return Run.objects.select_for_update(no_key=True, of=("self",)).get(pk=run.pk)


def _add_attempt(run: Run, *, deaths: int = 0) -> Attempt:
    attempt = Attempt.objects.create(run=run, number=run.current_attempt, deaths=deaths)
    Lease.objects.create(attempt=attempt, announced_at=timezone.now())
    if run.queue != FOREGROUND:
        # robust: the launch is committed; a broker that is away must not turn it into an error page.
        transaction.on_commit(lambda: hint_workers(attempt.pk, run.queue), robust=True)
    return attempt


def _end_queued(run: Run, reason: str) -> bool:
    """End the attempt if nobody has taken it yet. The row's lock decides against a worker that takes it now."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE runs_attempt SET state = 'stopped', ended_at = now(), reason = %s"
            " WHERE run_id = %s AND number = %s AND state = 'queued'",
            [reason, run.pk, run.current_attempt],
        )
        if cursor.rowcount == 0:
            return False
    run.state, run.state_reason, run.ended_at = RunState.STOPPED, reason, timezone.now()
    return True


def _tell(user: User | None, verb: str, run: Run) -> None:
    record(user, verb, f"run:{run.pk}", run.project, name=run.name)
    announce_state(run)


def announce_state(run: Run) -> None:
    announce_run(
        run.pk,
        run.project_id,
        "state-changed",
        state=run.state,
        reason=run.state_reason,
        wanted=run.wanted,
        attempt=run.current_attempt,
    )


# Longest value of each column that a configuration fills.
COLUMN_LIMITS = {"name": 200, "algorithm": 60, "task.name": 120, "model.path": 300}


def _check_storable(raw: dict[str, Any]) -> None:
    """Raise ConfigError for what Postgres cannot hold; only the free tables (params, hooks) can get this far."""
    for name, value in _leaves(raw, ""):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(name, f"must be a finite number, got {value}")
        if not isinstance(value, str | int | float):
            raise ConfigError(name, f"cannot be stored: {value!r}; use numbers, texts, true or false")
        if isinstance(value, str) and ("\0" in value or _has_surrogate(value)):
            raise ConfigError(name, "holds a NUL or half a character, which cannot be stored")
        limit = COLUMN_LIMITS.get(name, 10_000)
        if isinstance(value, str) and len(value) > limit:
            raise ConfigError(name, f"is {len(value)} characters long; the limit is {limit}")


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every key and value with its dotted name."""
    if isinstance(value, dict):
        for key, item in value.items():
            inner = f"{name}.{key}" if name else str(key)
            yield inner, key
            yield from _leaves(item, inner)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, name)
    else:
        yield name, value


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)
