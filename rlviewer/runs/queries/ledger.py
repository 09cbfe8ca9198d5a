"""What became of everything a run's trainer handed in."""

from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Sum

from rlviewer.runs.models import Run

REFUSALS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that could not be stored; its bytes are kept beside the reason."""

    split: str
    step: int
    row: int  # in its batch, from 0
    reason: str


@dataclass(frozen=True, slots=True)
class RunLedger:
    """received = stored + refused + parked, over every attempt and split."""

    batches: int
    received: int
    stored: int
    refused: int
    parked: int
    refusals: list[Refusal]  # of the newest batches, at most REFUSALS_SHOWN


def run_ledger(run: Run) -> RunLedger:
    """Two queries; the second only when something was refused."""
    # By the relation's name: the ledger belongs to an app that stands above this one.
    batches: Any = run.batch_set  # type: ignore[attr-defined]
    sums = batches.aggregate(
        batches=Count("pk"),
        received=Sum("received", default=0),
        stored=Sum("stored", default=0),
        refused=Sum("refused", default=0),
        parked=Sum("parked", default=0),
    )
    rows = (
        batches.filter(refused__gt=0)
        .order_by("-stored_at", "refused_rows__row_index")
        .values_list("split", "step_index", "refused_rows__row_index", "refused_rows__reason")[:REFUSALS_SHOWN]
        if sums["refused"]
        else []
    )
    refusals = [Refusal(split, step, row, reason) for split, step, row, reason in rows]
    return RunLedger(**sums, refusals=refusals)
