"""The ledger: for every batch, received = stored + refused + parked."""

from typing import Self

from django.db import models
from django.db.models import Exists, F, OuterRef, Q

from rlviewer.runs.models import Attempt, Run


class Batch(models.Model):
    """One batch file or request, written in the transaction that stores its rows."""

    id = models.UUIDField(primary_key=True)  # given by the writer; storing the same id again changes nothing
    run = models.ForeignKey(Run, on_delete=models.CASCADE)
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, db_index=False)
    step_index = models.IntegerField()
    split = models.CharField(max_length=40)
    source = models.CharField(max_length=40, default="spool")
    received = models.IntegerField()
    stored = models.IntegerField()
    refused = models.IntegerField()
    parked = models.IntegerField(default=0)
    sha256 = models.CharField(max_length=64)
    stored_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(received=F("stored") + F("refused") + F("parked")), name="batch_adds_up"
            ),
        ]


class RefusedRow(models.Model):
    """A row that could not be stored, with its place, the reason and its bytes, so that nothing is lost."""

    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="refused_rows", db_index=False)
    row_index = models.IntegerField()
    reason = models.TextField()
    payload = models.BinaryField()  # Arrow IPC stream of the one row

    class Meta:
        constraints = [models.UniqueConstraint(fields=["batch", "row_index"], name="refused_row_unique")]


class ParkedBatchQuerySet(models.QuerySet["ParkedBatch"]):
    def adoptable(self) -> Self:
        """Those whose attempt has appeared."""
        attempts = Attempt.objects.filter(run__uid=OuterRef("run_uid"), number=OuterRef("attempt"))
        return self.filter(Exists(attempts))


class ParkedBatch(models.Model):
    """A whole batch that cannot be stored yet: its run or attempt is unknown here, or its file is damaged."""

    id = models.UUIDField(primary_key=True)
    run_uid = models.UUIDField(null=True, db_index=True)
    attempt = models.IntegerField(null=True)  # stored by itself when this one appears; null: a person must look
    received = models.IntegerField(default=0)
    reason = models.TextField()
    payload = models.BinaryField()
    parked_at = models.DateTimeField(auto_now_add=True)

    objects = ParkedBatchQuerySet.as_manager()
