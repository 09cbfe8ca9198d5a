"""`manage.py export_run RUN --to DIR`: a run as files that `import_run` takes back without loss."""

import uuid
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db.models import Q

from rlviewer.embedded.attach import attached
from rlviewer.ingest.archive import ArchiveError
from rlviewer.ingest.exporting import export_run
from rlviewer.runs.models import Run


class Command(BaseCommand):
    help = "Write a run into a new folder: Parquet files and a manifest with their checksums."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run", help="number or UUID of the run")
        parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="a folder that does not exist yet")

    def handle(self, *, run: str, to: Path, **_: Any) -> None:
        with attached(redis=False):
            try:
                summary = export_run(find_run(run), to)
            except (ArchiveError, OSError) as error:
                raise CommandError(str(error)) from error
        print(f"{to}: {summary.steps} steps, {summary.rollouts} rollouts")


def find_run(name: str) -> Run:
    wanted = Q(pk=int(name)) if name.isdecimal() and len(name) < 19 else None
    try:
        wanted = wanted or Q(uid=uuid.UUID(name))
    except ValueError:
        raise CommandError(f"{name!r} is neither the number nor the UUID of a run") from None
    run = Run.objects.filter(wanted).first()
    if run is None:
        raise CommandError(f"there is no run {name}")
    return run
