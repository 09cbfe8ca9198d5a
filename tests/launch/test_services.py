"""What people ask of a run, and what the holder of its lease may write."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from rlviewer.accounts.models import AuditEvent, Project, User
from rlviewer.launch import leases, services, supervise, sweeper, tasks, worker
from rlviewer.launch.models import Lease
from rlviewer.launch.reasons import Ending
from rlviewer.launch.reports import finish_attempt, record_start, record_status
from rlviewer.launch.status import TrainerStatus
from rlviewer.outbox.models import Announcement
from rlviewer.outbox.services import announce_run
from rlviewer.runs.models import Attempt, Checkpoint, Run
from rlviewer.runs.queries.run import run_header
from tests.factories import make_run
from training.config import ConfigError, RunConfig

pytestmark = pytest.mark.django_db

HOST = "here"


@pytest.fixture(autouse=True)
def hints(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Attempts that Celery was told of; the broker itself is tested in test_worker.py."""
    sent: list[int] = []
    monkeypatch.setattr(services, "hint_workers", lambda attempt_id, queue: sent.append(attempt_id))
    return sent


@pytest.fixture
def run(alice: User, project: Project) -> Run:
    return services.launch_run(alice, project, RunConfig(name="first", steps=20))


def attempt_of(run: Run) -> Attempt:
    run.refresh_from_db()
    return run.attempts.get(number=run.current_attempt)


def started(run: Run) -> tuple[Attempt, int]:
    """A running attempt of `run` with its fence."""
    attempt = attempt_of(run)
    fence = leases.acquire(attempt.pk, "here:1:b:r", 60)
    assert fence is not None
    assert record_start(attempt.pk, fence, host=HOST, pid=4711)
    assert record_status(attempt.pk, fence, trainer(state="running", step=3), host=HOST)
    run.refresh_from_db()
    return attempt, fence


def trainer(**extra: Any) -> TrainerStatus:
    return TrainerStatus(**{"state": "running", "step": 3, "steps": 20, "pid": 4711, **extra})


def checkpoint(step: int) -> dict[str, Any]:
    return {"step": step, "size_bytes": 10, "sha256": "ab"}


