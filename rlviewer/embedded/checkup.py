"""Look at every part that rlviewer needs; each finding says what was found and, when it is wrong, what to do."""

import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from importlib import metadata
from pathlib import Path

import psutil
import psycopg
import redis
from django.apps import apps
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from rlviewer.embedded import paths
from rlviewer.embedded.processes import Lock

GIB = 1024**3
SMALLEST_POSTGRES = 15
FREE_CONNECTIONS = 20
FREE_DISK_BYTES = 2 * GIB
FREE_MEMORY_BYTES = 1 * GIB


class Level(Enum):
    OK = "ok"
    NOTE = "note"  # works without it
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    level: Level
    part: str
    found: str
    advice: str = ""


def judge(part: str, found: str, *, fine: bool, advice: str, otherwise: Level = Level.PROBLEM) -> Finding:
    return Finding(Level.OK, part, found) if fine else Finding(otherwise, part, found, advice)


def check_postgres() -> Iterator[Finding]:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT name, setting FROM pg_settings")
            values = dict(cursor.fetchall())
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
            used = cursor.fetchone()[0]
            cursor.execute("SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'vector')")
            has_vectors = cursor.fetchone()[0]
            plan = MigrationExecutor(connection).migration_plan(MigrationExecutor(connection).loader.graph.leaf_nodes())
    except (DatabaseError, psycopg.Error) as error:
        advice = "start it with make run" if settings.USES_EMBEDDED_POSTGRES else "check DATABASE_URL and that server"
        yield Finding(Level.PROBLEM, "postgres", f"does not answer: {str(error).splitlines()[0]}", advice)
        return
    version = values["server_version"]
    yield judge(
        "postgres",
        f"version {version}",
        fine=int(version.split(".")[0]) >= SMALLEST_POSTGRES,
        advice="use PostgreSQL 18",
    )
    off = [name for name in ("fsync", "full_page_writes") if values[name] != "on"]
    off += (
        []
        if values["synchronous_commit"] in {"on", "remote_apply", "remote_write", "local"}
        else ["synchronous_commit"]
    )
    yield judge(
        "postgres durability",
        f"{', '.join(off)} off" if off else "what is acknowledged survives a power loss",
        fine=not off,
        advice=f"set {', '.join(f'{name} = on' for name in off)}: a crash loses acknowledged rollouts",
    )
    free = int(values["max_connections"]) - int(values["superuser_reserved_connections"]) - used
    yield judge(
        "postgres connections",
        f"{used} used, {free} free of {values['max_connections']}",
        fine=free >= FREE_CONNECTIONS,
        advice="raise max_connections, or lower RLVIEWER_DB_POOL",
        otherwise=Level.NOTE,
    )
    yield judge(
        "postgres vectors",
        f"extension vector {'there' if has_vectors else 'missing'}",
        fine=has_vectors,
        advice="for clusters and similar rollouts have its administrator run CREATE EXTENSION vector in this database",
        otherwise=Level.NOTE,
    )
    yield judge(
        "schema",
        f"{len(plan)} migrations not applied" if plan else "up to date",
        fine=not plan,
        advice="run manage.py migrate (make run does)",
    )


def check_redis() -> Iterator[Finding]:
    url = settings.REDIS_URL.replace("redis+socket://", "unix://")
    try:
        client = redis.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=2)
        info = client.info()
    except redis.RedisError as error:
        advice = "start it with make run" if settings.USES_EMBEDDED_REDIS else "check REDIS_URL and that server"
        # Launches wait in Postgres until it is back.
        yield Finding(Level.PROBLEM, "redis", f"does not answer: {error}", advice)
        return
    policy = info.get("maxmemory_policy", "noeviction")
    found = f"version {info.get('valkey_version') or info['redis_version']}, policy {policy}"
    yield judge(
        "redis", found, fine=policy == "noeviction", advice="set maxmemory-policy noeviction", otherwise=Level.NOTE
    )


def check_workers() -> Iterator[Finding]:
    lately = timezone.now() - timedelta(seconds=settings.SILENT_SECONDS)
    try:
        workers = list(apps.get_model("launch", "Worker").objects.filter(seen_at__gte=lately))
    except (DatabaseError, psycopg.Error):
        return
    names = ", ".join(f"{worker.host}:{worker.pid} ({worker.queues})" for worker in workers)
    advice = "launched runs wait until a worker is there: make run starts one"
    yield judge("workers", names or "none seen lately", fine=bool(workers), advice=advice, otherwise=Level.NOTE)


