"""`manage.py import_run PATH --project P`: files of a run into the database."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db.models import Q

from rlviewer.accounts.models import Project
from rlviewer.embedded.attach import attached
from rlviewer.ingest.archive import ArchiveError
from rlviewer.ingest.importing import import_run

FORMATS = {"rlviewer": import_run}


class Command(BaseCommand):
    help = "Import a run that export_run wrote. A damaged folder is refused whole."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("path", type=Path, help="the exported folder")
        parser.add_argument("--format", choices=sorted(FORMATS), default="rlviewer")
        parser.add_argument("--project", required=True, help="name or number of the project it joins")

    def handle(self, *, path: Path, format: str, project: str, **_: Any) -> None:
        with attached(redis=False):
            try:
                run = FORMATS[format](path, find_project(project))
            except (ArchiveError, OSError) as error:
                raise CommandError(str(error)) from error
        print(f"run {run.pk}: {run.name}, {run.rollout_count} rollouts")


def find_project(name: str) -> Project:
    by_number = Q(pk=int(name)) if name.isdecimal() and len(name) < 19 else Q(pk=None)
    project = Project.objects.filter(by_number | Q(name__iexact=name)).first()
    if project is None:
        known = ", ".join(Project.objects.values_list("name", flat=True)[:20]) or "none yet"
        raise CommandError(f"there is no project {name!r}; there are: {known}")
    return project
