"""One child of the supervisor: it is started again, later and later, when it ends by itself."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from rlviewer.embedded.processes import EmbeddedError

BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
# Who lived this long starts again as if it had never died.
HEALTHY_SECONDS = 60.0


@dataclass
class Service:
    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    deaths: int = 0
    start_again_at: float = 0.0

    def begin(self) -> None:
        self.started_at = time.monotonic()
        self.process = self.start()

    def look(self) -> None:
        """Notice a death, and start again when its time has come."""
        now = time.monotonic()
        if self.process is not None and self.process.poll() is not None:
            self.deaths = 1 if now - self.started_at > HEALTHY_SECONDS else self.deaths + 1
            delay = BACKOFF_SECONDS[min(self.deaths, len(BACKOFF_SECONDS)) - 1]
            say(f"{self.name} ended ({ending(self.process.returncode)}); it starts again in {delay:g} s")
            self.process, self.start_again_at = None, now + delay
        elif self.process is None and now >= self.start_again_at:
            try:
                self.begin()
            except (EmbeddedError, OSError) as error:
                say(f"{self.name} cannot start: {error}")
                self.start_again_at = now + BACKOFF_SECONDS[-1]


def ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def say(text: str) -> None:
    # The terminal may be gone; what we do does not depend on it.
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
