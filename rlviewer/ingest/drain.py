"""A run's spool into the database: every waiting file stored in order, deleted once its rows are committed."""

import hashlib
import logging
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rlviewer.ingest import ledger
from rlviewer.ingest.models import ParkedBatch
from rlviewer.ingest.preparing import PreparedBatch, prepare
from rlviewer.ingest.services import is_passing, store_prepared
from rlviewer.runs.services import remember_vocabulary, uid_of
from training.records import DIGEST_BYTES, RecordError, RolloutBatch
from training.spool import fsync_folder, waiting

logger = logging.getLogger(__name__)

SPOOL = "spool"
DAMAGED_SUFFIX = ".damaged"
# A damaged file is kept in the database up to this size, a larger one beside the spool's other files.
MAX_PARKED_BYTES = 256 * 1024 * 1024


@dataclass(slots=True)
class DrainResult:
    """What one pass over a spool did; counts are of rollouts but for the first two."""

    files: int = 0
    damaged: int = 0  # files
    received: int = 0
    stored: int = 0
    refused: int = 0
    parked: int = 0


@dataclass(frozen=True, slots=True)
class _ReadFile:
    """A spool file after reading: its batch ready to store, or its bytes and why they cannot be."""

    prepared: PreparedBatch | None
    sha256: str
    data: bytes = b""
    error: str = ""


def drain_spool(run_dir: Path) -> DrainResult:
    """Store every waiting batch file of a run. A damaged file is parked with its reason and never stops the others.

    One file is read and packed in a thread while the database writes the one before.

    Raises:
        OperationalError: the database is away or full; the files that are not stored stay where they are.
    """
    spool = run_dir / SPOOL
    result = DrainResult()
    paths = list(waiting(spool))
    if not paths:
        return result
    remember_vocabulary(run_dir)
    with ThreadPoolExecutor(1, thread_name_prefix="spool") as reader:
        ahead: Future[_ReadFile | None] = reader.submit(_read, paths[0])
        for path, following in zip(paths, [*paths[1:], None], strict=True):
            read = ahead.result()
            if following is not None:
                ahead = reader.submit(_read, following)
            if read is not None:
                _store(path, read, result)
    # Once is enough: a deletion that a crash undoes brings back a file whose batch id is known.
    fsync_folder(spool)
    return result


def _read(path: Path) -> _ReadFile | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None  # another drain of the same folder was faster
    except OSError as error:
        logger.error("%s cannot be read and stays where it is: %s", path, error)
        return None
    try:
        prepared = prepare(RolloutBatch.from_bytes(data, where=path.name))
    except RecordError as error:
        return _ReadFile(None, hashlib.sha256(data).hexdigest(), data, str(error))
    except Exception as error:
        if is_passing(error):
            raise
        logger.exception("%s: a mistake in rlviewer; the batch is parked", path.name)
        return _ReadFile(None, hashlib.sha256(data).hexdigest(), data, f"{path.name}: {type(error).__name__}: {error}")
    # The file ends with the digest of everything before it, which has just been checked.
    return _ReadFile(prepared, data[-DIGEST_BYTES:].hex())


def _store(path: Path, read: _ReadFile, result: DrainResult) -> None:
    if read.prepared is None:
        _park_damaged(path, read)
        result.damaged += 1
    else:
        try:
            outcome = store_prepared(read.prepared, source="spool", sha256=read.sha256)
        except Exception as error:
            if is_passing(error):
                raise
            # A value that validation let through, or a mistake of ours: keep the batch for a person, store the others.
            logger.exception("%s: the batch cannot be stored; it is parked", path.name)
            _park_damaged(path, _ReadFile(None, read.sha256, path.read_bytes(), f"{path.name}: {error}"))
            result.damaged += 1
        else:
            result.received += outcome.received
            result.stored += 0 if outcome.was_known else outcome.stored
            result.refused += outcome.refused
            result.parked += outcome.parked
    path.unlink(missing_ok=True)
    result.files += 1


def _park_damaged(path: Path, read: _ReadFile) -> None:
    logger.error("%s", read.error)
    payload, reason = read.data, read.error
    if len(payload) > MAX_PARKED_BYTES:
        aside = path.with_name(path.name + DAMAGED_SUFFIX)
        path.replace(aside)
        payload, reason = b"", f"{reason}; the file was renamed to {aside.name}"
    batch_id = uuid.uuid5(uuid.NAMESPACE_OID, read.sha256)
    ledger.park(ParkedBatch(id=batch_id, run_uid=uid_of(path.parent.parent), reason=reason, payload=payload))
