"""`manage.py retry_parked`: hand parked batches in again, or throw one away."""

from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from rlviewer.embedded.attach import attached
from rlviewer.ingest.ledger import BatchOutcome
from rlviewer.ingest.models import ParkedBatch
from rlviewer.ingest.parked import discard_parked, retry_parked


class Command(BaseCommand):
    help = "Try again to store batches that were damaged or came before their run. What still cannot be stored stays."

    def add_arguments(self, parser: ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--batch", type=UUID, metavar="ID", help="only this one; default: every parked batch")
        which.add_argument("--discard", type=UUID, metavar="ID", help="throw this one away for good")

    def handle(self, *, batch: UUID | None, discard: UUID | None, **_: Any) -> None:
        with attached(redis=False):
            if discard:
                if not discard_parked(None, discard):
                    raise CommandError(f"no batch {discard} is parked")
                print(f"{discard}: thrown away")
                return
            parked = ParkedBatch.objects.order_by("parked_at").values_list("pk", flat=True)
            chosen = list(parked.filter(pk=batch) if batch else parked)
            if batch and not chosen:
                raise CommandError(f"no batch {batch} is parked")
            for number in chosen:
                print(f"{number}: {in_words(retry_parked(number))}", flush=True)
            print(f"{len(chosen)} tried, {ParkedBatch.objects.count()} parked")


def in_words(outcome: BatchOutcome | None) -> str:
    if outcome is None:
        return "another process has taken it"
    if outcome.parked_because:
        return f"still parked: {outcome.parked_because}"
    if outcome.was_known:
        return "was stored before"
    return f"{outcome.stored} of {outcome.received} rollouts stored, {outcome.refused} refused"
