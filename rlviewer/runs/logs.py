"""The end of an attempt's log, read from this host's data folder. The path is made of the run's uid and a number alone."""

import re
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from rlviewer.embedded import paths
from rlviewer.lib.visible import visible

TAIL_BYTES = 64 * 1024
TAIL_LINES = 400
# Colours and cursor moves of a terminal.
ANSI = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class LogTail:
    lines: list[str]
    is_cut: bool  # more came before


def log_tail(home: Path, run_uid: UUID, attempt: int) -> LogTail | None:
    """The last lines; None when the log is not on this host."""
    path = paths.runs(home) / str(run_uid) / "attempts" / str(int(attempt)) / "log.txt"
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return None
    is_cut = size > TAIL_BYTES
    raw = ANSI.sub(b"", data).split(b"\n")
    # A cut line tells half a story; a progress bar rewrites its line, and the last writing counts.
    lines = [line.rstrip(b"\r").rsplit(b"\r", 1)[-1] for line in raw[1 if is_cut else 0 :]]
    if lines and not lines[-1]:
        lines.pop()
    return LogTail([visible(line) for line in lines[-TAIL_LINES:]], is_cut or len(lines) > TAIL_LINES)
