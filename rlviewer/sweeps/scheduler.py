"""What every worker does for sweeps every few seconds: settle what ended, end what falls behind, start what may start.

All of a sweep's progress is one transaction that holds its row, so two workers never work on the same sweep and a killed one
leaves nothing half done. Optuna commits for itself; it is asked and told so that saying it again changes nothing.
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import F, Q, Sum

from rlviewer.accounts.access import shown_role
from rlviewer.accounts.models import Role
from rlviewer.launch.services import RunStateError, launch_run, resume_run, stop_run
from rlviewer.runs.models import Run, RunState
from rlviewer.sweeps import objectives
from rlviewer.sweeps.checking import legal_config
from rlviewer.sweeps.models import Sweep, SweepState, Trial, TrialRun, TrialState
from rlviewer.sweeps.services import announce_sweep, end_sweep
from rlviewer.sweeps.spec import Point, SweepSpec, told
from training.config import ConfigError

if TYPE_CHECKING:
    from rlviewer.sweeps.memory import Memory

log = logging.getLogger(__name__)

# A sweep that starts many runs at once does so over some rounds, so that a round stays short.
STARTS_A_ROUND = 8


def advance_all() -> None:
    """Sweeps with something to do, the highest priority first. One that fails does not keep the others."""
    unsettled = Q(state__in=[SweepState.RUNNING, SweepState.PAUSED]) | Q(trials__state=TrialState.RUNNING)
    for pk in Sweep.objects.filter(unsettled).distinct().order_by("-priority", "pk").values_list("pk", flat=True):
        try:
            advance(pk)
        except Exception:
            log.exception("sweep %s: could not go on; the next round tries it again", pk)


@transaction.atomic
def advance(pk: int) -> None:
    """One round of one sweep. Does nothing while another worker is at it."""
    sweep = Sweep.objects.select_for_update(skip_locked=True, no_key=True, of=("self",)).filter(pk=pk).first()
    if sweep is None:
        return
    spec = sweep.parsed
    before = _fingerprint(sweep)
    memory = _Lazy(sweep, spec)
    for trial in sweep.trials.filter(state=TrialState.RUNNING).order_by("number").prefetch_related("runs__run"):
        _settle(sweep, spec, memory, trial)
    if sweep.state == SweepState.RUNNING and (reason := spent(sweep, spec) or _barred(sweep)):
        end_sweep(None, sweep, reason)
    if sweep.state == SweepState.RUNNING and not _yields(sweep):
        _fill(sweep, spec, memory)
    if _fingerprint(sweep) != before:
        announce_sweep(sweep)


class _Lazy:
    """Optuna takes a second and 90 MB to load, which a sweep with nothing to say does without."""

    def __init__(self, sweep: Sweep, spec: SweepSpec) -> None:
        self._sweep, self._spec = sweep, spec
        self._memory: Memory | None = None

    def get(self) -> "Memory":
        if self._memory is None:
            from rlviewer.sweeps.memory import Memory

            sweep, spec = self._sweep, self._spec
            self._memory = Memory(
                str(sweep.uid), sweep.space_version, spec, most_steps=int(spec.base.get("steps", 100))
            )
            for trial in sweep.trials.filter(state=TrialState.COMPLETE, space_version__lt=sweep.space_version):
                if trial.value is not None:
                    self._memory.learn(trial.number, trial.point, trial.value)
        return self._memory


def _settle(sweep: Sweep, spec: SweepSpec, memory: _Lazy, trial: Trial) -> None:
    """Take in how far the trial's runs are; retry what failed; end the trial when all are over."""
    tries = list(trial.runs.all())
    for one in tries:
        _retry(sweep, spec, one)
    values = {}
    if spec.pruner != "none" and trial.space_version == sweep.space_version:
        values = objectives.so_far(spec, [one.run for one in tries if one.run])
        memory.get().report(trial.optuna_number, values)
    is_whole = sweep.state == SweepState.STOPPED or {one.seed for one in tries} >= set(spec.seeds)
    if is_whole and all(one.run is None or one.run.is_over for one in tries):
        _finish(spec, memory, trial, tries)
    elif values and memory.get().falls_behind(trial.optuna_number):
        step, value = max(values.items())
        reason = f"pruned at step {step} with {value:.3g}"
        memory.get().prune(trial.optuna_number)
        _end(trial, TrialState.PRUNED, reason)
        stop_runs(trial, reason)


def _retry(sweep: Sweep, spec: SweepSpec, one: TrialRun) -> None:
    """Resume a failed run from its newest checkpoint, as often as the sweep says."""
    if one.run is None or one.run.state != RunState.FAILED or one.retries >= spec.retries:
        return
    if sweep.state == SweepState.STOPPED:
        return
    try:
        with transaction.atomic():
            resume_run(None, one.run)
    except RunStateError as error:
        log.warning("sweep %s: run %s is not retried: %s", sweep.pk, one.run.pk, error)
        return
    one.retries += 1
    one.save(update_fields=["retries"])
    one.run.refresh_from_db()


def _finish(spec: SweepSpec, memory: _Lazy, trial: Trial, tries: list[TrialRun]) -> None:
    values, problems = [], []
    for one in tries:
        one.value = objectives.final(spec, one.run) if one.run and one.run.state == RunState.FINISHED else None
        one.save(update_fields=["value"])
        if one.value is None:
            problems.append(f"seed {one.seed}: {_what_happened(spec, one.run)}")
        else:
            values.append(one.value)
    is_told = trial.space_version == trial.sweep.space_version
    problems += [f"seed {seed}: not started" for seed in spec.seeds if seed not in {one.seed for one in tries}]
    if problems:
        if is_told:
            memory.get().fail(trial.optuna_number)
        _end(trial, TrialState.FAILED, "; ".join(problems))
        return
    trial.value = sum(values) / len(values)
    trial.save(update_fields=["value"])
    if is_told:
        memory.get().complete(trial.optuna_number, trial.value)
    _end(trial, TrialState.COMPLETE, "")


