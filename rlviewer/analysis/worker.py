"""What a worker does for those who ask: a thread that feeds texts to the model's process and stores what comes back.

It runs beside a training, for whoever asks should not wait hours; the process gives way to it. Every batch is a transaction,
so a worker that is killed leaves whole batches behind, and the job goes on from there with the next worker.
"""

import logging
import threading
import time
from functools import partial

from django.db import InterfaceError, OperationalError, transaction
from django.db.models.functions import Now

from rlviewer.analysis import jobs, vectors
from rlviewer.analysis.embedder import Embedder, EmbedderError
from rlviewer.analysis.models import EmbeddingJob, JobState
from rlviewer.analysis.selection import JOB_SECONDS, select
from rlviewer.analysis.texts import completions_of
from rlviewer.lib.beside import Beside
from rlviewer.lib.text import text_from_bytes
from rlviewer.search.browse import Scope, Search
from rlviewer.search.language import FilterError
from training.sentences import MAX_CHARS, MODEL_KEY

log = logging.getLogger(__name__)

# A few seconds of work, so that progress moves and little is lost.
ROLLOUTS_AT_ONCE = 32
# The process stays this long after a job: loading takes longer than to answer the next question.
WARM_SECONDS = 30.0
LOOK_SECONDS = 0.5
BEAT_SECONDS = 2.0


class _NoLongerOurs(Exception):
    """The job was stopped or is another worker's, or this worker ends."""


def work(interrupted: threading.Event, *, warm_seconds: float = WARM_SECONDS) -> None:
    """Work on jobs until none has come for `warm_seconds`."""
    job = jobs.take()
    while job is not None and not interrupted.is_set():
        with Embedder() as embedder:
            while job is not None and embedder.is_sound and not interrupted.is_set():
                do(job, embedder, interrupted)
                job = _next(interrupted, warm_seconds if embedder.is_sound else 0)
    if job is not None:
        jobs.put_back(job)


# One thread at a time.
start = Beside("embedding", work).start


def _next(interrupted: threading.Event, seconds: float) -> EmbeddingJob | None:
    deadline = time.monotonic() + seconds
    while (job := jobs.take()) is None and time.monotonic() < deadline:
        if interrupted.wait(LOOK_SECONDS):
            return None
    return job


def do(job: EmbeddingJob, embedder: Embedder, interrupted: threading.Event) -> None:
    """One job to its end; what went wrong stands in it."""
    log.info("embedding job %s: %s", job.pk, "a text" if job.text else job.filter or "all rollouts")
    try:
        _embed_text(job, embedder, interrupted) if job.text else _embed_rollouts(job, embedder, interrupted)
    except _NoLongerOurs:
        if interrupted.is_set():
            jobs.put_back(job)
    except (EmbedderError, FilterError) as error:
        _fail(job, str(error))
    except (OperationalError, InterfaceError) as error:
        if "statement timeout" not in str(error):
            raise
        _fail(job, "finding the rollouts took too long; narrow the filter")
    except Exception as error:
        log.exception("embedding job %s", job.pk)
        _fail(job, f"{type(error).__name__}: {error}"[:300])


def _fail(job: EmbeddingJob, why: str) -> None:
    log.warning("embedding job %s failed: %s", job.pk, why)
    jobs.write(job, state=JobState.FAILED, error=why.replace("\0", ""), ended_at=Now())


def _embed_text(job: EmbeddingJob, embedder: Embedder, interrupted: threading.Event) -> None:
    (embedded,) = embedder.embed([job.text], tick=_Tick(job, interrupted))
    jobs.write(
        job,
        state=JobState.FINISHED,
        vector=embedded.vector,
        cut=int(embedded.is_cut),
        model=MODEL_KEY,
        ended_at=Now(),
    )


def _embed_rollouts(job: EmbeddingJob, embedder: Embedder, interrupted: threading.Event) -> None:
    if not vectors.ensure():
        raise EmbedderError(vectors.NEEDS_EXTENSION)
    tick = _Tick(job, interrupted)
    embedder.embed([""], tick=tick)  # the model is loaded now, and the pace is that of the work alone
    ids = select(Search(Scope(job.project, job.run), job.filter_text), seconds=JOB_SECONDS).ids
    known = vectors.embedded_ids(ids)
    missing = [pk for pk in ids if pk not in known]
    if not jobs.write(job, total=len(missing), started_at=Now()):
        raise _NoLongerOurs
    done = cut = 0
    for start in range(0, len(missing), ROLLOUTS_AT_ONCE):
        texts = {pk: _readable(text) for pk, text in completions_of(missing[start : start + ROLLOUTS_AT_ONCE]).items()}
        embedded = dict(zip(texts, embedder.embed(list(texts.values()), tick=tick), strict=True))
        done += len(embedded)
        cut += sum(one.is_cut for one in embedded.values())
        with transaction.atomic():
            # The job's row stays locked until the vectors are there: whoever stops it sees nothing come after.
            if not jobs.write(job, done=done, cut=cut):
                raise _NoLongerOurs
            vectors.store(embedded)
    jobs.write(job, state=JobState.FINISHED, model=MODEL_KEY, ended_at=Now())


def _readable(completion: bytes) -> str:
    """As the model reads it. Cut as bytes first: a text of megabytes is not decoded for its beginning."""
    return text_from_bytes(completion[: 4 * MAX_CHARS + 4])


class _Tick:
    """Called while the process computes: says that the job's worker lives, and notices that it should stop."""

    def __init__(self, job: EmbeddingJob, interrupted: threading.Event) -> None:
        self._say = partial(jobs.write, job)
        self._interrupted = interrupted
        self._next = 0.0

    def __call__(self) -> None:
        if self._interrupted.is_set():
            raise _NoLongerOurs
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + BEAT_SECONDS
            if not self._say():
                raise _NoLongerOurs
