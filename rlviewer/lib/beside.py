"""Work that a thread does beside whatever its process does."""

import logging
import threading
from collections.abc import Callable

from django.db import InterfaceError, OperationalError, connection

log = logging.getLogger(__name__)


class Beside:
    """One thread at a time, which ends with its work. What fails is tried anew by whoever starts it again."""

    def __init__(self, name: str, work: Callable[[threading.Event], None]) -> None:
        self._name, self._work = name, work
        self._alive = threading.Lock()

    def start(self, interrupted: threading.Event) -> None:
        """Begin, unless it is at work already; it is given `interrupted`, after which it should end."""
        if self._alive.acquire(blocking=False):
            threading.Thread(target=self._run, args=(interrupted,), name=self._name, daemon=True).start()

    def _run(self, interrupted: threading.Event) -> None:
        try:
            self._work(interrupted)
        except (OperationalError, InterfaceError) as error:
            log.warning("%s put off, database away: %s", self._name, error)
        except Exception:
            log.exception("%s failed; the sweeper begins anew", self._name)
        finally:
            connection.close()
            self._alive.release()
