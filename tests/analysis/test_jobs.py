"""Jobs from asking to their end, and the vectors that they leave: whoever stops, dies or comes twice."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import numpy as np
import pytest
from django.db import connection
from django.utils import timezone

from rlviewer.accounts.models import Project, User
from rlviewer.analysis import jobs, vectors, worker
from rlviewer.analysis.embedder import Embedder
from rlviewer.analysis.models import EmbeddingJob, JobState, RolloutEmbedding
from rlviewer.analysis.vectors import Embedded
from rlviewer.ingest.services import store_batch
from rlviewer.launch.sweeper import embed_waiting
from rlviewer.runs.models import Rollout, Run
from tests.analysis.conftest import direction, embed
from tests.factories import make_batch, make_project, make_run
from training.sentences import MODEL_KEY

pytestmark = pytest.mark.timeout(240)
HOUR = timedelta(hours=1)


def never() -> threading.Event:
    return threading.Event()


def lose(job: EmbeddingJob) -> None:
    """As a worker does that is killed."""
    EmbeddingJob.objects.filter(pk=job.pk).update(heartbeat_at=timezone.now() - HOUR)


def state_of(job: EmbeddingJob) -> str:
    job.refresh_from_db()
    return job.state


def take() -> EmbeddingJob:
    job = jobs.take()
    assert job is not None
    return job


# ---- asking


def test_asking_twice_is_asking_once_until_it_is_over(alice: User, bob: User, project: Project, run: Run) -> None:
    job = jobs.ask_rollouts(alice, project, run, "correct:no")
    assert jobs.ask_rollouts(bob, project, run, "correct:no") == job
    others = {jobs.ask_rollouts(alice, project, run, ""), jobs.ask_rollouts(alice, project, None, "correct:no")}
    assert len(others | {job}) == 3
    jobs.stop(job)
    assert jobs.ask_rollouts(alice, project, run, "correct:no") != job


def test_a_text_is_read_once_for_its_project(alice: User, project: Project) -> None:
    job = jobs.ask_text(alice, project, "  carries the one ")
    EmbeddingJob.objects.filter(pk=job.pk).update(state=JobState.FINISHED, vector=direction(0), model=MODEL_KEY)
    assert jobs.ask_text(alice, project, "carries the one") == job
    assert jobs.ask_text(alice, make_project("another"), "carries the one") != job


def test_a_text_that_another_model_read_is_read_again(alice: User, project: Project) -> None:
    job = jobs.ask_text(alice, project, "carry")
    EmbeddingJob.objects.filter(pk=job.pk).update(state=JobState.FINISHED, vector=direction(0), model="older@1")
    again = jobs.ask_text(alice, project, "carry")
    assert (again == job, again.state) == (False, JobState.QUEUED)


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 5000, "🙂"])
def test_odd_texts_and_filters_are_kept(alice: User, project: Project, run: Run, text: str) -> None:
    assert jobs.ask_text(alice, project, text) == jobs.known_text(project, text)
    asked = f"'{text[:500]}'"
    job = jobs.ask_rollouts(alice, project, run, asked)
    job.refresh_from_db()
    assert job.filter_text == asked and jobs.newest_job(project, run, asked) == job


# ---- taking


def test_the_oldest_job_is_taken_first_and_by_one_worker(alice: User, project: Project, run: Run) -> None:
    first, second = jobs.ask_rollouts(alice, project, run, ""), jobs.ask_text(alice, project, "carry")
    assert [jobs.take(), jobs.take(), jobs.take()] == [first, second, None]
    assert not jobs.is_waiting()


def test_a_job_whose_worker_was_killed_is_taken_again_and_the_old_one_writes_nothing(
    alice: User, project: Project, run: Run
) -> None:
    jobs.ask_rollouts(alice, project, run, "")
    old = take()
    lose(old)
    assert jobs.is_waiting()
    new = take()
    assert (new, new.fence) == (old, 2)
    assert not jobs.write(old, done=7)
    assert jobs.write(new, done=3)
    new.refresh_from_db()
    assert new.done == 3


def test_a_job_that_ends_every_worker_is_given_up(alice: User, project: Project, run: Run) -> None:
    job = jobs.ask_rollouts(alice, project, run, "")
    for _ in range(jobs.TRIES):
        lose(take())
    assert jobs.take() is None
    assert (state_of(job), job.error) == ("failed", "given up: its worker ended 3 times while it was computed")


def test_an_idle_sweep_starts_nothing(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "start", lambda interrupted: pytest.fail("nothing waits"))
    embed_waiting()


# ---- working, with the model


def test_what_a_filter_finds_is_embedded_once(
    alice: User, project: Project, run: Run, rollouts: list[int], embedder: Embedder
) -> None:
    jobs.ask_rollouts(alice, project, run, "correct:no")
    worker.do(job := take(), embedder, never())
    wrong = Rollout.objects.filter(run_id=run.pk, correct=False)
    assert (state_of(job), job.total, job.done, job.cut) == ("finished", len(wrong), len(wrong), 0)
    assert set(RolloutEmbedding.objects.values_list("pk", "run_id", "model", "is_cut")) == {
        (pk, run.pk, MODEL_KEY, False) for pk in wrong.values_list("pk", flat=True)
    }
    jobs.ask_rollouts(alice, project, None, "")
    worker.do(job := take(), embedder, never())
    assert (state_of(job), job.done) == ("finished", len(rollouts) - len(wrong))
    # What the first four rollouts say is in the order of SAYINGS: two carry, two refuse.
    rows = np.array([np.frombuffer(v, "<f4") for v in vectors.vectors_of(rollouts[:4]).values()])
    near = rows @ rows.T
    assert min(near[0, 2], near[1, 3]) > 0.5 > 0.3 > max(near[0, 1], near[2, 3])


def test_rollouts_that_are_no_text_are_embedded_too(alice: User, project: Project, embedder: Embedder) -> None:
    run = make_run(project)
    odd = [b"", b"\0\0", b"\xff\xfe", b"word " * 200_000]
    store_batch(make_batch(run, groups=1, group_size=4, completion=odd), source="test")
    jobs.ask_rollouts(alice, project, run, "")
    worker.do(job := take(), embedder, never())
    assert (state_of(job), job.done, job.cut) == ("finished", 4, 1)


def test_a_text_to_look_for_gets_its_vector(alice: User, project: Project, embedder: Embedder) -> None:
    jobs.ask_text(alice, project, "carry the one")
    worker.do(job := take(), embedder, never())
    assert (state_of(job), job.model) == ("finished", MODEL_KEY)
    assert np.linalg.norm(np.frombuffer(job.vector, "<f4")) == pytest.approx(1, abs=1e-5)


def between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Work in batches of three, and do something once before the second is stored."""
    store, calls = vectors.store, []

    def storing(embedded: dict[int, Embedded]) -> None:
        store(embedded)
        calls.append(1)
        if len(calls) == 1:
            act()

    monkeypatch.setattr(worker, "ROLLOUTS_AT_ONCE", 3)
    monkeypatch.setattr(vectors, "store", storing)


