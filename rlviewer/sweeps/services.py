"""What a person asks of a sweep: launch, pause, resume, stop, edit. Each is one transaction, recorded in the audit trail."""

from django.db import transaction
from django.utils import timezone

from rlviewer.accounts.models import Project, User
from rlviewer.accounts.services import record
from rlviewer.launch.services import RunStateError, stop_run
from rlviewer.outbox.services import announce
from rlviewer.runs.models import Run
from rlviewer.sweeps.checking import check
from rlviewer.sweeps.models import Sweep, SweepState, TrialState
from rlviewer.sweeps.spec import SweepSpec


class SweepStateError(ValueError):
    """What was asked does not fit the sweep's state; the message is for the person who asked."""


def launch_sweep(user: User, project: Project, spec: SweepSpec) -> Sweep:
    """Store a sweep; workers start its runs.

    Raises:
        ConfigError: it cannot run as it is; nothing was stored.
    """
    check(spec, user)
    with transaction.atomic():
        sweep = Sweep.objects.create(
            project=project, name=spec.name, spec=spec.to_dict(), priority=spec.priority, created_by=user
        )
        record(user, "launch-sweep", f"sweep:{sweep.pk}", project, name=sweep.name, runs=spec.run_count())
        announce_sweep(sweep)
    return sweep


def pause_sweep(user: User, sweep: Sweep) -> None:
    """Start no more runs; those in flight go on to their end."""
    _move(user, sweep, "pause-sweep", SweepState.PAUSED, {SweepState.RUNNING})


def resume_sweep(user: User, sweep: Sweep) -> None:
    """Go on, also after a stop: with what was not tried yet."""
    _move(user, sweep, "resume-sweep", SweepState.RUNNING, {SweepState.PAUSED, SweepState.STOPPED})


def stop_sweep(user: User, sweep: Sweep) -> None:
    """Start no more runs and stop those in flight at their next step."""
    with transaction.atomic():
        sweep = _locked(sweep)
        if sweep.state in {SweepState.DONE, SweepState.STOPPED}:
            raise SweepStateError(f"The sweep is {sweep.state} already.")
        end_sweep(user, sweep, f"stopped by {user.get_username()}")
        announce_sweep(sweep)


def edit_sweep(user: User, sweep: Sweep, spec: SweepSpec) -> Sweep:
    """Change a sweep, also one that is done: ranges, values, trials, budgets. What was tried stays.

    Raises:
        ConfigError: it cannot run so; nothing was changed.
        SweepStateError: the base configuration or the objective differs, which would make its trials incomparable.
    """
    check(spec, user)
    with transaction.atomic():
        sweep = _locked(sweep)
        old = sweep.parsed
        if (old.base, old.objective, old.direction, old.last_steps) != (
            spec.base,
            spec.objective,
            spec.direction,
            spec.last_steps,
        ):
            raise SweepStateError(
                "Its base and objective stay, so that its trials can be compared: launch another sweep."
            )
        if set(old.parameters) != set(spec.parameters):
            raise SweepStateError("Its parameters stay, with other values: launch another sweep to vary others.")
        if old.parameters != spec.parameters or old.sampler != spec.sampler:
            sweep.space_version += 1
        sweep.name, sweep.spec, sweep.priority = spec.name, spec.to_dict(), spec.priority
        if set(spec.seeds) - set(old.seeds):
            sweep.trials.filter(state=TrialState.COMPLETE).update(state=TrialState.RUNNING)
        if sweep.state == SweepState.DONE:
            sweep.state, sweep.state_reason, sweep.ended_at = SweepState.RUNNING, "", None
        sweep.save()
        before, after = old.to_dict(), spec.to_dict()
        changed = {key: [before[key], after[key]] for key in after if before[key] != after[key]}
        record(user, "edit-sweep", f"sweep:{sweep.pk}", sweep.project, name=sweep.name, changed=changed)
        announce_sweep(sweep)
    return sweep


def end_sweep(user: User | None, sweep: Sweep, reason: str, *, state: SweepState = SweepState.STOPPED) -> None:
    """End a locked sweep, and the runs that are still in flight."""
    sweep.state, sweep.state_reason, sweep.ended_at = state, reason, timezone.now()
    sweep.save(update_fields=["state", "state_reason", "ended_at"])
    for run in Run.objects.filter(trial_run__trial__sweep=sweep, trial_run__trial__state=TrialState.RUNNING):
        if not run.is_over:
            try:
                stop_run(user, run)
            except RunStateError:
                continue  # it ended in this moment
    verb = "stop-sweep" if state == SweepState.STOPPED else "finish-sweep"
    record(user, verb, f"sweep:{sweep.pk}", sweep.project, name=sweep.name, reason=reason)


def announce_sweep(sweep: Sweep) -> None:
    announce(f"project:{sweep.project_id}", "sweep-changed", sweep=sweep.pk, state=sweep.state)


def _move(user: User, sweep: Sweep, verb: str, to: SweepState, known: set[SweepState]) -> None:
    with transaction.atomic():
        sweep = _locked(sweep)
        if sweep.state not in known:
            raise SweepStateError(f"The sweep is {sweep.state}.")
        sweep.state, sweep.state_reason, sweep.ended_at = to, "", None
        sweep.save(update_fields=["state", "state_reason", "ended_at"])
        record(user, verb, f"sweep:{sweep.pk}", sweep.project, name=sweep.name)
        announce_sweep(sweep)


def _locked(sweep: Sweep) -> Sweep:
    return Sweep.objects.select_for_update(no_key=True, of=("self",)).get(pk=sweep.pk)
