"""`manage.py demo`: the main job without a browser. Trains the demo run to its end and says what it learned."""

import sys
import time
from argparse import ArgumentParser
from dataclasses import replace
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from rlviewer.embedded.attach import attached
from rlviewer.launch.foreground import exit_code, project_called, train_in_foreground
from rlviewer.launch.presets import PRESETS
from rlviewer.runs.models import RunState
from training.config import ConfigError


class Command(BaseCommand):
    help = "Train the demo run in the foreground and print what it learned."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--seed", type=int)
        parser.add_argument("--steps", type=int)
        parser.add_argument(
            "--shuffle-rewards",
            action="store_true",
            help="the control: rewards carry no information, nothing is learned",
        )

    def handle(self, *, seed: int | None, steps: int | None, shuffle_rewards: bool, **_: Any) -> None:
        changes: dict[str, Any] = {"seed": seed, "steps": steps, "shuffle_rewards": shuffle_rewards or None}
        started = time.monotonic()
        try:
            config = PRESETS["demo"].run_config(**{k: v for k, v in changes.items() if v is not None})
            # A shortened demo must not be refused for a warm-up that it would not outlive.
            warmup = min(config.optimizer.warmup_steps, config.steps)
            config = replace(config, optimizer=replace(config.optimizer, warmup_steps=warmup))
            with attached(redis=False):
                run = train_in_foreground(project_called("Demo"), config, out=sys.stderr)
        except ConfigError as error:
            raise CommandError(str(error), returncode=2) from None
        if run.state != RunState.FINISHED or run.base_pass is None or run.latest_pass is None:
            self.stderr.write(f"run {run.pk} {run.state}: {run.state_reason}")
            sys.exit(exit_code(run) or 1)
        steps_done = 0 if run.last_step is None else run.last_step + 1
        print(
            f"demo: run={run.pk} steps={steps_done} rollouts={run.rollout_count} base_pass={run.base_pass:.4f}"
            f" final_pass={run.latest_pass:.4f} seconds={time.monotonic() - started:.1f}"
        )
