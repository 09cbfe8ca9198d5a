"""Jobs from asking to their end. Light to import, so that an idle worker can ask what waits."""

from datetime import timedelta

from django.db import connection, transaction
from django.db.models.functions import Now
from django.utils import timezone

from rlviewer.accounts.models import Project, User
from rlviewer.analysis.models import ACTIVE, EmbeddingJob, JobState
from rlviewer.lib.text import bytes_from_str, text_from_bytes
from rlviewer.runs.models import Run
from training.sentences import MODEL_KEY

# A worker that has not been heard of for this long lost its job to whoever asks next.
LOST_SECONDS = 30
# Workers that may end over one job before it is given up.
TRIES = 3
TEXT_CHARS = 500

LOST = "(state = 'running' AND heartbeat_at < now() - make_interval(secs => %s))"
WAITING = f"(state = 'queued' OR {LOST})"


def ask_rollouts(user: User, project: Project, run: Run | None, filter_text: str) -> EmbeddingJob:
    """Ask a worker to embed what a filter finds; asking while it waits or works gives the same job."""
    return _ask(EmbeddingJob(project=project, run=run, filter=_storable(filter_text), asked_by=user))


def ask_text(user: User, project: Project, text: str) -> EmbeddingJob:
    """Ask a worker to embed a text to look for; one that is known already is not worked out again."""
    known = known_text(project, text)
    if known is not None and known.state == JobState.FINISHED:
        return known
    return _ask(EmbeddingJob(project=project, text=shortened(text), asked_by=user))


def known_text(project: Project, text: str) -> EmbeddingJob | None:
    """The newest job of the project for this text; a finished one before all others, those of other models left out."""
    same = EmbeddingJob.objects.filter(project=project, text=shortened(text), model__in=["", MODEL_KEY])
    return same.filter(state=JobState.FINISHED).first() or same.order_by("-pk").first()


def shortened(text: str) -> str:
    """What of a text is looked for, as it is stored."""
    return _storable(text.strip()[:TEXT_CHARS])


def newest_job(project: Project, run: Run | None, filter_text: str) -> EmbeddingJob | None:
    same = EmbeddingJob.objects.filter(project=project, run=run, filter=_storable(filter_text), text="")
    return same.order_by("-pk").first()


def stop(job: EmbeddingJob) -> None:
    """End a job; what it has embedded stays. Nothing is stored for it after this."""
    EmbeddingJob.objects.filter(pk=job.pk, state__in=ACTIVE).update(state=JobState.STOPPED, ended_at=Now())


def _ask(job: EmbeddingJob) -> EmbeddingJob:
    while True:
        EmbeddingJob.objects.bulk_create([job], ignore_conflicts=True)
        same = EmbeddingJob.objects.filter(project=job.project, run=job.run, filter=job.filter, text=job.text)
        found = same.filter(state__in=ACTIVE).first()
        if found is not None:
            return found  # else another's, which ended in this moment: ask again


def _storable(text: str) -> str:
    return text_from_bytes(bytes_from_str(text))


# What a worker does.


def is_waiting() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT EXISTS (SELECT FROM analysis_embeddingjob WHERE {WAITING})", [LOST_SECONDS])  # noqa: S608
        return bool(cursor.fetchone()[0])


def take() -> EmbeddingJob | None:
    """The job that has waited longest, now the caller's: its fence is shown with everything written for it."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE analysis_embeddingjob SET state = 'failed', ended_at = now(),"  # noqa: S608
            " error = 'given up: its worker ended ' || fence || ' times while it was computed'"
            f" WHERE {LOST} AND fence >= %s",
            [LOST_SECONDS, TRIES],
        )
        cursor.execute(
            "UPDATE analysis_embeddingjob SET state = 'running', fence = fence + 1, started_at = now(),"  # noqa: S608
            " heartbeat_at = now(), done = 0, cut = 0, total = NULL WHERE id ="
            f" (SELECT id FROM analysis_embeddingjob WHERE {WAITING} ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1)"
            " RETURNING id",
            [LOST_SECONDS],
        )
        row = cursor.fetchone()
        return EmbeddingJob.objects.select_related("project", "run").get(pk=row[0]) if row else None


def write(job: EmbeddingJob, **changes: object) -> bool:
    """Say that the job's worker lives, and what has changed. False: it was stopped, or is another worker's."""
    mine = EmbeddingJob.objects.filter(pk=job.pk, fence=job.fence, state=JobState.RUNNING)
    return mine.update(heartbeat_at=Now(), **changes) == 1


def put_back(job: EmbeddingJob) -> None:
    """Leave a job to another worker."""
    write(job, state=JobState.QUEUED)


def rate() -> float | None:
    """Rollouts a second of the newest large job, once the model was loaded; None when none says."""
    lately = EmbeddingJob.objects.filter(
        state=JobState.FINISHED, text="", done__gte=64, ended_at__gt=timezone.now() - timedelta(days=30)
    )
    job = lately.order_by("-pk").first()
    return job.done / job.seconds if job and job.seconds else None
