"""`manage.py fsck`: proves the store is consistent, or lists what is not and exits 1."""

import sys
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection, transaction

from rlviewer.embedded.attach import attached
from rlviewer.ingest.consistency import problems
from rlviewer.ingest.models import Batch
from rlviewer.runs.models import Rollout, Run


class Command(BaseCommand):
    help = "Check counts, checksums, orphans and summaries of everything stored. Exit code 1 and a list if something is wrong."

    def handle(self, **_: Any) -> None:
        found = 0
        # One snapshot, so that batches stored meanwhile are seen whole or not at all.
        with attached(redis=False), transaction.atomic(), connection.cursor() as cursor:
            if not connection.savepoint_ids:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            for problem in problems():
                print(problem, flush=True)
                found += 1
            counts = f"{Run.objects.count()} runs, {Batch.objects.count()} batches, {Rollout.objects.count()} rollouts"
        print(f"fsck: {counts}: {f'{found} problems' if found else 'all consistent'}")
        if found:
            sys.exit(1)
