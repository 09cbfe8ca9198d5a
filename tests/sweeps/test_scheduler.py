"""The scheduler on a real database, with Optuna in it: what it starts, settles, retries and ends, and what a kill leaves."""

import threading
from typing import Any

import pytest
from django.db import connection

from rlviewer.accounts.models import AuditEvent, Member, Project, Role, User
from rlviewer.runs.models import Run
from rlviewer.sweeps import memory, scheduler
from rlviewer.sweeps.memory import Memory
from rlviewer.sweeps.models import Sweep, Trial, TrialRun
from rlviewer.sweeps.scheduler import advance, advance_all
from rlviewer.sweeps.services import edit_sweep, launch_sweep, pause_sweep, resume_sweep, stop_sweep
from tests.sweeps.conftest import LEARNING_RATE, make_spec, train

pytestmark = pytest.mark.django_db
RANGE = {LEARNING_RATE: {"low": 1e-6, "high": 1e-3, "log": True}}


def launch(user: User, project: Project, **changes: Any) -> Sweep:
    return launch_sweep(user, project, make_spec(**changes))


def newest() -> Run:
    return Run.objects.order_by("-pk")[0]


def state(sweep: Sweep) -> str:
    sweep.refresh_from_db()
    return sweep.state


def study(sweep: Sweep) -> Any:
    sweep.refresh_from_db()
    return Memory(str(sweep.uid), sweep.space_version, sweep.parsed, most_steps=4).study


def test_a_grid_is_tried_point_by_point_and_done(alice: User, project: Project) -> None:
    sweep = launch(alice, project)
    advance_all()
    advance_all()
    run = Run.objects.get()
    assert run.config["optimizer"]["learning_rate"] == 1e-5 and run.created_by == alice
    train(run, 0.1, 0.3)
    advance_all()
    assert Run.objects.count() == 2
    train(newest(), 0.5, 0.7)
    advance_all()
    assert state(sweep) == "done"
    assert [trial.value for trial in sweep.trials.order_by("number")] == [pytest.approx(0.2), pytest.approx(0.6)]
    assert study(sweep).best_params == {LEARNING_RATE: "0.0001"}


def test_concurrency_and_seeds(alice: User, project: Project) -> None:
    sweep = launch(alice, project, seeds=[0, 1], concurrency=3)
    advance_all()
    assert list(TrialRun.objects.order_by("pk").values_list("trial__number", "seed")) == [(0, 0), (0, 1), (1, 0)]
    for run, reward in zip(Run.objects.order_by("pk"), (0.2, 0.4, 0.5), strict=True):
        train(run, reward)
    advance_all()
    assert sweep.trials.get(number=0).value == pytest.approx(0.3)
    assert sweep.trials.get(number=1).state == "running"


@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes"])
def test_a_sampler_stays_in_its_range_and_stops_after_its_trials(sampler: str, alice: User, project: Project) -> None:
    sweep = launch(
        alice,
        project,
        sampler=sampler,
        trials=3,
        parameters=RANGE | {"sampling.temperature": {"low": 0.5, "high": 1.5}},
    )
    for _ in range(4):
        advance_all()
        for run in Run.objects.filter(state="queued"):
            train(run, run.config["optimizer"]["learning_rate"] * 1000)
    assert state(sweep) == "done" and sweep.trials.count() == 3
    assert all(1e-6 <= trial.point[LEARNING_RATE] <= 1e-3 for trial in sweep.trials.all())
    assert len(study(sweep).trials) == 3


def test_a_failed_run_is_resumed_then_its_trial_is_marked(alice: User, project: Project) -> None:
    sweep = launch(alice, project, retries=1)
    advance_all()
    run = Run.objects.get()
    from rlviewer.launch.models import Lease

    assert Lease.objects.filter(attempt__run=run).exists()
    train(run, 0.1, state="failed")
    advance_all()
    run.refresh_from_db()
    assert run.state == "queued" and run.current_attempt == 2 and Run.objects.count() == 1
    train(run, 0.2, state="failed")
    advance_all()
    trial = sweep.trials.get(number=0)
    assert trial.state == "failed" and "seed 0: the run failed" in trial.reason
    assert Run.objects.count() == 2, "the sweep goes on with its next point"


def test_a_deleted_run_is_marked_not_lost(alice: User, project: Project) -> None:
    sweep = launch(alice, project)
    advance_all()
    TrialRun.objects.update(run=None)
    advance_all()
    assert sweep.trials.get(number=0).reason == "seed 0: its run was deleted"