def test_launch_fills_the_run_from_its_configuration(
    run: Run, alice: User, hints: list[int], django_capture_on_commit_callbacks: Any
) -> None:
    assert (run.state, run.algorithm, run.task, run.steps_planned) == ("queued", "grpo", "addition", 20)
    assert RunConfig.from_toml(run.config_toml) == RunConfig(name="first", steps=20)
    assert run.repeat_group == RunConfig(name="other", seed=5, steps=20).repeat_digest()
    assert run.plugins["H6"]
    assert attempt_of(run).lease.holder == ""
    assert AuditEvent.objects.get().actor == alice
    assert set(Announcement.objects.values_list("topic", flat=True)) == {f"run:{run.id}", f"project:{run.project_id}"}
    with django_capture_on_commit_callbacks(execute=True):
        second = services.launch_run(alice, run.project, RunConfig())
        assert hints == []  # nothing is told before the commit
    assert hints == [attempt_of(second).pk]


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"algorithm": "grop"}, "algorithm"),
        ({"sampling": {"group_size": 1}}, "sampling.group_size"),
        ({"task": {"params": {"digits": float("nan")}}}, "task.params"),
        ({"task": {"params": {"a\0b": 1}}}, "task.params"),
        ({"name": "x\0y"}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": "half \ud800"}, "name"),
    ],
)
def test_a_configuration_that_cannot_run_is_refused_by_key_and_leaves_nothing(
    alice: User, project: Project, raw: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        services.launch_run(alice, project, RunConfig.from_dict(raw))
    assert caught.value.key.startswith(key)
    assert not Run.objects.exists()


def test_incident_J1_an_attempt_is_leased_once_and_a_stale_fence_writes_nothing(run: Run) -> None:
    attempt, fence = started(run)
    assert leases.acquire(attempt.pk, "there:2:b:r", 60) is None
    for stale in (fence - 1, fence + 1):
        assert not leases.heartbeat(attempt.pk, stale, 60)
        assert not record_start(attempt.pk, stale, host="there", pid=1)
        assert not record_status(attempt.pk, stale, trainer(state="paused", checkpoints=[checkpoint(2)]), host=HOST)
        assert finish_attempt(attempt.pk, stale, Ending(code=1), trainer(), host=HOST) is None
    run.refresh_from_db()
    attempt.refresh_from_db()
    assert (run.state, attempt.state, attempt.host, attempt.pid) == ("running", "running", HOST, 4711)
    assert not Checkpoint.objects.exists()


def test_after_its_end_an_attempt_takes_no_more_reports(run: Run) -> None:
    attempt, fence = started(run)
    assert finish_attempt(attempt.pk, fence, Ending(code=0), trainer(state="finished"), host=HOST)
    assert not record_status(attempt.pk, fence, trainer(), host=HOST)
    assert leases.acquire(attempt.pk, "there:2:b:r", 60) is None
    run.refresh_from_db()
    assert run.state == "finished"


def test_a_queued_run_stops_at_once_and_cannot_start_any_more(run: Run, alice: User) -> None:
    services.stop_run(alice, run)
    run.refresh_from_db()
    assert (run.state, run.state_reason) == ("stopped", "stopped by alice before it started")
    assert leases.acquire(attempt_of(run).pk, "here:1:b:r", 60) is None
    with pytest.raises(services.RunStateError):
        services.stop_run(alice, run)


def test_a_run_that_is_stopping_does_not_show_as_running_again(run: Run, alice: User) -> None:
    attempt, fence = started(run)
    services.stop_run(alice, run)
    record_status(attempt.pk, fence, trainer(), host=HOST)
    run.refresh_from_db()
    assert (run.state, run.wanted) == ("stopping", "stop")
    finish_attempt(attempt.pk, fence, Ending(code=3), trainer(state="stopped"), host=HOST)
    run.refresh_from_db()
    assert (run.state, run.state_reason) == ("stopped", "stopped by alice at step 3")


def test_pause_and_continue_change_what_is_wanted_and_the_trainer_says_when(run: Run, alice: User) -> None:
    with pytest.raises(services.RunStateError):
        services.continue_run(alice, run)
    attempt, fence = started(run)
    services.pause_run(alice, run)
    run.refresh_from_db()
    assert (run.wanted, run.state) == ("pause", "running")
    record_status(attempt.pk, fence, trainer(state="paused"), host=HOST)
    run.refresh_from_db()
    assert run.state == "paused"
    services.continue_run(alice, run)
    record_status(attempt.pk, fence, trainer(), host=HOST)
    run.refresh_from_db()
    assert (run.wanted, run.state) == ("run", "running")


def test_incident_J2_killed_runs_resume_from_the_checkpoint_and_fail_after_three_deaths(
    run: Run, hints: list[int], django_capture_on_commit_callbacks: Any
) -> None:
    for number in (1, 2, 3):
        attempt, fence = started(run)
        assert attempt.number == number
        with django_capture_on_commit_callbacks(execute=True):
            finish_attempt(attempt.pk, fence, Ending(signal=9), trainer(last_checkpoint=2), host=HOST)
        run.refresh_from_db()
        reason = "killed by signal 9, probably out of memory, at step 3"
        if number < 3:
            assert run.state == "queued"
            assert run.state_reason == f"{reason}; resumed as attempt {number + 1} from checkpoint 2"
            assert hints[-1] == attempt_of(run).pk
        else:
            assert (run.state, run.state_reason) == ("failed", f"{reason}; given up after 3 deaths")
    assert run.attempts.count() == 3


def test_a_worker_that_dies_again_and_again_is_excused_while_the_run_gets_on(run: Run) -> None:
    for number in range(1, 6):
        attempt, fence = started(run)
        status = trainer(resumed_from_step=number - 1, last_checkpoint=number)
        finish_attempt(attempt.pk, fence, Ending(worker_died="its worker was killed"), status, host=HOST)
    assert attempt_of(run).number == 6
    assert attempt_of(run).deaths == 0


def test_a_shut_down_worker_hands_the_run_on(run: Run) -> None:
    attempt, fence = started(run)
    finish_attempt(
        attempt.pk,
        fence,
        Ending(code=3, interruption="the worker was shut down"),
        trainer(last_checkpoint=3),
        host=HOST,
    )
    run.refresh_from_db()
    assert run.state == "queued"
    assert run.state_reason == "the worker was shut down at step 3; resumed as attempt 2 from checkpoint 3"


def test_an_exception_ends_the_run_at_once(run: Run) -> None:
    attempt, fence = started(run)
    finish_attempt(attempt.pk, fence, Ending(code=1), trainer(), host=HOST)
    run.refresh_from_db()
    assert (run.state, run.attempts.count()) == ("failed", 1)


def test_resume_makes_a_new_attempt_and_takes_the_old_holders_voice(run: Run, alice: User) -> None:
    attempt, fence = started(run)
    with pytest.raises(services.RunStateError):
        services.resume_run(alice, run)
    # Its host fell silent and the lease ran out; the holder keeps its fence until somebody resumes.
    Attempt.objects.filter(pk=attempt.pk).update(state="failed")
    Run.objects.filter(pk=run.pk).update(state="failed")
    second = services.resume_run(alice, run)
    assert not leases.heartbeat(attempt.pk, fence, 60)
    assert finish_attempt(attempt.pk, fence, Ending(code=0), trainer(state="finished"), host=HOST) is None
    run.refresh_from_db()
    assert (run.state, run.current_attempt, second.number, second.state) == ("queued", 2, 2, "queued")


def given_up(run: Run) -> tuple[Attempt, int]:
    """An attempt whose host was not heard of for a whole lease."""
    attempt, fence = started(run)
    Lease.objects.filter(attempt=attempt).update(expires_at=timezone.now() - timedelta(days=3))
    sweeper.expire_leases()
    run.refresh_from_db()
    assert (run.state, run.state_reason[:15]) == ("failed", "not seen since ")
    return attempt, fence


LOST = Ending(worker_died="its worker was killed, or this host was restarted,")


def test_a_run_that_was_given_up_waits_for_a_person_when_its_host_comes_back(run: Run, alice: User) -> None:
    attempt, fence = given_up(run)
    ended_at, given_up_as = run.ended_at, run.state_reason
    finish_attempt(attempt.pk, fence, LOST, trainer(last_checkpoint=2), host=HOST)
    run.refresh_from_db()
    assert (run.state, run.attempts.count(), run.ended_at) == ("failed", 1, ended_at)
    reason = "its worker was killed, or this host was restarted, at step 3; not resumed by itself: "
    assert run.state_reason == reason + given_up_as
    assert services.resume_run(alice, run).number == 2


def test_a_run_that_was_given_up_is_corrected_when_its_trainer_had_finished(run: Run) -> None:
    attempt, fence = given_up(run)
    finish_attempt(attempt.pk, fence, LOST, trainer(state="finished"), host=HOST)
    run.refresh_from_db()
    assert (run.state, run.state_reason) == ("finished", "")


def test_a_run_that_was_given_up_and_goes_on_is_resumed_after_the_next_accident(run: Run) -> None:
    attempt, fence = given_up(run)
    assert leases.heartbeat(attempt.pk, fence, 60)
    assert record_status(attempt.pk, fence, trainer(), host=HOST)
    finish_attempt(attempt.pk, fence, LOST, trainer(), host=HOST)
    run.refresh_from_db()
    assert (run.state, run.current_attempt) == ("queued", 2)


def test_a_run_that_failed_while_paused_trains_on_when_a_person_resumes_it(run: Run, alice: User) -> None:
    attempt, fence = started(run)
    services.pause_run(alice, run)
    finish_attempt(attempt.pk, fence, Ending(code=1), trainer(), host=HOST)
    services.resume_run(alice, run)
    run.refresh_from_db()
    assert (run.state, run.wanted) == ("queued", "run")


def test_a_run_that_was_not_trained_here_cannot_be_resumed(run: Run, alice: User, project: Project) -> None:
    """Imported: its checkpoints are elsewhere, and its configuration is a stranger's."""
    imported = make_run(project, state="stopped", config=run.config, config_toml=run.config_toml)
    with pytest.raises(services.RunStateError, match="not trained here"):
        services.resume_run(alice, imported)
    assert not run_header(alice, imported).can_resume
    services.stop_run(alice, run)
    run.refresh_from_db()
    assert run_header(alice, run).can_resume


def test_a_run_that_its_command_never_began_is_ended(project: Project) -> None:
    fresh, killed = (services.launch_run(None, project, RunConfig(), queue=services.FOREGROUND) for _ in range(2))
    Attempt.objects.filter(run=killed).update(created_at=timezone.now() - timedelta(minutes=2))
    sweeper.end_abandoned()
    fresh.refresh_from_db()
    killed.refresh_from_db()
    assert (fresh.state, killed.state) == ("queued", "stopped")
    assert killed.state_reason == "the command that queued it ended before it started"
    assert killed.attempts.get().state == "stopped"


def test_a_chore_that_fails_keeps_no_other_from_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def fails(**_: Any) -> None:
        raise KeyError("step")

    monkeypatch.setattr(sweeper.repairs, "mend", fails)
    monkeypatch.setattr(sweeper, "expire_leases", lambda: done.append("leases"))
    monkeypatch.setattr(sweeper, "announce_queued", lambda queues: done.append("queued"))
    monkeypatch.setattr(sweeper.connection, "close", lambda: None)
    sweeper.Sweeper(["cpu"]).sweep()
    assert done == ["leases", "queued"]


@pytest.mark.django_db(transaction=True)
def test_a_sweep_holds_no_topic_while_it_waits_for_a_run(
    alice: User, project: Project, settings: Any, tmp_path: Any
) -> None:
    """Whoever stores rollouts locks the run first and its topics last: the other order would be a deadlock."""
    settings.HOME = tmp_path
    silent, overdue = (started(services.launch_run(alice, project, RunConfig())) for _ in range(2))
    long_ago = timezone.now() - timedelta(hours=1)
    Lease.objects.filter(attempt=silent[0]).update(heartbeat_at=long_ago)
    Lease.objects.filter(attempt=overdue[0]).update(expires_at=long_ago)
    has_run, errors = threading.Event(), []

    def store() -> None:
        try:
            with transaction.atomic():
                Run.objects.select_for_update().get(pk=overdue[0].run_id)
                has_run.set()
                time.sleep(1)
                announce_run(overdue[0].run_id, project.pk, "step-stored")
        except OperationalError as error:
            errors.append(error)
        finally:
            connection.close()

    storing = threading.Thread(target=store)
    storing.start()
    has_run.wait()
    sweeper.Sweeper(["cpu"]).sweep()
    storing.join()
    assert errors == []
    states = Run.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == ["silent", "failed"]


def test_a_worker_on_its_way_out_takes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "interrupted", threading.Event())
    worker.interrupted.set()
    tasks.run_attempt(attempt_of(run).pk)
    attempt = attempt_of(run)
    assert (attempt.number, attempt.state) == (1, "queued")