def _what_happened(spec: SweepSpec, run: Run | None) -> str:
    if run is None:
        return "its run was deleted"
    if run.state == RunState.FINISHED:
        return f"the run has no {spec.objective}"
    return f"the run {run.state}" + (f": {run.state_reason}" if run.state_reason else "")


def _end(trial: Trial, state: TrialState, reason: str) -> None:
    trial.state, trial.reason = state, reason
    trial.save(update_fields=["state", "reason"])


def stop_runs(trial: Trial, reason: str) -> None:
    """Ask every run of the trial to stop, and say why."""
    for one in trial.runs.select_related("run"):
        if one.run is None or one.run.is_over:
            continue
        try:
            stop_run(None, one.run)
        except RunStateError:
            continue  # it ended in this moment
        Run.objects.filter(pk=one.run.pk, state__in=["stopping", "stopped"]).update(state_reason=reason)


def spent(sweep: Sweep, spec: SweepSpec) -> str:
    """Which budget is used up, in words; "" while none is."""
    runs = Run.objects.filter(trial_run__trial__sweep=sweep)
    found = runs.aggregate(steps=Sum(F("last_step") + 1), tokens=Sum("token_count"))
    if spec.max_steps and (found["steps"] or 0) >= spec.max_steps:
        return f"its budget of {spec.max_steps:,} steps is used up"
    if spec.max_tokens and (found["tokens"] or 0) >= spec.max_tokens:
        return f"its budget of {spec.max_tokens:,} tokens is used up"
    if spec.max_hours and objectives.hours(runs) >= spec.max_hours:
        return f"its budget of {spec.max_hours:g} hours is used up"
    return ""


def _barred(sweep: Sweep) -> str:
    """Runs are launched in somebody's name: they must still be allowed to."""
    user = sweep.created_by
    may = user.is_active and shown_role(user, sweep.project) in {Role.MEMBER, Role.ADMIN}
    return "" if may else f"{user.get_username()}, in whose name it launches runs, may no longer do so here"


def _yields(sweep: Sweep) -> bool:
    """Whether a sweep of higher priority has runs that wait for a worker."""
    waiting = TrialRun.objects.filter(trial__sweep__priority__gt=sweep.priority, run__state=RunState.QUEUED)
    return waiting.filter(trial__sweep__state=SweepState.RUNNING).exists()


def _fill(sweep: Sweep, spec: SweepSpec, memory: _Lazy) -> None:
    """Start trials while there is room; a trial starts with all its seeds, of which some may wait for a worker."""
    for _ in range(STARTS_A_ROUND):
        in_flight = TrialRun.objects.filter(trial__sweep=sweep, run__isnull=False).exclude(
            run__state__in=["finished", "stopped", "failed"]
        )
        if in_flight.count() >= spec.concurrency:
            return
        if not _start_seed(sweep, spec, memory) and not _start_trial(sweep, spec, memory):
            if not sweep.trials.filter(state=TrialState.RUNNING).exists():
                end_sweep(None, sweep, "", state=SweepState.DONE)
            return


def _start_seed(sweep: Sweep, spec: SweepSpec, memory: _Lazy) -> bool:
    """Start the next seed of a trial that is under way."""
    for trial in sweep.trials.filter(state=TrialState.RUNNING).order_by("number").prefetch_related("runs"):
        started = {one.seed for one in trial.runs.all()}
        for seed in spec.seeds:
            if seed not in started:
                _launch(sweep, spec, memory, trial, seed)
                return True
    return False


def _start_trial(sweep: Sweep, spec: SweepSpec, memory: _Lazy) -> bool:
    """Ask for the next point and start it; one that cannot run counts as failed."""
    known = list(sweep.trials.values_list("space_version", "optuna_number", "point"))
    wanted = None
    if spec.sampler == "grid":
        wanted = next(_untried(spec, sweep, [point for _, _, point in known]), None)
        if wanted is None:
            return False
    elif len(known) >= spec.trials:
        return False
    taken = {number for version, number, _ in known if version == sweep.space_version}
    number, point = memory.get().ask(taken, wanted)
    Trial.objects.create(
        sweep=sweep,
        number=len(known),
        point=point,
        space_version=sweep.space_version,
        optuna_number=number,
    )
    return _start_seed(sweep, spec, memory)


def _untried(spec: SweepSpec, sweep: Sweep, tried: list[Point]) -> Iterator[Point]:
    for point in spec.grid():
        if point not in tried:
            if spec.leave_out_illegal:
                try:
                    legal_config(spec, point, sweep.created_by)
                except ConfigError:
                    continue
            yield point


def _launch(sweep: Sweep, spec: SweepSpec, memory: _Lazy, trial: Trial, seed: int) -> None:
    name = f"{spec.name}: {told(trial.point)}" + (f", seed {seed}" if len(spec.seeds) > 1 else "")
    try:
        config = legal_config(spec, trial.point, sweep.created_by, seed=seed, name=name[:200])
        run = launch_run(sweep.created_by, sweep.project, config)
    except ConfigError as error:
        if trial.space_version == sweep.space_version:
            memory.get().fail(trial.optuna_number)
        _end(trial, TrialState.FAILED, f"cannot run: {error}")
        return
    TrialRun.objects.create(trial=trial, seed=seed, run=run)


def _fingerprint(sweep: Sweep) -> tuple[object, ...]:
    trials = sweep.trials.order_by("number").values_list("number", "state", "runs__run", "runs__retries")
    return sweep.state, sweep.state_reason, tuple(trials)
