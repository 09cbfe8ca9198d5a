"""Batches into tables: one transaction each, safe to repeat, with the ledger and the news in it."""

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

from rlviewer.ingest import ledger, steps
from rlviewer.ingest.copying import copy_binary, copy_table, take_ids
from rlviewer.ingest.ledger import BatchOutcome
from rlviewer.ingest.metrics import append_metrics
from rlviewer.ingest.models import Batch, ParkedBatch
from rlviewer.ingest.preparing import PreparedBatch, prepare, prepare_checked
from rlviewer.ingest.prompts import update_trackers, upsert_prompts
from rlviewer.ingest.statistics import step_statistics
from rlviewer.ingest.steps import EarlierGroup
from rlviewer.lib.json import dumps
from rlviewer.lib.text import cut_text, text_from_bytes
from rlviewer.outbox.services import announce_run
from rlviewer.runs.models import Attempt, Group, RewardPart, Rollout, Run, Step, TokenChunk
from training.records import STOP_REASONS, RecordError, RolloutBatch

logger = logging.getLogger(__name__)

# Characters of a parsed answer in lists; the whole one lies in the chunk.
ANSWER_CHARS = 200


def store_batch(batch: RolloutBatch, *, source: str, sha256: str = "") -> BatchOutcome:
    """Write one batch; a batch stored before changes nothing. Bad rows are refused one by one, with reasons.

    A batch of a run or attempt that is not known here is parked whole; `adopt_parked` stores it later.

    Raises:
        RecordError: nothing of the batch can be stored (a header out of bounds, a damaged table).
    """
    return ledger.known_outcome(batch.header.batch_id) or store_prepared(prepare(batch), source=source, sha256=sha256)


def store_prepared(prepared: PreparedBatch, *, source: str, sha256: str = "") -> BatchOutcome:
    """Write what `prepare` made of a batch, in one transaction.

    Locks are taken in one order everywhere: run, ledger, step, prompts, topics.
    """
    header = prepared.header
    with transaction.atomic(), connection.cursor() as cursor:
        run = Run.objects.select_for_update(no_key=True).filter(uid=header.run_uid).only("id", "project_id").first()
        attempt = Attempt.objects.filter(run=run, number=header.attempt).first() if run else None
        if run is None or attempt is None:
            return _park(prepared.batch, "run" if run is None else f"attempt {header.attempt} of the run")
        if not ledger.claim(cursor, prepared, run.id, attempt.id, source, sha256):
            known = ledger.known_outcome(header.batch_id)
            assert known is not None
            return known
        step, is_new = steps.open_step(attempt, header, prepared.checked.notes)
        prompt_ids = upsert_prompts(cursor, run.project_id, prepared.groups)
        earlier = {} if is_new else steps.earlier_groups(step)
        if reasons := _collisions(prepared, earlier, prompt_ids):
            prepared = prepare_checked(prepared.batch, prepared.checked.without(reasons))
            refused = len(prepared.checked.refused)
            received = prepared.batch.rollouts.num_rows
            Batch.objects.filter(pk=header.batch_id).update(refused=refused, stored=received - refused)
        ledger.keep_refused(prepared)
        _copy_rows(cursor, run.id, step, prepared, prompt_ids, earlier)
        grown = {group["index"] for group in prepared.groups} & earlier.keys()
        _write_step(step, prepared, is_new, {earlier[index].id for index in grown})
        append_metrics(cursor, run.id, attempt.id, header.step, prepared.checked.metrics)
        update_trackers(cursor, run.id, prepared.groups, prompt_ids)
        stored = prepared.checked.rollouts.num_rows
        steps.summarise_run(run.id, more_rollouts=stored, more_tokens=int(prepared.statistics.sampled_tokens.sum()))
        announce_run(
            run.id, run.project_id, "step-stored", step=header.step, split=header.split, attempt=header.attempt
        )
    return BatchOutcome(header.batch_id, prepared.batch.rollouts.num_rows, stored, len(prepared.checked.refused))


