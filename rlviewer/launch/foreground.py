"""Train a run in a terminal, stored like any other: the command holds the lease itself."""

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from django.db import connection

from rlviewer.accounts.models import Project
from rlviewer.launch import supervise
from rlviewer.launch.services import FOREGROUND, launch_run
from rlviewer.launch.status import TrainerStatus
from rlviewer.runs.models import Run, RunState
from training.config import RunConfig

EXIT_CODES = {RunState.FINISHED: 0, RunState.STOPPED: 3}
BAR_WIDTH = 30
# Between lines when nobody watches a terminal.
LINE_SECONDS = 10.0


def train_in_foreground(project: Project, config: RunConfig, *, out: TextIO) -> Run:
    """Launch a run and train it to its end, through accidents; Ctrl-C and SIGTERM stop it at its next step.

    Raises:
        ConfigError: the configuration cannot run.
    """
    # What a worker writes into its log would tear the bar apart.
    logging.getLogger("rlviewer.launch").setLevel(logging.WARNING)
    run = launch_run(None, project, config, queue=FOREGROUND)
    bar = ProgressBar(run, out)
    with interrupting_signals() as interrupted:
        while run.state == RunState.QUEUED:
            attempt = run.attempts.get(number=run.current_attempt)
            supervise.run_attempt(
                attempt.pk, interrupted=interrupted, interruption="stopped in the terminal", on_status=bar.show
            )
            try:
                run.refresh_from_db()
            except supervise.DATABASE_AWAY:
                if not interrupted.is_set():
                    raise
                break  # how it ended stands in status.json, and a worker of this host reads it from there
    bar.close()
    return run


def exit_code(run: Run) -> int:
    return EXIT_CODES.get(RunState(run.state), 1)


def project_called(name: str) -> Project:
    """The project of that name, made when there is none; "" is the only one there is, else "Local runs"."""
    if not name:
        projects = list(Project.objects.all()[:2])
        if len(projects) == 1:
            return projects[0]
        name = "Local runs"
    return Project.objects.filter(name__iexact=name).first() or Project.objects.create(name=name)


@contextlib.contextmanager
def interrupting_signals() -> Iterator[threading.Event]:
    """An event that SIGINT, SIGTERM and SIGHUP set during the block, instead of ending the process."""
    interrupted = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    earlier = [signal.signal(number, lambda *_: interrupted.set()) for number in numbers]
    try:
        yield interrupted
    finally:
        for number, handler in zip(numbers, earlier, strict=True):
            signal.signal(number, handler)


class ProgressBar:
    """Steps done, rewards and time left: one line redrawn on a terminal, a line now and then elsewhere."""

    def __init__(self, run: Run, out: TextIO) -> None:
        self._run = run
        self._out = out
        self._is_terminal = out.isatty()
        self._started = time.monotonic()
        self._first_step: int | None = None
        self._shown = (-1, "")
        self._next_line = 0.0

    def show(self, status: TrainerStatus) -> None:
        now = time.monotonic()
        if self._first_step is None and status.state != "starting":
            self._first_step, self._started = status.step, now
        is_due = self._is_terminal or now >= self._next_line or status.state == "finished"
        if is_due and (status.step, status.phase) != self._shown:
            self._shown, self._next_line = (status.step, status.phase), now + LINE_SECONDS
            line = self._line(status)
            self._out.write(f"\r\x1b[K{line}" if self._is_terminal else f"{line}\n")
            self._out.flush()

    def close(self) -> None:
        if self._is_terminal:
            self._out.write("\n")
            self._out.flush()

    def _line(self, status: TrainerStatus) -> str:
        steps = max(status.steps, 1)
        filled = BAR_WIDTH * status.step // steps
        parts = [f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {status.step}/{status.steps} steps"]
        try:
            self._run.refresh_from_db(fields=["latest_reward", "base_pass", "latest_pass"])
        except supervise.DATABASE_AWAY:
            connection.close()  # the numbers of the line before will do
        if self._run.latest_reward is not None:
            parts.append(f"reward {self._run.latest_reward:.2f}")
        if self._run.base_pass is not None and self._run.latest_pass is not None:
            parts.append(f"pass@1 {self._run.base_pass:.2f} -> {self._run.latest_pass:.2f}")
        done = status.step - (self._first_step or 0)
        if done > 0:
            left = (time.monotonic() - self._started) / done * (status.steps - status.step)
            parts.append(f"{left:.0f} s left")
        else:
            parts.append(status.phase or status.state)
        return "  ".join(parts)
