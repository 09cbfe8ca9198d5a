"""Batches that could not be stored when they came: stored once their attempt appears, tried again, or thrown away."""

import logging
from uuid import UUID

from django.db import transaction

from rlviewer.accounts.models import Project, User
from rlviewer.accounts.services import record
from rlviewer.ingest.ledger import BatchOutcome
from rlviewer.ingest.models import ParkedBatch
from rlviewer.ingest.services import is_passing, store_batch
from training.records import RecordError, RolloutBatch

logger = logging.getLogger(__name__)


def adopt_parked() -> int:
    """Store the batches that came before their attempt was known, now that it is; returns how many were stored."""
    waiting = ParkedBatch.objects.adoptable().order_by("parked_at").values_list("pk", flat=True)
    outcomes = [retry_parked(batch_id) for batch_id in list(waiting)]
    return sum(outcome is not None and not outcome.parked_because for outcome in outcomes)


def retry_parked(batch_id: UUID) -> BatchOutcome | None:
    """Hand a parked batch in again; None when there is none of this number, or another process is at it.

    Once stored it is parked no more; else it stays, and the outcome says what is wrong with it now.
    """
    with transaction.atomic():
        parked = ParkedBatch.objects.select_for_update(skip_locked=True).filter(pk=batch_id).first()
        if parked is None:
            return None
        if not parked.payload:
            return _still(
                parked, parked.reason
            )  # its file was too large to be kept here; the reason says where it lies
        try:
            batch = RolloutBatch.from_bytes(bytes(parked.payload), where="its file")
            outcome = store_batch(batch, source="parked")
        except Exception as error:
            if is_passing(error):
                raise
            log = logger.warning if isinstance(error, RecordError) else logger.exception
            log("parked batch %s stays for a person: %s", parked.pk, error)
            reason = str(error) or type(error).__name__
            if parked.attempt is not None:
                # Not waited for any more. The first reason of what is damaged stays: it names the file.
                parked.attempt, parked.reason = None, reason
                parked.save(update_fields=["attempt", "reason"])
            return _still(parked, reason)
        if outcome.parked_because and outcome.batch_id == str(parked.pk):
            parked.attempt, parked.reason = batch.header.attempt, outcome.parked_because
            parked.save(update_fields=["attempt", "reason"])
        else:
            # Stored; or, when its file was taken for damaged and only now could be read, parked under its own number.
            parked.delete()
    return outcome


def _still(parked: ParkedBatch, reason: str) -> BatchOutcome:
    return BatchOutcome(str(parked.pk), parked.received, stored=0, parked=parked.received, parked_because=reason)


@transaction.atomic
def discard_parked(actor: User | None, batch_id: UUID) -> bool:
    """Throw a parked batch away for good; the audit trail keeps what it was. False when there is none of this number."""
    parked = ParkedBatch.objects.select_for_update().defer("payload").filter(pk=batch_id).first()
    if parked is None:
        return False
    project = Project.objects.filter(runs__uid=parked.run_uid).first() if parked.run_uid else None
    record(actor, "discard-parked", f"batch:{batch_id}", project, received=parked.received, reason=parked.reason)
    parked.delete()
    return True
