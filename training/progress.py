"""What a person sees of a training in a terminal: a bar that redraws itself, or one log line a step."""

import logging
import sys
import time
from collections.abc import Mapping

BAR_CHARACTERS = 30

logger = logging.getLogger("training")


class Progress:
    """One line a step into the log; with `draws_bar` a bar on stderr instead."""

    def __init__(self, steps: int, *, draws_bar: bool) -> None:
        self.steps = steps
        self.draws_bar = draws_bar
        self._started = time.monotonic()
        self._first_step: int | None = None
        self._held_out = ""

    def step(self, done: int, metrics: Mapping[str, float]) -> None:
        pass_rate, seconds = metrics["pass_rate"], metrics["seconds_step"]
        if not self.draws_bar:
            logger.info(
                "step %d of %d: reward %.3f, pass rate %.3f, loss %.4g, %.2f s",
                done,
                self.steps,
                metrics["reward_mean"],
                pass_rate,
                metrics.get("loss", float("nan")),
                seconds,
            )
            return
        if self._first_step is None:
            self._first_step, self._started = done - 1, time.monotonic() - seconds
        per_step = (time.monotonic() - self._started) / (done - self._first_step)
        filled = BAR_CHARACTERS * done // self.steps
        left = int(per_step * (self.steps - done))
        self._draw(
            f"[{'#' * filled}{'.' * (BAR_CHARACTERS - filled)}] step {done}/{self.steps}"
            f"  pass rate {pass_rate:.2f}{self._held_out}  {left // 60}:{left % 60:02d} left"
        )

    def evaluation(self, checkpoint_step: int, metrics: Mapping[str, float]) -> None:
        if not self.draws_bar:
            shown = ", ".join(f"{name.removeprefix('eval_')} {value:.3f}" for name, value in metrics.items())
            logger.info("held-out after %d steps: %s", checkpoint_step, shown)
        self._held_out = f"  held-out {metrics['eval_pass_at_1']:.2f}"

    def close(self) -> None:
        if self.draws_bar and self._first_step is not None:
            sys.stderr.write("\n")

    def _draw(self, line: str) -> None:
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()