def test_nothing_is_stored_after_a_stop(
    alice: User, project: Project, run: Run, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs.ask_rollouts(alice, project, run, "")
    between(monkeypatch, lambda: jobs.stop(job))
    worker.do(take(), embedder, never())
    assert (state_of(job), RolloutEmbedding.objects.count()) == ("stopped", 3)


def test_a_worker_that_ends_puts_its_job_back_and_the_next_goes_on(
    alice: User,
    project: Project,
    run: Run,
    rollouts: list[int],
    start_embedder: Callable[[], Embedder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, interrupted = jobs.ask_rollouts(alice, project, run, ""), threading.Event()
    between(monkeypatch, interrupted.set)
    worker.do(take(), start_embedder(), interrupted)
    assert (state_of(job), RolloutEmbedding.objects.count()) == ("queued", 3)
    worker.do(take(), start_embedder(), never())
    assert (state_of(job), job.total) == ("finished", len(rollouts) - 3)
    assert RolloutEmbedding.objects.count() == len(rollouts)


def test_a_killed_process_leaves_whole_batches_and_can_be_asked_again(
    alice: User,
    project: Project,
    run: Run,
    rollouts: list[int],
    start_embedder: Callable[[], Embedder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = jobs.ask_rollouts(alice, project, run, "")
    with Embedder() as embedder:
        between(monkeypatch, lambda: os.kill(embedder.pid, signal.SIGKILL))
        worker.do(take(), embedder, never())
    assert (state_of(job), job.done) == ("failed", 3)
    assert job.error == "the embedding process was killed by signal 9, probably out of memory"
    assert RolloutEmbedding.objects.count() == 3
    again = jobs.ask_rollouts(alice, project, run, "")
    worker.do(take(), start_embedder(), never())
    assert (state_of(again), again.done) == ("finished", len(rollouts) - 3)
    assert RolloutEmbedding.objects.count() == len(rollouts)


# ---- vectors in Postgres


def test_nearest_are_compared_exactly_and_in_order(run: Run, rollouts: list[int]) -> None:
    embed(rollouts[:4], [direction(0), direction(0, 0.9), direction(0, 0.3), direction(5)])
    near = vectors.nearest(Rollout.objects.filter(run_id=run.pk), direction(0), limit=3)
    assert [one.id for one in near] == [rollouts[0], rollouts[2], rollouts[1]]
    assert [one.similarity for one in near] == pytest.approx([1, np.cos(0.3), np.cos(0.9)], abs=1e-6)


def test_vectors_come_back_bit_for_bit_and_another_models_are_replaced(rollouts: list[int]) -> None:
    vector = np.random.default_rng(1).normal(size=384).astype("<f4").tobytes()
    embed([rollouts[0]], [vector])
    embed([rollouts[0]], [direction(3)])
    assert vectors.vectors_of(rollouts) == {rollouts[0]: vector}
    RolloutEmbedding.objects.update(model="older@1")
    assert vectors.vectors_of(rollouts) == {} and vectors.embedded_ids(rollouts) == set()
    embed([rollouts[0]], [direction(3)])
    assert vectors.vectors_of(rollouts) == {rollouts[0]: direction(3)}


def test_a_rollout_that_is_deleted_meanwhile_is_left_out(rollouts: list[int]) -> None:
    Rollout.objects.filter(pk=rollouts[0]).delete()
    embed(rollouts[:2], [direction(0), direction(1)])
    assert set(vectors.vectors_of(rollouts)) == {rollouts[1]}


def test_a_database_that_gets_the_extension_later_is_made_ready_when_somebody_asks(rollouts: list[int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE analysis_rolloutembedding DROP COLUMN vector")  # so it is without the extension
    assert not vectors.is_ready()
    assert vectors.ensure() and vectors.is_ready() and vectors.ensure()
    embed(rollouts[:1], [direction(0)])
    assert vectors.embedded_ids(rollouts) == {rollouts[0]}


@pytest.fixture
def plain_database(database_url: str, transactional_db: None) -> Iterator[str]:
    """The address of an empty database that lacks the extension, whose owner may not create it."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE without_vectors TEMPLATE template0")
        yield database_url.replace(f"/{connection.settings_dict['NAME']}?", "/without_vectors?")
        cursor.execute("DROP DATABASE without_vectors (FORCE)")


def test_a_database_without_the_extension_migrates_and_says_what_it_needs(plain_database: str) -> None:
    script = "from rlviewer.analysis import vectors; print(vectors.is_ready(), vectors.ensure())"
    for command in (["migrate", "analysis"], ["shell", "--no-imports", "--command", script]):
        answer = subprocess.run(
            [sys.executable, "manage.py", *command],
            env={**os.environ, "DATABASE_URL": plain_database},
            capture_output=True,
            text=True,
        )
        assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == ["False", "False"]
