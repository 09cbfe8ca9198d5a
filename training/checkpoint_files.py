"""Checkpoints as folders on a disk: which there are, which are whole, and which the clean-up spares. Imports no torch."""

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = re.compile(r"step-(\d{8})")
PART_SUFFIX = ".part"
# A file beside the folder, so that it outlives a checkpoint that is written anew.
KEEP_SUFFIX = ".keep"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    path: Path
    step: int  # steps trained
    size_bytes: int
    sha256: str  # of the manifest, so of everything

    def summary(self) -> dict[str, Any]:
        return {"step": self.step, "size_bytes": self.size_bytes, "sha256": self.sha256}


def folder_of(run_folder: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return run_folder / "checkpoints"


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def described(path: Path) -> Checkpoint:
    match = NAME.fullmatch(path.name)
    assert match is not None
    return Checkpoint(
        path=path,
        step=int(match[1]),
        size_bytes=sum(file.stat().st_size for file in path.iterdir()),
        sha256=digest(path / MANIFEST),
    )


def is_there(path: Path) -> bool:
    """Whether a checkpoint with a manifest lies at `path`; its other files are checked when it is loaded."""
    return (path / MANIFEST).is_file()


def listed(folder: Path) -> list[Checkpoint]:
    """Checkpoints that have a manifest, oldest first. Their files are checked when one is loaded."""
    if not folder.is_dir():
        return []
    names = sorted(entry.name for entry in folder.iterdir() if NAME.fullmatch(entry.name))
    return [described(folder / name) for name in names if is_there(folder / name)]


def newest_intact(folder: Path) -> Checkpoint | None:
    """The newest checkpoint whose files all have the digests of its manifest; None if there is none."""
    return next((one for one in reversed(listed(folder)) if is_intact(one.path)), None)


def is_intact(path: Path) -> bool:
    """Whether all files have the digests of the manifest."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest) and all(digest(path / name) == wanted for name, wanted in manifest.items())
    except (OSError, ValueError, AttributeError):
        return False


def digest(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def keep(path: Path) -> bool:
    """Have the clean-up spare a checkpoint; False: it is gone."""
    marker = _marker(path)
    marker.touch()
    if is_there(path):
        return True
    marker.unlink(missing_ok=True)
    return False


def release(path: Path) -> None:
    """Leave a checkpoint to the clean-up again."""
    _marker(path).unlink(missing_ok=True)


def is_kept(path: Path) -> bool:
    return _marker(path).exists()


def clean_up(folder: Path, *, newest: int) -> None:
    """Remove all but the newest so many, and what somebody keeps."""
    for old in listed(folder)[:-newest]:
        if is_kept(old.path):
            continue
        aside = old.path.with_name(old.path.name + PART_SUFFIX)
        discard(aside)
        os.replace(old.path, aside)
        if is_kept(old.path):  # somebody asked for it in this moment
            os.replace(aside, old.path)
        else:
            discard(aside)


def discard(path: Path) -> None:
    """Remove a checkpoint; its manifest goes first, so that half of one is never taken for a whole."""
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def discard_unfinished(folder: Path) -> None:
    """Remove what a killed trainer left behind."""
    for part in folder.glob(f"step-*{PART_SUFFIX}"):
        discard(part)


def _marker(path: Path) -> Path:
    return path.with_name(path.name + KEEP_SUFFIX)
