"""`manage.py doctor`: is every part there and well set, and what to do when not."""

import sys
from typing import Any

from django.core.management.base import BaseCommand

from rlviewer.embedded.attach import attached
from rlviewer.embedded.checkup import Finding, Level, findings
from rlviewer.embedded.folders import FolderError
from rlviewer.embedded.processes import EmbeddedError


class Command(BaseCommand):
    help = "Check Postgres, Redis, workers, disk, memory, GPU and packages; exit 1 when something needed is broken."
    requires_system_checks = []

    def handle(self, **_: Any) -> None:
        found: list[Finding] = []
        try:
            with attached(redis=True):
                found += findings()
        except (EmbeddedError, FolderError, OSError) as error:
            found.append(Finding(Level.PROBLEM, "start", str(error), "free what is named, then run doctor again"))
        width = max(len(finding.part) for finding in found)
        for finding in found:
            print(f"{finding.level.value:8} {finding.part:{width}}  {finding.found}")
            if finding.advice:
                print(f"{'':8} {'':{width}}  -> {finding.advice}")
        problems = sum(finding.level is Level.PROBLEM for finding in found)
        print(f"{problems} problem{'' if problems == 1 else 's'} found" if problems else "Everything needed is there")
        sys.exit(1 if problems else 0)
