"""BENCHMARKS.md: one part a section, between markers, so that each can be measured again alone."""

import platform
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

HEAD = """# Benchmarks

Written by `make bench` (`SECTION=name` for one part, `SIZE=full` for the long form). Rates depend on the machine and on what
else it does; compare the ratios. Both sides of a ratio were measured in turns, in the same minutes. Each part names its
machine, and beside it the yardsticks: the time to count a million rows and to multiply two 4096 x 4096 float32 matrices.
"""


def say(text: str) -> None:
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def machine() -> str:
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (found := re.search(r"model name\s*: (.*)", cpuinfo.read_text())):
        model = found[1]
    memory = psutil.virtual_memory().total / 2**30
    load = psutil.getloadavg()[0]
    return (
        f"{model}, {psutil.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release().split('-')[0]},"
        f" Python {platform.python_version()}; load {load:.1f} when it ended"
    )


def write_section(path: Path, name: str, title: str, size: str, lines: Sequence[str]) -> None:
    """Replace the part of `name`, or add it at the end."""
    start, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    part = "\n".join([start, f"## {title}", "", f"{when}, size {size}, {machine()}.", "", *lines, end])
    old = path.read_text() if path.exists() else HEAD
    before, found, rest = old.partition(start)
    new = before + part + rest.partition(end)[2] if found else f"{old.rstrip()}\n\n{part}\n"
    path.write_text(new)
    sys.stdout.write("\n".join([*lines, ""]))


def best_of(times: int, work: Callable[[], object]) -> float:
    import time

    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def matmul_seconds() -> float:
    """Two 4096 x 4096 float32 matrices, the best of three."""
    import numpy as np

    square = np.random.default_rng(0).random((4096, 4096), dtype=np.float32)
    return best_of(3, lambda: square @ square)
