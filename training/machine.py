"""The machine that a run trains on: its memory, and what is stored of it and of the code."""

import ctypes
import os
import platform
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
# Parameters of glibc's mallopt, in bytes; 32 MiB is the most that every version takes for the second.
KEPT_FREE = {-1: 1 << 30, -3: 1 << 25}


def keep_freed_memory() -> None:
    """Have glibc reuse large blocks that were freed: pages given back to the system are cleared anew for the next tensor."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        for parameter, size in KEPT_FREE.items():
            tune(parameter, size)


def hardware(device: torch.device) -> dict[str, Any]:
    """Processor, threads, libraries and, where one is used, the GPU."""
    found: dict[str, Any] = {
        "host": platform.node(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device.type,
    }
    if device.type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    return found


def code_version() -> str:
    """Version of the project, with the commit where this is a checkout."""
    try:
        version = str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
    except (OSError, ValueError, KeyError):
        version = "unknown"
    try:
        commit = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return version
    return f"{version}+g{commit}"
