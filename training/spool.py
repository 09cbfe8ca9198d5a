"""The spool: one batch file a step, written, fsynced, renamed. Imports no torch.

A crash of the machine can undo a rename until its folder is fsynced; the file is whole under either name, and the next
writer gives it its own.

The reader deletes a file only after its rows are committed, so a crash on either side loses nothing; the batch id makes a
second reading harmless.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from training.records import RecordError, RolloutBatch

SUFFIX = ".batch"
PART_SUFFIX = ".part"


def write_bytes_durably(path: Path, data: bytes) -> None:
    """Write `data` so that it is there after a crash."""
    write_bytes(path, data)
    fsync_folder(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` so that after a crash `path` holds all of it or what it held before."""
    part = f"{path}{PART_SUFFIX}"
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        # A full disk: half a file must not keep the space.
        Path(part).unlink(missing_ok=True)
        raise


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
    """Write one batch into the spool, for certain, and return its path."""
    path = write(folder, batch)
    fsync_folder(folder)
    return path


def write(folder: Path, batch: RolloutBatch) -> Path:
    """Write one batch into the spool and return its path. Until the folder is fsynced, a crash of the machine can undo the name."""
    path = folder / file_name(batch)
    write_bytes(path, batch.to_bytes())
    return path


def finish_unfinished(folder: Path) -> None:
    """Name the whole batches that a killed writer left behind, remove the others; only for the one writer of this spool."""
    for part in folder.glob(f"*{SUFFIX}{PART_SUFFIX}"):
        try:
            RolloutBatch.from_bytes(part.read_bytes(), where=part.name)
        except RecordError:
            part.unlink(missing_ok=True)
        else:
            os.replace(part, part.with_suffix(""))


def waiting(folder: Path) -> Iterator[Path]:
    """Finished batch files, oldest first."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except FileNotFoundError:
        return
    for name in names:
        yield folder / name
