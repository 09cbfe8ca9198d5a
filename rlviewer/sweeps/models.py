"""Sweeps, the points that they try, and the runs that try them. Optuna's own tables lie in the schema `optuna`."""

import uuid
from typing import Self

from django.db import models
from django.db.models import Q

from rlviewer.accounts.models import Project, User
from rlviewer.runs.models import Run
from rlviewer.sweeps.spec import SweepSpec


class SweepState(models.TextChoices):
    RUNNING = "running", "Running"
    PAUSED = "paused", "Paused"
    DONE = "done", "Done"
    STOPPED = "stopped", "Stopped"


class TrialState(models.TextChoices):
    RUNNING = "running", "Running"
    COMPLETE = "complete", "Complete"
    PRUNED = "pruned", "Pruned"
    FAILED = "failed", "Failed"


class SweepQuerySet(models.QuerySet["Sweep"]):
    def visible_to(self, user: User) -> Self:
        return self if user.is_superuser else self.filter(project__members__user=user)


class Sweep(models.Model):
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="sweeps")
    name = models.CharField(max_length=150)
    state = models.CharField(max_length=10, choices=SweepState.choices, default=SweepState.RUNNING)
    state_reason = models.TextField(blank=True)
    spec = models.JSONField()
    # Raised when the search space changes; Optuna then gets a new study, told of all trials before.
    space_version = models.IntegerField(default=1)
    priority = models.IntegerField(default=0)
    # Runs are launched in this person's name, and only while they may.
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    objects = SweepQuerySet.as_manager()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(state__in=SweepState.values), name="sweep_state_known")]
        indexes = [models.Index(fields=["project", "-id"], name="sweep_by_project")]

    def __str__(self) -> str:
        return self.name

    @property
    def parsed(self) -> SweepSpec:
        return SweepSpec.from_dict(self.spec)


class Trial(models.Model):
    """One point of the search space, trained once with every seed."""

    sweep = models.ForeignKey(Sweep, on_delete=models.CASCADE, related_name="trials")
    number = models.IntegerField()
    point = models.JSONField()  # value by dotted key
    state = models.CharField(max_length=10, choices=TrialState.choices, default=TrialState.RUNNING)
    reason = models.TextField(blank=True)
    value = models.FloatField(null=True)  # the objective: mean over its seeds
    space_version = models.IntegerField()
    optuna_number = models.IntegerField()  # in the study of that version
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["sweep", "number"], name="trial_number_unique"),
            # A worker that was killed after Optuna chose a point finds it again, and only once.
            models.UniqueConstraint(fields=["sweep", "space_version", "optuna_number"], name="trial_once_per_choice"),
            models.CheckConstraint(condition=Q(state__in=TrialState.values), name="trial_state_known"),
        ]


class TrialRun(models.Model):
    """The run of a trial with one seed."""

    trial = models.ForeignKey(Trial, on_delete=models.CASCADE, related_name="runs")
    seed = models.BigIntegerField()
    run = models.OneToOneField(Run, null=True, on_delete=models.SET_NULL, related_name="trial_run")
    retries = models.IntegerField(default=0)
    value = models.FloatField(null=True)  # the objective at its end

    class Meta:
        constraints = [models.UniqueConstraint(fields=["trial", "seed"], name="trial_run_once_per_seed")]
