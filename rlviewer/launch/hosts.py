"""Which process is meant by a number: pids are reused, start times are not."""

import os
import secrets
import socket
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_name() -> str:
    return socket.gethostname()


def process_state(pid: int) -> str:
    """One letter (R running, S sleeping, T stopped, Z ended, ...), "" when there is no such process."""
    fields = _stat_fields(pid)
    return fields[0] if fields else ""


def group_cpu_seconds(group: int) -> float:
    """CPU time that the processes of a group have used; reads all of /proc, a few milliseconds."""
    ticks = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat_fields(int(name))) and int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def oom_kills() -> int:
    """How often this machine's kernel has killed for lack of memory; -1 when it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return -1
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), -1)


def birth_mark(pid: int) -> str:
    """Equal only for the same process: its start in clock ticks and the boot it belongs to. "" when it is gone."""
    fields = _stat_fields(pid)
    if not fields or fields[0] in "ZX":
        return ""
    return f"{BOOT_ID.read_text()[:8]}.{fields[19]}"


def new_holder() -> str:
    """This process as the holder of one lease: `host:pid:birth:random`."""
    return f"{host_name()}:{os.getpid()}:{birth_mark(os.getpid())}:{secrets.token_hex(4)}"


def is_dead_here(holder: str) -> bool:
    """True when `holder` was a process of this host and is gone; False when it lives or belongs to another host."""
    host, pid, birth, _ = holder.rsplit(":", 3)
    return host == host_name() and birth_mark(int(pid)) != birth


def is_this_process(holder: str) -> bool:
    host, pid, birth, _ = holder.rsplit(":", 3)
    return (host, int(pid)) == (host_name(), os.getpid()) and birth == birth_mark(os.getpid())


def gpu_names() -> list[str]:
    """Models of the NVIDIA GPUs of this host, asked of the driver without loading CUDA."""
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        names.append(lines.get("Model", "NVIDIA GPU").strip())
    return names


def _stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat after the command's name, which may hold spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