def adopt_parked(run: Run) -> int:
    """Store the batches that came before their run or attempt was known; returns how many were stored."""
    adopted = 0
    for parked_id in ParkedBatch.objects.filter(run_uid=run.uid).order_by("parked_at").values_list("pk", flat=True):
        with transaction.atomic():
            parked = ParkedBatch.objects.select_for_update(skip_locked=True).filter(pk=parked_id).first()
            if parked is None:
                continue
            try:
                batch = RolloutBatch.from_bytes(bytes(parked.payload), where=f"parked batch {parked.pk}")
                outcome = store_batch(batch, source="parked")
            except RecordError as error:
                logger.warning("%s", error)
                ParkedBatch.objects.filter(pk=parked.pk).update(run_uid=None, reason=str(error))
                continue
            if not outcome.parked:
                parked.delete()
                adopted += 1
    return adopted


def _park(batch: RolloutBatch, unknown: str) -> BatchOutcome:
    header, received = batch.header, batch.rollouts.num_rows
    ledger.park(
        header.batch_id,
        run_uid=header.run_uid,
        received=received,
        reason=f"{unknown} {header.run_uid} is not known here yet",
        payload=batch.to_bytes(),
    )
    return BatchOutcome(header.batch_id, received, stored=0, parked=received)


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


def _copy_rows(
    cursor: CursorWrapper,
    run_id: int,
    step: Step,
    prepared: PreparedBatch,
    prompt_ids: list[int],
    earlier: dict[int, EarlierGroup],
) -> None:
    fresh = [position for position, group in enumerate(prepared.groups) if group["index"] not in earlier]
    group_ids = np.array([earlier[g["index"]].id if g["index"] in earlier else 0 for g in prepared.groups], np.int64)
    group_ids[fresh] = take_ids(cursor, Group, len(fresh))
    copy_table(cursor, Group, _group_rows(run_id, step, prepared, fresh, group_ids, prompt_ids))
    if not prepared.chunks:
        return
    chunk_ids = take_ids(cursor, TokenChunk, len(prepared.chunks))
    first_part = [earlier[g["index"]].parts if g["index"] in earlier else 0 for g in prepared.groups]
    copy_binary(
        cursor,
        TokenChunk,
        {"id": "int8", "group_id": "int8", "part": "int2", "kind": "varchar", "rollout_count": "int2",
         "payload": "bytea", "sha256": "bytea"},
        (
            (chunk_id, int(group_ids[c.group]), first_part[c.group] + c.part, "sampled", c.stop - c.start, c.payload,
             c.sha256)
            for chunk_id, c in zip(chunk_ids.tolist(), prepared.chunks, strict=True)
        ),
    )  # fmt: skip
    rollout_ids = take_ids(cursor, Rollout, prepared.checked.rollouts.num_rows)
    copy_table(cursor, Rollout, _rollout_rows(run_id, step, prepared, rollout_ids, group_ids, chunk_ids))
    copy_table(cursor, RewardPart, _part_rows(prepared, rollout_ids))


def _group_rows(
    run_id: int,
    step: Step,
    prepared: PreparedBatch,
    fresh: list[int],
    group_ids: npt.NDArray[np.int64],
    prompt_ids: list[int],
) -> pa.Table:
    groups = [prepared.groups[position] for position in fresh]

    def floats(name: str) -> pa.Array:
        return pa.array([group[name] for group in groups], pa.float64())

    return pa.table(
        {
            "id": group_ids[fresh],
            "run_id": pa.repeat(run_id, len(fresh)),
            "step_id": pa.repeat(step.id, len(fresh)),
            "prompt_id": pa.array([prompt_ids[position] for position in fresh], pa.int64()),
            "index": pa.array([group["index"] for group in groups], pa.int32()),
            "size_asked": pa.array([group["size_asked"] for group in groups], pa.int32()),
            "size_got": pa.array([group["size_got"] for group in groups], pa.int32()),
            "reward_mean": floats("reward_mean"),
            "reward_std": floats("reward_std"),
            "success_share": floats("success_share"),
            "dead_cause": pa.array([group["dead_cause"] for group in groups], pa.string()),
            "kept": pa.array([group["kept"] is not False for group in groups], pa.bool_()),
            "drop_reason": pa.array([group["drop_reason"] or "" for group in groups], pa.string()),
            "stratum_keys": pa.array([_json_or_null(group["stratum_keys"]) for group in groups], pa.string()),
            "sampling": pa.array([dumps(group["sampling"] or {}) for group in groups], pa.string()),
            "task_seed": pa.array([group["task_seed"] for group in groups], pa.int64()),
        }
    )


