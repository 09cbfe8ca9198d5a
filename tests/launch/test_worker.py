"""Real workers train real child processes; what goes wrong around them costs nothing."""

import contextlib
import json
import os
import signal
import threading
import time
from typing import Any

import psutil
import pytest
import redis

from rlviewer.accounts.models import User
from rlviewer.launch import sweeper
from rlviewer.launch.process import RunFolder, TrainerRecord
from rlviewer.launch.services import continue_run, hint_workers, pause_run, resume_run, stop_run
from rlviewer.launch.supervise import KILL_SECONDS
from rlviewer.launch.worker import DEAF_EXIT_CODE
from rlviewer.runs.models import Checkpoint, Rollout, Run, Step
from tests.launch.conftest import Broker, Workers, wait_until

pytestmark = pytest.mark.timeout(120)


def stored_steps(run: Run) -> list[int]:
    steps = Step.objects.filter(run=run, is_current=True, split="train")
    return list(steps.order_by("index").values_list("index", flat=True))


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_launched_run_is_trained_stored_and_finished(workers: Workers) -> None:
    run = workers.launch(steps=5)
    workers.start()
    workers.wait_for(run, "finished")
    assert stored_steps(run) == [0, 1, 2, 3, 4]
    assert Rollout.objects.filter(run_id=run.pk).count() == run.rollout_count == 10
    attempt = run.attempts.get()
    assert (attempt.state, attempt.exit_code, attempt.lease.holder) == ("finished", 0, "")
    assert run.started_at < run.ended_at
    assert Checkpoint.objects.filter(run=run, is_deleted=False).count() == 5
    folder = RunFolder(str(run.uid), 1)
    assert not any((folder.root / "spool").iterdir())
    assert not TrainerRecord.all()
    # The trainer sees nothing that opens our stores.
    seen = set(json.loads(folder.status.read_text())["environment"])
    assert not {"DATABASE_URL", "REDIS_URL", "RLVIEWER_SECRET_KEY"} & seen


def test_pause_holds_the_run_and_continue_lets_it_go_on(workers: Workers) -> None:
    run = workers.launch("step_seconds=0.1", steps=60)
    workers.start()
    workers.wait_for_step(run, 2)
    alice = User.objects.get(username="alice")
    pause_run(alice, run)
    workers.wait_for(run, "paused", seconds=30)
    time.sleep(1)
    held = stored_steps(run)
    time.sleep(1)
    assert stored_steps(run) == held
    continue_run(alice, run)
    workers.wait_for(run, "finished")
    assert stored_steps(run) == list(range(60))
    assert run.attempts.count() == 1


@pytest.mark.parametrize("script", ["step_seconds=0.2", "at=3 by=long_step", "at=3 by=freeze"])
def test_incident_J8_stop_ends_the_whole_process_group(workers: Workers, script: str) -> None:
    run = workers.launch(script, steps=500)
    workers.start()
    workers.wait_for_step(run, 2)
    trainer = workers.trainer_of(run)
    stop_run(User.objects.get(username="alice"), run)
    # The promise is 10 s; a machine that is busy with other tests has more.
    assert KILL_SECONDS < 10
    wait_until(lambda: is_gone(trainer.pid), 30, "the trainer to be gone", workers.log)
    workers.wait_for(run, "stopped", seconds=30)
    assert run.state_reason.startswith("stopped by alice at step ")
    assert stored_steps(run) == list(range(run.last_step + 1))


DEATHS = [
    ("at=3 by=exception", "failed", "ValueError: loss is NaN at step 3 (scripted_trainer.py:1)"),
    ("at=3 by=exit:7", "failed", "exited with code 7 at step 3 of 6 without saying why"),
    ("at=3 by=exit:0", "failed", "exited with code 0 at step 3 of 6 without saying why"),
    ("at=3 by=SIGTERM", "stopped", "stopped by a signal from outside (SIGTERM) at step 3"),
    ("at=3 by=SIGINT", "stopped", "stopped by a signal from outside (SIGINT) at step 3"),
    ("at=3 by=SIGKILL times=9", "failed", "killed by signal 9, probably out of memory, at step 3; given up after 3 deaths"),
    ("at=3 by=SIGSEGV times=9", "failed", "killed by signal 11, a segmentation fault in native code, at step 3; given up after 3 deaths"),
]  # fmt: skip


def test_incident_J5_every_death_reaches_its_state_with_a_reason(workers: Workers) -> None:
    runs = [workers.launch(script, steps=6) for script, _, _ in DEATHS]
    workers.start()
    for run, (_, state, reason) in zip(runs, DEATHS, strict=True):
        workers.wait_for(run, state, seconds=60)
        assert (run.state_reason, run.ended_at is not None) == (reason, True)
        assert stored_steps(run) == [0, 1, 2]


