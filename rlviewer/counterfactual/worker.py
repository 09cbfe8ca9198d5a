"""What a worker does for those who ask: a thread that feeds stored steps to the replay process and keeps what comes back.

It runs beside a training, for whoever asks should not wait hours; the process gives way to it. Every recipe is a row of its
own, so a worker that is killed leaves the rest to the next one.
"""

import json
import logging
import threading
import time
from functools import partial

from django.db import InterfaceError, OperationalError
from django.db.models.functions import Now

from rlviewer.counterfactual import jobs
from rlviewer.counterfactual.models import Replay, ReplayState
from rlviewer.counterfactual.replayer import Refused, Replayer
from rlviewer.counterfactual.rewards import keep_definitions
from rlviewer.counterfactual.step_batch import batch_of, earlier_rewards
from rlviewer.lib.beside import Beside
from rlviewer.lib.child_process import ChildProcessError
from rlviewer.runs.models import Step

log = logging.getLogger(__name__)

# The process stays this long after an answer: whoever moves a slider asks again.
WARM_SECONDS = 120.0
LOOK_SECONDS = 0.2
BEAT_SECONDS = 2.0


class _NoLongerOurs(Exception):
    """It is another worker's, or this worker ends."""


def work(interrupted: threading.Event, *, warm_seconds: float = WARM_SECONDS) -> None:
    """Work on what waits until nothing has come for `warm_seconds`."""
    taken = jobs.take()
    while taken and not interrupted.is_set():
        with Replayer() as replayer:
            while taken and replayer.is_sound and not interrupted.is_set():
                do(taken, replayer, interrupted)
                taken = _next(interrupted, warm_seconds if replayer.is_sound else 0)
    jobs.put_back(taken)


# One thread at a time.
start = Beside("replay", work).start


def _next(interrupted: threading.Event, seconds: float) -> list[Replay]:
    deadline = time.monotonic() + seconds
    while not (taken := jobs.take()) and time.monotonic() < deadline:
        if interrupted.wait(LOOK_SECONDS):
            return []
    return taken


def do(replays: list[Replay], replayer: Replayer, interrupted: threading.Event) -> None:
    """Replays of one step to their end; what went wrong stands in them."""
    step = replays[0].step
    key = f"{step.pk} {step.rollout_count} {replays[0].version}"
    common = {"config": step.run.config_toml, "earlier_rewards": earlier_rewards(step)}
    left = list(replays)
    try:
        while left and replayer.is_sound:
            replay, tick = left[0], _Tick(left, interrupted)
            begun = time.monotonic()
            request = common | {
                "recipe": replay.recipe,
                "constants": json.loads(replay.constants),
                "rewards": json.loads(replay.rewards),
            }
            try:
                header, columns = replayer.replay(key, request, partial(_body, step), tick=tick)
            except (Refused, ChildProcessError) as error:
                _fail(replay, str(error))
            else:
                keep_definitions(step.run.project_id, header.get("definitions", []))
                jobs.write(
                    replay,
                    state=ReplayState.FINISHED,
                    labels=header.pop("labels"),
                    measures=header.pop("measures") | header,
                    columns=columns,
                    seconds=time.monotonic() - begun,
                    ended_at=Now(),
                )
            left.pop(0)
    except (_NoLongerOurs, OperationalError, InterfaceError):
        jobs.put_back(left)
        if not interrupted.is_set():
            raise
    except Exception as error:
        log.exception("replays of step %s", step.pk)
        for replay in left:
            _fail(replay, f"{type(error).__name__}: {error}")
    else:
        jobs.put_back(left)


def _body(step: Step) -> tuple[bytes, bytes]:
    words = step.run.vocabulary
    return batch_of(step).to_bytes(), b"" if words is None else bytes(words.payload)


def _fail(replay: Replay, why: str) -> None:
    log.warning("replay %s failed: %s", replay.pk, why)
    jobs.write(replay, state=ReplayState.FAILED, error=why.replace("\0", "")[:500], ended_at=Now())


class _Tick:
    """Called while the process computes: says that the worker lives, and notices that it should stop."""

    def __init__(self, replays: list[Replay], interrupted: threading.Event) -> None:
        self._replays = replays
        self._interrupted = interrupted
        self._next = 0.0

    def __call__(self) -> None:
        if self._interrupted.is_set():
            raise _NoLongerOurs
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + BEAT_SECONDS
            # Of every one, so that none looks lost while the first is worked out.
            if not min([jobs.write(replay) for replay in self._replays]):
                raise _NoLongerOurs
