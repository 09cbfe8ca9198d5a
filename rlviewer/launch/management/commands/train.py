"""`manage.py train CONFIG.toml`: one training in the foreground, stored like any other."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from rlviewer.embedded.attach import attached
from rlviewer.launch.foreground import exit_code, project_called, train_in_foreground
from training.config import ConfigError, RunConfig


class Command(BaseCommand):
    help = (
        "Train in the foreground. Ctrl-C stops at the next step, with a checkpoint. "
        "Exit code: 0 finished, 3 stopped, 2 configuration refused, 1 failed."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "config", type=Path, help="TOML file; the launch form and a run's Config tab show every key"
        )
        parser.add_argument("--project", default="", help="made when there is none; default: the only one")

    def handle(self, *, config: Path, project: str, **_: Any) -> None:
        try:
            wanted = RunConfig.from_file(config)
            with attached(redis=False):
                run = train_in_foreground(project_called(project), wanted, out=sys.stderr)
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{config}: {error}", returncode=2) from None
        reason = f": {run.state_reason}" if run.state_reason else ""
        print(f"run {run.pk} {run.state}{reason}")
        sys.exit(exit_code(run))
