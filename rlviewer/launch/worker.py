"""A Celery worker's life: it sweeps while it lives, hands its run on when it ends, and ends when it has gone deaf."""

import logging
import os
import threading
import time
from typing import Any

from celery.signals import worker_ready, worker_shutting_down

log = logging.getLogger(__name__)

SWEEP_SECONDS = 5.0
# Announcements that an idle worker lets pass before it takes itself for deaf; one is made every 10 s.
DEAF_AFTER = 3
DEAF_EXIT_CODE = 75

# Set when the worker is told to end; the trainer then stops at its next step.
interrupted = threading.Event()
_last_delivery = 0.0


def note_delivery() -> None:
    global _last_delivery
    _last_delivery = time.monotonic()


@worker_shutting_down.connect
def hand_on(**_: Any) -> None:
    interrupted.set()


@worker_ready.connect
def start_sweeping(sender: Any, **_: Any) -> None:
    queues = sorted(sender.app.amqp.queues.consume_from)
    threading.Thread(target=_sweep_until_interrupted, args=(queues,), name="sweeper", daemon=True).start()


def _sweep_until_interrupted(queues: list[str]) -> None:
    from rlviewer.launch.sweeper import Sweeper

    sweeper = Sweeper(queues)
    unheard: list[float] = []
    while not interrupted.is_set():
        if sweeper.sweep():
            unheard.append(time.monotonic())
        unheard = [at for at in unheard if at > _last_delivery]
        if len(unheard) > DEAF_AFTER and sweeper.is_idle:
            # Consumers that never come back after a lost broker are an old trouble; a fresh process has none.
            log.error("work was announced %s times and never arrived here; ending, to be started again", len(unheard))
            sweeper.say_goodbye()
            os._exit(DEAF_EXIT_CODE)
        # Steps of a run that has just ended are worked out one sweep after another.
        interrupted.wait(0 if sweeper.has_backlog and sweeper.is_idle else SWEEP_SECONDS)
    sweeper.say_goodbye()
