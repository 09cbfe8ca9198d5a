"""Is a trainer frozen? Told by its process, not by how long a step takes: a step may take an hour."""

import time

from rlviewer.launch.hosts import group_cpu_seconds, process_state

# A debugger or an operator may stop a process for a moment.
STOPPED_SECONDS = 20.0
# No new status, asleep, and no CPU used by any process of the group: a deadlock.
IDLE_SECONDS = 45.0
# Ticks of the kernel's clock that a mere wake-up may cost.
IDLE_CPU_SECONDS = 0.02


class FreezeWatch:
    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stopped_since: float | None = None
        self.moved()

    def moved(self) -> None:
        """The trainer wrote a new status."""
        self._quiet_since = time.monotonic()
        self._cpu_seconds: float | None = None

    @property
    def is_stopped(self) -> bool:
        """Stopped by SIGSTOP or a debugger right now."""
        return process_state(self._pid) in {"T", "t"}

    def reason(self, *, is_paused: bool) -> str:
        """Why the trainer counts as frozen, "" while it does not."""
        now = time.monotonic()
        state = process_state(self._pid)
        if state in {"T", "t"}:
            self._stopped_since = self._stopped_since or now
            stopped_seconds = now - self._stopped_since
            if stopped_seconds >= STOPPED_SECONDS:
                return f"the process was stopped (SIGSTOP) for {stopped_seconds:.0f} s"
            return ""
        self._stopped_since = None
        # D is a wait for a disk or a network drive, which may be long and is no deadlock.
        if is_paused or state not in {"S", "I"}:
            self.moved()
            return ""
        if self._cpu_seconds is None:
            self._cpu_seconds, self._quiet_since = group_cpu_seconds(self._pid), now
        elif now - self._quiet_since >= IDLE_SECONDS:
            if group_cpu_seconds(self._pid) - self._cpu_seconds <= IDLE_CPU_SECONDS:
                return f"it neither wrote a status nor used the CPU for {now - self._quiet_since:.0f} s"
            self.moved()
        return ""
