"""What a worker works out of a stored step when somebody asks: what another algorithm would have made of its rollouts."""

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import MD5

from rlviewer.accounts.models import Project
from rlviewer.runs.models import Step


class ReplayState(models.TextChoices):
    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    FINISHED = "finished", "Finished"
    FAILED = "failed", "Failed"


class Replay(models.Model):
    """One step under one recipe with these constants and rewards. Worked out from the stored step, and kept while it stands."""

    step = models.ForeignKey(Step, on_delete=models.CASCADE, related_name="+")
    recipe = models.CharField(max_length=60, blank=True)  # "": the run's own
    constants = models.TextField(default="{}")  # JSON, keys sorted: knobs that are moved
    rewards = models.TextField(default="[]")  # JSON: entries of H4 judged anew; empty: as they are stored
    version = models.IntegerField()  # of the code
    rollout_count = models.IntegerField()  # of the step, when it was asked
    asked_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    state = models.CharField(max_length=10, choices=ReplayState.choices, default=ReplayState.QUEUED)
    error = models.TextField(blank=True)
    labels = models.JSONField(default=dict)  # part of the answer -> [exact, approximate or cannot say; why]
    measures = models.JSONField(default=dict)
    columns = models.BinaryField(null=True)  # a row a rollout, by group and number; as signal.sums packs them
    seconds = models.FloatField(null=True)  # of the work, without waiting
    # Raised each time a worker takes it; a worker that shows an older number changes nothing.
    fence = models.IntegerField(default=0)
    asked_at = models.DateTimeField(auto_now_add=True)
    heartbeat_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(state__in=ReplayState.values), name="replay_state_known"),
            # Asking twice is asking once.
            models.UniqueConstraint(
                F("step"), F("recipe"), MD5("constants"), MD5("rewards"), F("version"), F("rollout_count"), name="replay_once"
            ),
        ]  # fmt: skip
        indexes = [
            # A worker's question: what waits?
            models.Index(
                fields=["id"], name="replay_active", condition=Q(state__in=[ReplayState.QUEUED, ReplayState.RUNNING])
            ),
        ]

    @property
    def is_over(self) -> bool:
        return self.state in {ReplayState.FINISHED, ReplayState.FAILED}


class RewardDefinition(models.Model):
    """The code of a reward as a worker found it when it judged rollouts; every version is kept."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=300)
    version = models.CharField(max_length=20)  # digest of its file
    source = models.TextField(blank=True)
    seen_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name", "version"], name="reward_version_once")]


class RewardNote(models.Model):
    """What people know of a reward: how it can be had without deserving it, what it misses."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=300)
    text = models.TextField()
    author = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    written_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["project", "name"], name="reward_notes")]
