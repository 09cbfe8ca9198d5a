"""What a worker works out of stored rollouts when somebody asks: their meaning as vectors."""

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import MD5

from rlviewer.accounts.models import Project
from rlviewer.lib.text import bytes_from_text
from rlviewer.runs.models import Rollout, Run
from training.sentences import DIMENSIONS


class VectorField(models.Field):
    """A column of the extension `vector`. Read and compared in SQL only."""

    def db_type(self, connection: Any) -> str:
        return f"vector({DIMENSIONS})"


class RolloutEmbedding(models.Model):
    """The meaning of one completion. Worked out from the stored text; dropping the table loses nothing."""

    rollout = models.OneToOneField(Rollout, on_delete=models.CASCADE, primary_key=True)
    run_id = models.BigIntegerField()  # the rollout's, so that the vectors of a run are found without its rollouts
    model = models.CharField(max_length=80)  # name and version; another model replaces the row
    is_cut = models.BooleanField()  # only the beginning of the text fitted the model
    # Where the extension is missing the column is, too; `vectors.ensure` adds it.
    vector = VectorField()

    class Meta:
        indexes = [models.Index(fields=["run_id"], name="embedding_by_run")]


class JobState(models.TextChoices):
    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    FINISHED = "finished", "Finished"
    STOPPED = "stopped", "Stopped"
    FAILED = "failed", "Failed"


ACTIVE = [JobState.QUEUED, JobState.RUNNING]


class EmbeddingJob(models.Model):
    """What somebody asked to be embedded: the rollouts that a filter finds, or a text to look for."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    run = models.ForeignKey(Run, null=True, on_delete=models.CASCADE, related_name="+")  # null: all of the project
    filter = models.TextField(blank=True)  # as written, escaped by lib.text
    text = models.TextField(blank=True)  # not empty: a text to look for, escaped by lib.text
    asked_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    state = models.CharField(max_length=10, choices=JobState.choices, default=JobState.QUEUED)
    error = models.TextField(blank=True)
    total = models.IntegerField(null=True)  # rollouts to embed, those embedded before left out; null before it starts
    done = models.IntegerField(default=0)
    cut = models.IntegerField(default=0)  # of them, those of which only the beginning fitted
    vector = models.BinaryField(null=True)  # of the text, float32
    model = models.CharField(max_length=80, blank=True)
    # Raised each time a worker takes the job; a worker that shows an older number changes nothing.
    fence = models.IntegerField(default=0)
    asked_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)  # of the work; the model was loaded before
    heartbeat_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="embedding_job_state_known"),
            # Asking twice is asking once.
            models.UniqueConstraint(
                F("project"),
                F("run"),
                MD5("filter"),
                MD5("text"),
                name="embedding_job_once",
                condition=Q(state__in=ACTIVE),
                nulls_distinct=False,
            ),
        ]
        indexes = [
            # A worker's question: what waits?
            models.Index(fields=["id"], name="embedding_job_active", condition=Q(state__in=ACTIVE)),
            # The newest job of a project, finished ones tell how quick this machine is.
            models.Index(fields=["project", "-id"], name="embedding_job_by_project"),
        ]

    @property
    def is_over(self) -> bool:
        return self.state not in ACTIVE

    @property
    def filter_text(self) -> str:
        return bytes_from_text(self.filter).decode("utf-8", "surrogatepass")

    @property
    def seconds(self) -> float | None:
        """From the start to the end or the last sign of life."""
        until = self.ended_at or self.heartbeat_at
        return (until - self.started_at).total_seconds() if until and self.started_at else None