def test_incident_J2_a_killed_trainer_goes_on_from_its_checkpoint(workers: Workers) -> None:
    run = workers.launch("at=3 by=SIGKILL times=2", steps=6)
    workers.start()
    workers.wait_for(run, "finished")
    first, second, third = run.attempts.order_by("number")
    assert first.reason == "killed by signal 9, probably out of memory, at step 3"
    assert (first.signal, second.signal, third.exit_code) == (9, 9, 0)
    assert [second.resumed_from_step, third.resumed_from_step] == [3, 3]
    assert (third.deaths, run.state_reason) == (2, "")
    assert stored_steps(run) == [0, 1, 2, 3, 4, 5]
    assert Rollout.objects.filter(run_id=run.pk).count() == 12  # no step was trained twice


@pytest.mark.torture
def test_incident_J5_a_frozen_trainer_is_killed_and_resumed(workers: Workers) -> None:
    run = workers.launch("at=3 by=freeze", steps=6)
    workers.start()
    workers.wait_for(run, "finished", seconds=60)
    first = run.attempts.get(number=1)
    assert first.state == "failed"
    assert first.reason.startswith("frozen at step 3: the process was stopped (SIGSTOP) for 2")
    assert stored_steps(run) == list(range(6))


@pytest.mark.torture
def test_incident_J5_a_deadlocked_trainer_is_noticed_by_its_idle_cpu(workers: Workers) -> None:
    run = workers.launch("at=3 by=deadlock", steps=6)
    workers.start()
    workers.wait_for(run, "finished", seconds=75)
    assert run.attempts.get(number=1).reason.startswith("frozen at step 3: it neither wrote a status nor used the CPU")


def test_incident_J1_however_often_it_is_delivered_an_attempt_is_trained_once(workers: Workers) -> None:
    for _ in range(3):
        workers.start()
    run = workers.launch("step_seconds=0.1", steps=40)
    workers.wait_for_step(run, 2)
    for _ in range(4):
        hint_workers(run.attempts.get().pk, run.queue)
    workers.wait_for(run, "finished")
    # The delivery that is waiting behind the training comes after it.
    wait_until(lambda: workers.log().count("succeeded in") == 5, 20, "every delivery to be done with", workers.log)
    assert len(workers.starts(run)) == run.attempts.count() == 1
    assert stored_steps(run) == list(range(40))


@pytest.mark.torture
@pytest.mark.timeout(400)
def test_incident_J1_past_the_visibility_timeout_the_message_comes_again(workers: Workers) -> None:
    """The timeout is 5 s; Redis' transport looks for overdue messages every 100 s."""
    run = workers.launch("step_seconds=0.5", steps=500)
    for _ in range(3):
        workers.start()
    workers.wait_for(run, "finished", seconds=350)
    assert workers.log().count("received") > 1
    assert len(workers.starts(run)) == run.attempts.count() == 1
    assert stored_steps(run) == list(range(500))


def test_incident_J4_a_flushed_broker_loses_no_launch(workers: Workers) -> None:
    runs = [workers.launch(steps=2) for _ in range(12)]
    workers.broker.client.flushall()
    workers.start()
    workers.start()
    for run in runs:
        workers.wait_for(run, "finished", seconds=60)
        assert len(workers.starts(run)) == 1
        assert stored_steps(run) == [0, 1]


def test_incident_J3_workers_consume_again_after_the_broker_was_away(workers: Workers) -> None:
    workers.start()
    first = workers.wait_for(workers.launch(steps=2), "finished")
    for _ in range(3):
        workers.broker.stop()
        time.sleep(1.5)
        workers.broker.start()
    second = workers.launch(steps=2)
    workers.wait_for(second, "finished", seconds=30)
    assert workers.processes[0].poll() is None
    assert first.attempts.count() == second.attempts.count() == 1


@pytest.mark.torture
@pytest.mark.timeout(150)
def test_incident_J3_a_deaf_worker_ends_to_be_started_again(workers: Workers) -> None:
    """A thief waits in front of it for every message, so it hears nothing though Redis answers."""
    run = workers.launch(steps=2)
    is_caught = threading.Event()
    thief = threading.Thread(target=steal_messages, args=(workers.broker, is_caught), daemon=True)
    workers.broker.client.flushall()
    thief.start()
    deaf = workers.start()
    wait_until(lambda: deaf.poll() is not None, 90, "the deaf worker to end", workers.log)
    assert deaf.returncode == DEAF_EXIT_CODE
    assert not workers.starts(run)
    is_caught.set()
    workers.start()
    workers.wait_for(run, "finished", seconds=60)


def steal_messages(broker: Broker, is_caught: threading.Event) -> None:
    """Redis serves whoever has waited longest, and a worker asks anew every second."""
    client = redis.Redis(unix_socket_path=str(broker.socket), socket_timeout=None)
    with contextlib.suppress(redis.RedisError):
        while not is_caught.is_set():
            client.brpop(["cpu"], timeout=0)


def test_a_broker_that_is_away_stops_no_training(workers: Workers) -> None:
    run = workers.launch("step_seconds=0.2", steps=15)
    workers.start()
    workers.wait_for_step(run, 1)
    workers.broker.stop()
    workers.wait_for(run, "finished")
    assert stored_steps(run) == list(range(15))
    workers.broker.start()


