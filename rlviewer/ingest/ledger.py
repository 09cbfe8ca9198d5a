"""What became of every batch: received = stored + refused + parked."""

import io
from dataclasses import dataclass

import pyarrow as pa
from django.db.backends.utils import CursorWrapper

from rlviewer.ingest.models import Batch, ParkedBatch, RefusedRow
from rlviewer.ingest.preparing import PreparedBatch
from rlviewer.ingest.steps import Place
from rlviewer.lib.text import bytes_from_str, text_from_bytes


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What became of one batch's rollouts."""

    batch_id: str
    received: int
    stored: int
    refused: int = 0
    parked: int = 0
    was_known: bool = False
    parked_because: str = ""  # why all of it is parked, which counts no rollouts when its file is damaged


def known_outcome(batch_id: str) -> BatchOutcome | None:
    """The outcome of a batch stored before; None when it is new."""
    counts = Batch.objects.filter(pk=batch_id).values_list("received", "stored", "refused", "parked").first()
    return None if counts is None else BatchOutcome(batch_id, *counts, was_known=True)


def claim(cursor: CursorWrapper, prepared: PreparedBatch, place: Place, source: str, sha256: str) -> bool:
    """Enter the batch; False when it was stored before. Waits for a transaction that is storing it right now."""
    header, refused = prepared.header, len(prepared.checked.refused)
    received = prepared.batch.rollouts.num_rows
    cursor.execute(
        "INSERT INTO ingest_batch (id, run_id, attempt_id, step_index, split, source, received, stored, refused, parked,"
        " sha256, stored_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, 0, %s, now()) ON CONFLICT (id) DO NOTHING",
        [
            header.batch_id, place.run_id, place.attempt_id, header.step, header.split, source, received,
            received - refused, refused, sha256,
        ],
    )  # fmt: skip
    return cursor.rowcount == 1


def correct(prepared: PreparedBatch) -> None:
    """Set the counts of a claimed batch after more of its rows were refused."""
    received, refused = prepared.batch.rollouts.num_rows, len(prepared.checked.refused)
    Batch.objects.filter(pk=prepared.header.batch_id).update(refused=refused, stored=received - refused)


def keep_refused(prepared: PreparedBatch) -> None:
    """Keep every refused row with its reason and its bytes."""
    rows = [
        RefusedRow(
            batch_id=prepared.header.batch_id,
            row_index=refusal.row_index,
            reason=text_from_bytes(bytes_from_str(refusal.reason)),
            payload=_stream_of(prepared.batch.rollouts.slice(refusal.row_index, 1)),
        )
        for refusal in prepared.checked.refused
    ]
    RefusedRow.objects.bulk_create(rows, batch_size=100)


def _stream_of(rows: pa.Table) -> bytes:
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    return stream.getvalue()


def park(parked: ParkedBatch) -> None:
    """Keep a whole batch that cannot be stored; parking it again changes nothing."""
    ParkedBatch.objects.bulk_create([parked], ignore_conflicts=True)