def test_a_lease_is_looked_after_from_before_it_is_taken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweeper beside it would end what nobody looks after."""
    seen = []

    def taken(attempt_id: int, holder: str, seconds: float) -> None:
        seen.append(holder in supervise.ACTIVE)

    monkeypatch.setattr(leases, "acquire", taken)
    assert supervise.run_attempt(attempt_of(run).pk, interrupted=threading.Event()) is None
    assert (seen, supervise.ACTIVE) == ([True], set())


def test_checkpoint_rows_follow_what_lies_on_the_hosts_disk(run: Run) -> None:
    attempt, fence = started(run)
    for steps in ([10], [10, 20], [20, 30]):
        record_status(attempt.pk, fence, trainer(checkpoints=[checkpoint(s) for s in steps]), host=HOST)
    rows = Checkpoint.objects.order_by("step").values_list("step", "is_deleted")
    assert list(rows) == [(10, True), (20, False), (30, False)]


def test_an_attempt_that_dies_before_it_looked_forgets_no_checkpoint(run: Run) -> None:
    attempt, fence = started(run)
    finish_attempt(
        attempt.pk, fence, Ending(signal=9), trainer(checkpoints=[checkpoint(2)], last_checkpoint=2), host=HOST
    )
    attempt, fence = started(run)
    finish_attempt(attempt.pk, fence, Ending(signal=9), TrainerStatus(), host=HOST)
    run.refresh_from_db()
    assert run.state_reason.endswith("while starting; resumed as attempt 3 from checkpoint 2")
    assert list(Checkpoint.objects.values_list("attempt__number", "step", "is_deleted")) == [(1, 2, False)]


def test_a_broker_that_is_away_does_not_fail_a_launch(
    alice: User, project: Project, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    def away(attempt_id: int, queue: str) -> None:
        raise ConnectionError("no broker")

    monkeypatch.setattr(services, "hint_workers", away)
    with django_capture_on_commit_callbacks(execute=True):
        run = services.launch_run(alice, project, RunConfig())
    assert run.state == "queued"
