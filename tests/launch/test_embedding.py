"""A real worker embeds what somebody asked for, beside a training; killed in the midst, it leaves its job to the next."""

import os
import signal
import time
from datetime import timedelta

import psutil
import pytest
from django.utils import timezone

from rlviewer.accounts.models import User
from rlviewer.analysis import jobs
from rlviewer.analysis.models import EmbeddingJob, RolloutEmbedding
from rlviewer.ingest.services import store_batch
from rlviewer.launch.services import stop_run
from rlviewer.search.services import index_pending
from tests.factories import make_batch, make_run
from tests.launch.conftest import Workers, wait_until

pytestmark = pytest.mark.timeout(240)


def process_of(worker: psutil.Process) -> psutil.Process | None:
    return next((child for child in worker.children() if "training.embed" in child.cmdline()), None)


def test_a_killed_worker_leaves_its_job_to_the_next_also_while_that_trains(workers: Workers) -> None:
    alice, run = User.objects.get(username="alice"), make_run(workers.project, state="finished")
    texts = [f"step {row}: carry the one and add. ".encode() * 10 for row in range(96)]
    store_batch(make_batch(run, groups=12, group_size=8, completion=texts), source="test")
    index_pending()
    job = jobs.ask_rollouts(alice, workers.project, run, "")

    def done() -> int:
        job.refresh_from_db()
        return job.done

    first = psutil.Process(workers.start().pid)
    wait_until(lambda: done() > 0, 120, "the first batch", workers.log)
    child = process_of(first)
    assert child is not None
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 60, "the child to be gone")
    kept = RolloutEmbedding.objects.count()
    assert 0 < kept == done() < 96
    # Nobody takes it before it counts as lost; here that time has passed.
    EmbeddingJob.objects.update(heartbeat_at=timezone.now() - timedelta(seconds=jobs.LOST_SECONDS + 1))
    training = workers.launch("step_seconds=0.1", steps=5000)
    second = psutil.Process(workers.start().pid)
    workers.wait_for_step(training, 1)
    wait_until(lambda: done() == 96 - kept and job.state == "finished", 120, "the rest", workers.log)
    assert (RolloutEmbedding.objects.count(), job.fence) == (96, 2)
    training.refresh_from_db()
    assert training.state == "running"
    stop_run(alice, training)
    workers.wait_for(training, "stopped")
    # The process stays warm for a while, and goes with its worker.
    warm = process_of(second)
    assert warm is not None
    began = time.monotonic()
    second.terminate()
    second.wait(20)
    wait_until(lambda: not warm.is_running(), 10, "the process to be gone")
    assert time.monotonic() - began < 20
