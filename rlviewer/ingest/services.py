"""Batches into tables: one transaction each, safe to repeat, with the ledger and the news in it."""

from django.db import DataError, Error, IntegrityError, connection, transaction
from django.db.backends.utils import CursorWrapper

from rlviewer.ingest import ledger, steps
from rlviewer.ingest.ledger import BatchOutcome
from rlviewer.ingest.metrics import append_metrics
from rlviewer.ingest.models import ParkedBatch
from rlviewer.ingest.preparing import PreparedBatch, prepare, prepare_checked
from rlviewer.ingest.prompts import update_trackers, upsert_prompts
from rlviewer.ingest.rows import copy_rows
from rlviewer.ingest.statistics import step_statistics
from rlviewer.ingest.steps import EarlierGroup, OpenStep, Place
from rlviewer.outbox.services import announce_run
from training.records import BatchHeader, RolloutBatch


def store_batch(batch: RolloutBatch, *, source: str, sha256: str = "") -> BatchOutcome:
    """Write one batch; a batch stored before changes nothing. Bad rows are refused one by one, with reasons.

    A batch of a run or attempt that is not known here is parked whole; `parked.adopt_parked` stores it later.

    Raises:
        RecordError: nothing of the batch can be stored (a header out of bounds, a damaged table).
    """
    return ledger.known_outcome(batch.header.batch_id) or store_prepared(prepare(batch), source=source, sha256=sha256)


def store_prepared(prepared: PreparedBatch, *, source: str, sha256: str = "", announces: bool = True) -> BatchOutcome:
    """Write what `prepare` made of a batch, in one transaction.

    Locks are taken in one order everywhere: run, ledger, step, prompts, topics. A caller that stores many batches in one
    transaction announces once, at its end, since a topic stays locked until commit.
    """
    header = prepared.header
    with transaction.atomic(), connection.cursor() as cursor:
        place = _lock_run(cursor, header)
        if isinstance(place, str):
            return _park(prepared.batch, place)
        if not ledger.claim(cursor, prepared, place, source, sha256):
            known = ledger.known_outcome(header.batch_id)
            assert known is not None
            return known
        step = steps.open_step(cursor, place, header, prepared.checked)
        prompt_ids = upsert_prompts(cursor, place.project_id, prepared.groups)
        earlier = {} if step.is_new else steps.earlier_groups(step.id)
        if reasons := _collisions(prepared, earlier, prompt_ids):
            prepared = prepare_checked(prepared.batch, prepared.checked.without(reasons))
            ledger.correct(prepared)
        ledger.keep_refused(prepared)
        copy_rows(cursor, place.run_id, step.id, prepared, prompt_ids, earlier)
        sampled = int(prepared.statistics.sampled_tokens.sum())
        _write_step(cursor, step, prepared, earlier, sampled)
        append_metrics(cursor, place.run_id, place.attempt_id, header.step, prepared.checked.metrics)
        update_trackers(cursor, place.run_id, prepared.groups, prompt_ids)
        stored = prepared.checked.rollouts.num_rows
        steps.summarise_run(cursor, place.run_id, more_rollouts=stored, more_tokens=sampled)
        news = {"step": header.step, "split": header.split, "attempt": header.attempt, "rollouts": stored}
        if announces:
            announce_run(place.run_id, place.project_id, "step-stored", **news)
    return BatchOutcome(header.batch_id, prepared.batch.rollouts.num_rows, stored, len(prepared.checked.refused))


def is_passing(error: Exception) -> bool:
    """Whether the database or the machine is in trouble, so that the batch may be stored another time."""
    if isinstance(error, DataError | IntegrityError):
        return False
    # Postgres is there but will never take this: too deep, too wide, too long for an index (class 54).
    is_over_a_limit = str(getattr(error.__cause__, "sqlstate", None)).startswith("54")
    return isinstance(error, Error | MemoryError) and not is_over_a_limit


def _lock_run(cursor: CursorWrapper, header: BatchHeader) -> Place | str:
    """The batch's place, its run locked until commit; or what of it is not known here."""
    cursor.execute(
        "SELECT r.project_id, r.id, a.id FROM runs_run r LEFT JOIN runs_attempt a ON a.run_id = r.id AND a.number = %s"
        " WHERE r.uid = %s FOR NO KEY UPDATE OF r",
        [header.attempt, header.run_uid],
    )
    found = cursor.fetchone()
    if found is None:
        return f"run {header.run_uid} is not known here yet"
    return (
        Place(*found)
        if found[2] is not None
        else f"attempt {header.attempt} of run {header.run_uid} is not known here yet"
    )


def _park(batch: RolloutBatch, reason: str) -> BatchOutcome:
    header, received = batch.header, batch.rollouts.num_rows
    ledger.park(
        ParkedBatch(
            id=header.batch_id,
            run_uid=header.run_uid,
            attempt=header.attempt,
            received=received,
            reason=reason,
            payload=batch.to_bytes(),
        )
    )
    return BatchOutcome(header.batch_id, received, stored=0, parked=received, parked_because=reason)


def _collisions(prepared: PreparedBatch, earlier: dict[int, EarlierGroup], prompt_ids: list[int]) -> dict[int, str]:
    """Rollouts whose place an earlier batch of the same step has taken, with the reason."""
    if not earlier:
        return {}
    reasons = {}
    numbers = prepared.checked.rollouts.column("number").to_pylist()
    for row, (number, position) in enumerate(zip(numbers, prepared.checked.group_of.tolist(), strict=True)):
        index = prepared.groups[position]["index"]
        group = earlier.get(index)
        if group is not None and group.prompt_id != prompt_ids[position]:
            reasons[row] = f"group {index} of this step already holds another prompt"
        elif group is not None and number in group.numbers:
            reasons[row] = f"rollout {number} of group {index} was already stored by another batch"
    return reasons


def _write_step(
    cursor: CursorWrapper, step: OpenStep, prepared: PreparedBatch, earlier: dict[int, EarlierGroup], sampled: int
) -> None:
    if step.is_new:
        values = step_statistics(prepared.scores, [group["dead_cause"] for group in prepared.groups])
    else:
        grown = {group["index"] for group in prepared.groups} & earlier.keys()
        values = steps.recount(step.id, {earlier[index].id for index in grown})
    trained = int(prepared.statistics.counted_tokens[prepared.scores.kept].sum())
    if prepared.header.split != steps.TRAIN:
        trained = 0
    steps.write_statistics(cursor, step.id, values, tokens_sampled=sampled, tokens_trained=trained)