def test_incident_J7_the_worker_holds_no_torch_and_its_trainer_is_no_fork(workers: Workers) -> None:
    run = workers.launch("step_seconds=0.2", steps=100)
    worker = workers.start()
    workers.wait_for_step(run, 1)
    trainer = psutil.Process(workers.trainer_of(run).pid)
    assert "training.run" in trainer.cmdline() or "tests.launch.scripted_trainer" in trainer.cmdline()
    assert os.getpgid(trainer.pid) == trainer.pid != os.getpgid(worker.pid)
    # Libraries that a process has loaded lie in its memory map.
    assert not [path for path in (m.path for m in psutil.Process(worker.pid).memory_maps()) if "torch" in path]
    # A fork would have inherited the sockets to Postgres and Redis.
    inherited = {connection.fd for connection in trainer.net_connections(kind="all")}
    assert not inherited


def test_a_killed_worker_takes_its_trainer_along_and_the_next_goes_on(workers: Workers) -> None:
    run = workers.launch("step_seconds=0.2", steps=30)
    worker = workers.start()
    workers.wait_for_step(run, 3)
    trainer = workers.trainer_of(run)
    worker.kill()
    wait_until(lambda: is_gone(trainer.pid), 30, "the trainer to follow its worker")
    workers.start()
    workers.wait_for(run, "finished", seconds=60)
    first, second = run.attempts.order_by("number")
    assert first.reason.startswith("its worker was killed, or this host was restarted, at step ")
    assert second.resumed_from_step == len(Step.objects.filter(attempt=first))
    assert stored_steps(run) == list(range(30))
    assert Rollout.objects.filter(run_id=run.pk).count() == 60


def test_a_worker_that_is_shut_down_hands_its_run_on(workers: Workers) -> None:
    run = workers.launch("step_seconds=0.2", steps=30)
    worker = workers.start()
    workers.wait_for_step(run, 3)
    worker.terminate()
    assert worker.wait(30) == 0
    run.refresh_from_db()
    assert run.state == "queued"
    assert run.state_reason.startswith("the worker was shut down at step ")
    workers.start()
    workers.wait_for(run, "finished")
    assert [a.deaths for a in run.attempts.order_by("number")] == [0, 0]
    assert Rollout.objects.filter(run_id=run.pk).count() == 60


def test_incident_D17_a_deleted_run_ends_its_trainer_and_the_worker_lives(workers: Workers) -> None:
    run = workers.launch("step_seconds=0.2", steps=500)
    worker = workers.start()
    workers.wait_for_step(run, 1)
    trainer = workers.trainer_of(run)
    Run.objects.get(pk=run.pk).delete()
    wait_until(lambda: is_gone(trainer.pid), 30, "the trainer to be gone", workers.log)
    workers.wait_for(workers.launch(steps=2), "finished")
    assert worker.poll() is None


SHORT_LEASE = {"RLVIEWER_LEASE_SECONDS": "5", "RLVIEWER_SILENT_SECONDS": "2"}


def test_incident_J6_a_silent_run_is_corrected_when_it_is_heard_again(workers: Workers, settings: Any) -> None:
    """Its worker is stopped for longer than the whole lease, while the trainer goes on."""
    settings.SILENT_SECONDS = 2
    run = workers.launch("step_seconds=0.2", steps=80)
    worker = workers.start(**SHORT_LEASE)
    workers.wait_for_step(run, 1)
    worker.send_signal(signal.SIGSTOP)
    time.sleep(4)
    sweeper.mark_silent()
    run.refresh_from_db()
    assert run.state == "silent"
    assert run.state_reason.startswith("not heard from since ")
    time.sleep(2)
    sweeper.expire_leases()
    run.refresh_from_db()
    assert run.state == "failed"
    assert run.state_reason.startswith("not seen since ")
    worker.send_signal(signal.SIGCONT)
    workers.wait_for(run, "running", seconds=30, from_end=True)
    workers.wait_for(run, "finished")
    assert (run.state_reason, run.attempts.count()) == ("", 1)
    assert stored_steps(run) == list(range(80))


@pytest.mark.torture
def test_a_run_resumed_elsewhere_silences_the_holder_that_comes_back(workers: Workers) -> None:
    run = workers.launch("step_seconds=0.3", steps=60)
    worker = workers.start(**SHORT_LEASE)
    workers.wait_for_step(run, 1)
    stale = workers.trainer_of(run)
    worker.send_signal(signal.SIGSTOP)
    workers.start(**SHORT_LEASE)
    workers.wait_for(run, "failed", seconds=30)
    resume_run(User.objects.get(username="alice"), run)
    wait_until(lambda: is_gone(stale.pid), 20, "the old trainer to be ended", workers.log)
    worker.send_signal(signal.SIGCONT)
    workers.wait_for(run, "finished", seconds=60)
    assert run.current_attempt == 2
    assert run.attempts.get(number=1).reason.startswith("not seen since ")
    assert stored_steps(run) == list(range(60))
