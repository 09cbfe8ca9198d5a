"""Stores a run's spool while its trainer writes it, in a thread, so that a slow store never delays a stop."""

import logging
import threading
from pathlib import Path

from django.db import InterfaceError, OperationalError, connection

from training import spool

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
RETRY_SECONDS = 2.0


class Drainer(threading.Thread):
    """Ends once it was told to (`finish`) and the spool is empty."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(name=f"drain {run_dir.name}", daemon=True)
        self._run_dir = run_dir
        self._finishing = threading.Event()
        self._abandoned = threading.Event()
        self.is_stuck = False  # files wait that the last try could not take, though the database answers

    def finish(self) -> None:
        """Nothing more will be written: store what waits, then end."""
        self._finishing.set()

    def abandon(self) -> None:
        """End now; what still waits stays in the spool for a sweeper."""
        self._abandoned.set()
        self._finishing.set()

    def run(self) -> None:
        # Arrow costs an idle worker 40 MB of memory, so it is loaded with the first run.
        from rlviewer.ingest.drain import drain_spool

        try:
            while not self._abandoned.is_set():
                is_last_look = self._finishing.is_set()
                if any(spool.waiting(self._run_dir / "spool")):
                    try:
                        self.is_stuck = drain_spool(self._run_dir).files == 0
                        if self.is_stuck:
                            self._abandoned.wait(RETRY_SECONDS)
                    except (OperationalError, InterfaceError) as error:
                        # The trainer goes on; its batches wait on disk.
                        log.warning("%s: database away, batches wait in the spool: %s", self.name, error)
                        connection.close()
                        self._abandoned.wait(RETRY_SECONDS)
                    except Exception:
                        self.is_stuck = True
                        log.exception("%s: could not store a batch; trying again", self.name)
                        connection.close()
                        self._abandoned.wait(RETRY_SECONDS)
                elif is_last_look:
                    break
                else:
                    self._finishing.wait(LOOK_SECONDS)
        finally:
            connection.close()
