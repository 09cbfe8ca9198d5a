"""Which user the embedded services run as, and the folders they own."""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rlviewer.embedded import paths


class FolderError(RuntimeError):
    """A folder belongs to somebody else, or a user has no name; the text says what to do."""


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int
    name: str

    @classmethod
    def of(cls, uid: int) -> Self:
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            raise FolderError(
                f"user id {uid} has no name in /etc/passwd, which Postgres needs; add one or set DATABASE_URL"
            ) from None
        return cls(entry.pw_uid, entry.pw_gid, entry.pw_name)


def server_account(home: Path) -> Account:
    """Who runs Postgres and Redis: ourselves, or an unprivileged user when we are root, which Postgres refuses."""
    me = os.geteuid()
    data = paths.postgres_data(home)
    owner = data.stat().st_uid if data.exists() else None
    if me != 0:
        if owner not in (None, me):
            raise FolderError(
                f"{data} belongs to user id {owner}, not to you ({me}): run as that user, or set RLVIEWER_HOME"
            )
        return Account.of(me)
    if owner:
        return Account.of(owner)
    for name in ("postgres", "nobody"):
        try:
            return Account.of(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue
    raise FolderError("Postgres refuses to run as root and there is no user postgres or nobody: add one")


def make_folder(path: Path, mode: int, owner: Account | None = None) -> None:
    """Make `path` with exactly `mode`; the mode of a folder that is already there is not ours to change."""
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        return
    path.chmod(mode)
    if owner is not None and owner.uid != os.geteuid():
        os.chown(path, owner.uid, owner.gid)


def make_private_folder(path: Path, owner: Account) -> None:
    """A 0700 folder of `owner`'s. One that anybody else made, or may enter, is refused."""
    make_folder(path, 0o700, owner)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner.uid or found.st_mode & 0o077:
        raise FolderError(f"{path} must be a folder of {owner.name}'s with mode 0700: remove it and start again")


def make_home(home: Path) -> Account:
    """Make the data folder and what every service needs in it; return who runs the servers.

    Root's servers run as another user, who may pass through the data folder but not list it.
    """
    through = 0o711 if os.geteuid() == 0 else 0o700
    home.parent.mkdir(parents=True, exist_ok=True)
    make_folder(home, through)
    account = server_account(home)
    for name in ("secrets", "locks", "logs", "runs", "static"):
        make_folder(home / name, 0o700)
    sockets = paths.postgres_sockets(home).parent
    make_folder(sockets, through)
    found = sockets.lstat()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid in (os.geteuid(), account.uid)
    if not ours or found.st_mode & 0o022:
        raise FolderError(f"{sockets} must be a folder that only you may write to: remove it and start again")
    make_private_folder(paths.postgres_sockets(home), account)
    make_private_folder(paths.redis_socket(home).parent, account)
    return account
