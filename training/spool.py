"""The spool: one batch file a step, written, fsynced, renamed. Imports no torch.

The reader deletes a file only after its rows are committed, so a crash on either side loses nothing; the batch id makes a
second reading harmless.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from training.records import RolloutBatch

SUFFIX = ".batch"
PART_SUFFIX = ".part"


def write_bytes_durably(path: Path, data: bytes) -> None:
    """Write `data` so that after a crash `path` holds all of it or what it held before."""
    part = path.with_name(path.name + PART_SUFFIX)
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        # A full disk: half a file must not keep the space.
        part.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Make a rename or a deletion in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_name(batch: RolloutBatch) -> str:
    """Sorts in the order of writing: attempt, then step, the evaluation of a checkpoint before the step after it."""
    header = batch.header
    order = 0 if header.split != "train" else 1
    return f"{header.attempt:04d}-{header.step:08d}-{order}-{header.batch_id}{SUFFIX}"


def put(folder: Path, batch: RolloutBatch) -> Path:
    """Write one batch into the spool and return its path."""
    path = folder / file_name(batch)
    write_bytes_durably(path, batch.to_bytes())
    return path


def discard_unfinished(folder: Path) -> None:
    """Remove what a killed writer left behind; only for the one writer of this spool."""
    for part in folder.glob(f"*{SUFFIX}{PART_SUFFIX}"):
        part.unlink(missing_ok=True)


def waiting(folder: Path) -> Iterator[Path]:
    """Finished batch files, oldest first."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except FileNotFoundError:
        return
    for name in names:
        yield folder / name
