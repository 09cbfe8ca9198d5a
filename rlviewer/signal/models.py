"""What each stored step taught, worked out after storing: numbers of steps and groups, and sums of every rollout.

All of it follows from stored rollouts: dropping the tables loses nothing, the sweep fills them again.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from rlviewer.runs.causes import CAUSES
from rlviewer.runs.models import Group, Step


class StepSignal(models.Model):
    """One row a step. A number is null where the source lacks what it is made of."""

    step = models.OneToOneField(Step, on_delete=models.CASCADE, primary_key=True)
    # Behind the step's own count when a later batch added to it; behind `services.VERSION` when measures changed.
    rollout_count = models.IntegerField()
    version = models.SmallIntegerField()
    computed_at = models.DateTimeField(auto_now=True)

    # Dead groups by cause, in the order of `causes.CAUSES`: how many, and the tokens sampled for them.
    cause_groups = ArrayField(models.IntegerField(), size=len(CAUSES))
    cause_tokens = ArrayField(models.BigIntegerField(), size=len(CAUSES))
    flat_share = models.FloatField(null=True)  # of rollouts with abs(advantage) below `groups.FLAT_ADVANTAGE`
    abs_advantage_mean = models.FloatField(null=True)  # of rollouts that have an advantage


class GroupSignal(models.Model):
    """One row a group."""

    group = models.OneToOneField(Group, on_delete=models.CASCADE, primary_key=True)
    step = models.ForeignKey(Step, on_delete=models.CASCADE, related_name="+", db_index=False)
    cause = models.SmallIntegerField(null=True)  # place in `causes.CAUSES`; null: the group is not dead
    tokens = models.BigIntegerField()  # of its completions

    class Meta:
        indexes = [
            # The groups of a range of steps, and the dead ones by their cause.
            models.Index(fields=["step", "cause"], name="group_signal_by_step"),
        ]


class RolloutSums(models.Model):
    """Sums over the tokens of every rollout of a step, a column each, as `sums` packs them; read one step at a time."""

    step = models.OneToOneField(Step, on_delete=models.CASCADE, primary_key=True)
    payload = models.BinaryField()