def test_what_falls_behind_the_median_is_stopped(alice: User, project: Project) -> None:
    choices = {LEARNING_RATE: {"choices": [n * 1e-5 for n in range(1, 8)]}}
    sweep = launch(alice, project, pruner="median", concurrency=7, parameters=choices)
    advance_all()
    *others, last = Run.objects.order_by("pk")
    for run in others:
        train(run, 0.5, 0.6)
    train(last, 0.1, 0.1, state="running")
    advance_all()
    last.refresh_from_db()
    trial = sweep.trials.get(runs__run=last)
    assert trial.state == "pruned" and trial.reason == "pruned at step 1 with 0.1"
    assert (last.wanted, last.state, last.state_reason) == ("stop", "stopping", trial.reason)


@pytest.mark.parametrize(("budget", "words"), [({"max_steps": 2}, "2 steps"), ({"max_tokens": 100}, "100 tokens")])
def test_a_budget_stops_it_with_a_reason(budget: dict[str, Any], words: str, alice: User, project: Project) -> None:
    sweep = launch(alice, project, **budget)
    advance_all()
    train(Run.objects.get(), 0.1, 0.2, state="running")
    advance_all()
    assert state(sweep) == "stopped" and sweep.state_reason == f"its budget of {words} is used up"
    assert Run.objects.get().wanted == "stop"


def test_pause_resume_stop_and_append(alice: User, project: Project) -> None:
    sweep = launch(alice, project)
    pause_sweep(alice, sweep)
    advance_all()
    assert not Run.objects.exists()
    resume_sweep(alice, sweep)
    for reward in (0.1, 0.2):
        advance_all()
        train(newest(), reward)
    advance_all()
    assert state(sweep) == "done"
    edit_sweep(alice, sweep, make_spec(parameters={LEARNING_RATE: {"choices": [1e-5, 1e-4, 3e-4]}}))
    advance_all()
    assert Run.objects.count() == 3 and newest().config["optimizer"]["learning_rate"] == 3e-4
    assert sorted(trial.value for trial in study(sweep).trials if trial.value is not None) == [0.1, 0.2]
    stop_sweep(alice, sweep)
    assert newest().state == "stopped" and state(sweep) == "stopped"
    advance_all()
    assert sweep.trials.get(number=2).state == "failed"
    verbs = set(AuditEvent.objects.values_list("verb", flat=True))
    assert {"launch-sweep", "pause-sweep", "resume-sweep", "edit-sweep", "stop-sweep", "finish-sweep"} <= verbs


def test_a_lower_priority_waits_while_a_higher_one_has_runs_queued(alice: User, project: Project) -> None:
    low, high = launch(alice, project, priority=0), launch(alice, project, priority=5)
    advance_all()
    assert (low.trials.count(), high.trials.count()) == (0, 1)
    Run.objects.update(state="running")
    advance_all()
    assert low.trials.count() == 1


def test_who_may_no_longer_launch_ends_the_sweep(bob: User, project: Project) -> None:
    sweep = launch(bob, project)
    Member.objects.filter(user=bob).update(role=Role.VIEWER)
    advance_all()
    assert state(sweep) == "stopped" and "bob" in sweep.state_reason and not Run.objects.exists()


@pytest.mark.parametrize("where", ["launch_run", "announce_sweep"])
def test_a_worker_killed_between_steps_leaves_nothing_twice(
    where: str, alice: User, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna has chosen already; the transaction of ours is lost with the worker."""
    sweep = launch(alice, project, sampler="random", trials=2, parameters=RANGE)

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(scheduler, where, die)
        advance(sweep.pk)
    assert not Trial.objects.exists() and not Run.objects.exists()
    (orphan,) = study(sweep).trials
    advance(sweep.pk)
    assert Trial.objects.get().point == orphan.params and len(study(sweep).trials) == 1


def test_a_worker_killed_after_telling_optuna_tells_it_again(
    alice: User, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = launch(alice, project)
    advance(sweep.pk)
    train(Run.objects.get(), 0.4)

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(scheduler, "_end", die)
        advance(sweep.pk)
    assert Trial.objects.get().state == "running"
    advance(sweep.pk)
    assert sweep.trials.get(number=0).state == "complete"
    assert [trial.value for trial in study(sweep).trials if trial.value is not None] == [0.4]


@pytest.mark.django_db(transaction=True)
def test_two_workers_at_once_start_each_point_once(alice: User, project: Project) -> None:
    sweep = launch(
        alice, project, concurrency=2, parameters={LEARNING_RATE: {"choices": [n * 1e-5 for n in range(1, 5)]}}
    )
    memory.storage.cache_clear()
    together = threading.Barrier(2)

    def work() -> None:
        try:
            for _ in range(4):
                together.wait(20)
                advance(sweep.pk)
                for run in Run.objects.filter(state="queued"):
                    if Run.objects.filter(pk=run.pk, state="queued").update(state="stopping"):
                        train(run, 0.1)
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    advance(sweep.pk)
    points = [trial.point[LEARNING_RATE] for trial in sweep.trials.all()]
    assert sorted(points) == [n * 1e-5 for n in range(1, 5)]
    assert Run.objects.count() == TrialRun.objects.count() == 4