def check_ledger() -> Iterator[Finding]:
    """What was recorded and stands in no list."""
    try:
        refused = apps.get_model("ingest", "RefusedRow").objects.count()
        parked = apps.get_model("ingest", "ParkedBatch").objects.count()
    except (DatabaseError, psycopg.Error):
        return
    yield judge(
        "ledger",
        f"{refused} rollouts refused, {parked} batches parked",
        fine=not refused and not parked,
        advice="reasons stand on the Steps tab of each run and, of no run, on the page Workers; manage.py retry_parked"
        " tries parked batches again",
        otherwise=Level.NOTE,
    )


def check_disk() -> Iterator[Finding]:
    disk = shutil.disk_usage(settings.HOME if settings.HOME.exists() else settings.BASE_DIR)
    yield judge(
        "disk",
        f"{disk.free / GIB:.1f} GiB free of {disk.total / GIB:.0f} at {settings.HOME}",
        fine=disk.free >= FREE_DISK_BYTES,
        advice="a million rollouts of 512 tokens need about 10 GB: free some space or move RLVIEWER_HOME",
    )
    secret = paths.secret_key_file(settings.HOME)
    if secret.exists():
        mode = stat.S_IMODE(secret.stat().st_mode)
        yield judge("secret key", f"mode {mode:04o}", fine=mode & 0o077 == 0, advice=f"chmod 600 {secret}")


def check_memory() -> Iterator[Finding]:
    available = psutil.virtual_memory().available
    yield judge(
        "memory",
        f"{available / GIB:.1f} GiB available",
        fine=available >= FREE_MEMORY_BYTES,
        advice="training the demo needs about 1 GiB",
        otherwise=Level.NOTE,
    )
    lock = Lock(settings.HOME, "stack")
    holder = lock.holder()
    if holder is None or not lock.is_held():
        yield Finding(Level.NOTE, "stack", f"does not run on {settings.HOME}", "start it with make run")
        return
    sizes = proportional_memory(holder.pid)
    parts = ", ".join(f"{name} {size / 1e6:.0f}" for name, size in sizes.items())
    yield Finding(Level.OK, "stack", f"{holder.address}; {sum(sizes.values()) / 1e6:.0f} MB in all: {parts}")


def proportional_memory(pid: int) -> dict[str, int]:
    """Bytes of the process and everything below it, by program, memory that they share counted once (PSS)."""
    sizes: dict[str, int] = {}
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            words = " ".join(process.cmdline())
            size = process.memory_full_info().pss
        except psutil.Error:
            continue
        known = {"embedded.supervise": "supervisor", "embedded.web": "web", "celery": "worker", "training": "trainer"}
        name = next((name for mark, name in known.items() if mark in words), process.name())
        sizes[name] = sizes.get(name, 0) + size
    return sizes


def check_training() -> Iterator[Finding]:
    gpus = sorted(Path("/dev").glob("nvidia[0-9]*"))
    yield judge(
        "gpu",
        f"{len(gpus)} NVIDIA" if gpus else "none",
        fine=bool(gpus),
        advice="training runs on the CPU",
        otherwise=Level.NOTE,
    )
    for package, level, advice in (
        ("torch", Level.PROBLEM, "make run installs it (requirements/train.txt)"),
        ("transformers", Level.PROBLEM, "make run installs it (requirements/train.txt)"),
        ("vllm", Level.NOTE, "only needed to sample with vLLM: make vllm"),
    ):
        version = installed_version(package) or installed_version(f"{package}-cpu")
        yield judge(package, version or "not installed", fine=bool(version), advice=advice, otherwise=level)


def check_browser() -> Iterator[Finding]:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    advice = "only needed by make test: apt-get install -y chromium"
    yield judge("browser for tests", found or "none", fine=bool(found), advice=advice, otherwise=Level.NOTE)


def installed_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def findings() -> Iterator[Finding]:
    for check in (
        check_postgres, check_redis, check_workers, check_ledger, check_disk, check_memory, check_training, check_browser,
    ):  # fmt: skip
        yield from check()
