"""Where the embedded services keep their files, worked out from the data folder alone."""

import hashlib
from pathlib import Path
from urllib.parse import quote

# A Unix socket's path may hold 107 bytes; Postgres adds "/.s.PGSQL.5432" to the folder.
SOCKET_PATH_LIMIT = 107 - len("/.s.PGSQL.5432.lock")


def secret_key_file(home: Path) -> Path:
    return home / "secrets" / "django"


def postgres_data(home: Path) -> Path:
    return home / "postgres"


def postgres_sockets(home: Path) -> Path:
    """Folder of Postgres' socket: inside the data folder, or a short private one when that path is too long."""
    inside = home / "sockets" / "pg"
    if len(str(inside).encode()) <= SOCKET_PATH_LIMIT:
        return inside
    return Path("/tmp") / f"rlviewer-{hashlib.sha256(str(home).encode()).hexdigest()[:16]}" / "pg"  # noqa: S108


def redis_socket(home: Path) -> Path:
    return postgres_sockets(home).parent / "redis" / "redis.sock"


def postgres_url(home: Path) -> str:
    return f"postgresql://rlviewer@/rlviewer?host={quote(str(postgres_sockets(home)), safe='')}"


def redis_url(home: Path) -> str:
    return f"redis+socket://{redis_socket(home)}"


def runs(home: Path) -> Path:
    """One folder a run: config.toml, spool/, checkpoints/, attempts/."""
    return home / "runs"


def logs(home: Path) -> Path:
    """What each service prints, one file a service."""
    return home / "logs"


def lock(home: Path, name: str) -> Path:
    """Held (flock) by whoever runs `name` on this data folder: `stack`, `postgres` or `redis`."""
    return home / "locks" / name
