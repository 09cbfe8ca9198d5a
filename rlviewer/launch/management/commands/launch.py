"""`manage.py launch CONFIG.toml`: queue a training for a worker."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from rlviewer.embedded.attach import attached
from rlviewer.launch.foreground import project_called
from rlviewer.launch.services import DEFAULT_QUEUE, launch_run
from training.config import ConfigError, RunConfig


class Command(BaseCommand):
    help = "Queue a training. It starts when a worker is free: now, or with the next `make run`."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "config", type=Path, help="TOML file; the launch form and a run's Config tab show every key"
        )
        parser.add_argument("--project", default="", help="made when there is none; default: the only one")
        parser.add_argument("--queue", default=DEFAULT_QUEUE, choices=["cpu", "gpu"])

    def handle(self, *, config: Path, project: str, queue: str, **_: Any) -> None:
        try:
            wanted = RunConfig.from_file(config)
            with attached(redis=False):
                run = launch_run(None, project_called(project), wanted, queue=queue)
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{config}: {error}", returncode=2) from None
        print(f"run {run.pk} queued")