def _json_or_null(value: Any) -> str | None:
    return None if value is None else dumps(value)


def _rollout_rows(
    run_id: int,
    step: Step,
    prepared: PreparedBatch,
    rollout_ids: npt.NDArray[np.int64],
    group_ids: npt.NDArray[np.int64],
    chunk_ids: npt.NDArray[np.int64],
) -> pa.Table:
    rollouts, statistics, count = prepared.checked.rollouts, prepared.statistics, len(rollout_ids)
    sizes = [chunk.stop - chunk.start for chunk in prepared.chunks]
    starts = np.repeat([chunk.start for chunk in prepared.chunks], sizes)

    def null_for_nan(values: npt.NDArray[np.float64]) -> pa.Array:
        return pa.array(values, mask=np.isnan(values))

    answers = [
        None if a is None else cut_text(text_from_bytes(a), ANSWER_CHARS) for a in rollouts["parsed_answer"].to_pylist()
    ]
    return pa.table(
        {
            "id": rollout_ids,
            "run_id": pa.repeat(run_id, count),
            "step_id": pa.repeat(step.id, count),
            "group_id": group_ids[prepared.checked.group_of],
            "chunk_id": np.repeat(chunk_ids, sizes),
            "position": np.arange(count) - starts,
            "number": rollouts["number"],
            "reward": rollouts["reward"],
            "advantage": rollouts["advantage"],
            "correct": rollouts["correct"],
            "kept": pc.fill_null(rollouts["kept"], True),
            "drop_reason": _escaped(rollouts["drop_reason"]),
            "stop_reason": pc.index_in(rollouts["stop_reason"], value_set=pa.array(STOP_REASONS)),
            "length_tokens": statistics.length_tokens,
            "policy_version": rollouts["policy_version"],
            "staleness_steps": rollouts["staleness_steps"],
            "entropy_mean": null_for_nan(statistics.entropy_mean),
            "logprob_mean": null_for_nan(statistics.logprob_mean),
            "clip_share": null_for_nan(statistics.clip_share),
            "parsed_answer": pa.array(answers, pa.string()),
            "answer_cluster": rollouts["answer_cluster"],
        }
    )


def _escaped(texts: pa.ChunkedArray) -> pa.Array:
    """Short texts as Postgres takes them; null becomes empty."""
    return pa.array([text_from_bytes(text.encode()) if text else "" for text in texts.to_pylist()], pa.string())


def _part_rows(prepared: PreparedBatch, rollout_ids: npt.NDArray[np.int64]) -> pa.Table:
    spans = prepared.checked.spans
    owner = spans["rollout"].to_numpy()
    # Spans lie in the order of their rollouts; a part's number is its distance from the first of its rollout.
    part = np.arange(len(owner)) - np.searchsorted(owner, owner)
    return pa.table(
        {
            "rollout_id": rollout_ids[owner],
            "part": part,
            "token_start": spans["token_start"],
            "token_end": spans["token_end"],
            "value": spans["value"],
            "kind": spans["kind"],
            "name": _escaped(spans["name"]),
            "version": _escaped(spans["version"]),
        }
    )


def _write_step(step: Step, prepared: PreparedBatch, is_new: bool, grown: set[int]) -> None:
    statistics, of = prepared.statistics, prepared.scores
    if is_new:
        values = step_statistics(of, [group["dead_cause"] for group in prepared.groups])
    else:
        values = steps.recount(step, grown)
    trained = int(statistics.counted_tokens[of.kept].sum()) if step.split == steps.TRAIN else 0
    values["tokens_sampled"] = step.tokens_sampled + int(statistics.sampled_tokens.sum())
    values["tokens_trained"] = step.tokens_trained + trained
    Step.objects.filter(pk=step.pk).update(**values)
