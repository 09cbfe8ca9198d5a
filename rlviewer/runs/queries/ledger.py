"""What became of everything a run's trainer handed in."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.apps import apps
from django.db.models import Count, Exists, OuterRef, Q, Sum

from rlviewer.runs.models import Run

REFUSALS_SHOWN = 20
PARKED_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that could not be stored; its bytes are kept beside the reason."""

    split: str
    step: int
    row: int  # in its batch, from 0
    reason: str


@dataclass(frozen=True, slots=True)
class Parked:
    """A whole batch that could not be stored, kept as it came."""

    id: UUID
    rollouts: int  # 0 when its file is damaged: nobody knows
    parked_at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class ParkedBatches:
    count: int
    rollouts: int
    newest: list[Parked]  # at most PARKED_SHOWN


@dataclass(frozen=True, slots=True)
class RunLedger:
    """received = stored + refused + parked, over every attempt and split."""

    batches: int
    received: int
    stored: int
    refused: int
    parked: ParkedBatches
    refusals: list[Refusal]  # of the newest batches, at most REFUSALS_SHOWN


def run_ledger(run: Run) -> RunLedger:
    """Two queries, and one more each when something was refused or is parked."""
    # By name: the ledger belongs to an app that stands above this one.
    batches = apps.get_model("ingest", "Batch").objects.filter(run=run)
    sums = batches.aggregate(
        batches=Count("pk"),
        received=Sum("received", default=0),
        stored=Sum("stored", default=0),
        refused=Sum("refused", default=0),
    )
    rows = (
        batches.filter(refused__gt=0)
        .order_by("-stored_at", "refused_rows__row_index")
        .values_list("split", "step_index", "refused_rows__row_index", "refused_rows__reason")[:REFUSALS_SHOWN]
        if sums["refused"]
        else []
    )
    refusals = [Refusal(split, step, row, reason) for split, step, row, reason in rows]
    parked = parked_batches(run)
    sums["batches"] += parked.count
    sums["received"] += parked.rollouts
    return RunLedger(**sums, parked=parked, refusals=refusals)


def refused_count(run: Run) -> int:
    """Rollouts of the run that could not be stored. One query."""
    batches = apps.get_model("ingest", "Batch").objects.filter(run=run)
    count: int = batches.aggregate(refused=Sum("refused", default=0))["refused"]
    return count


def parked_batches(run: Run | None) -> ParkedBatches:
    """Those of the run, or those of no run that is known here."""
    is_meant = Q(run_uid=run.uid) if run else ~Exists(Run.objects.filter(uid=OuterRef("run_uid")))
    parked = apps.get_model("ingest", "ParkedBatch").objects.filter(is_meant)
    sums = parked.aggregate(count=Count("pk"), rollouts=Sum("received", default=0))
    rows = parked.order_by("-parked_at").values_list("id", "received", "parked_at", "reason")[:PARKED_SHOWN]
    return ParkedBatches(**sums, newest=[Parked(*row) for row in rows] if sums["count"] else [])
