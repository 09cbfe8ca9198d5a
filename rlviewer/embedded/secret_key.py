"""The secret that signs sessions: made once, kept in the data folder, never shipped."""

import os
import secrets
from pathlib import Path

from rlviewer.embedded import paths


def ensure_secret_key(home: Path) -> None:
    """Write `HOME/secrets/django` (0600) unless it is there; written whole or not at all."""
    path = paths.secret_key_file(home)
    if path.exists() and path.stat().st_size > 0:
        return
    partial = path.with_suffix(f".{os.getpid()}")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_urlsafe(64))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
