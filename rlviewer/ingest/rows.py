"""A prepared batch as rows of the tables."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from django.db.backends.utils import CursorWrapper

from rlviewer.ingest.copying import copy_binary, copy_table, take_ids
from rlviewer.ingest.preparing import PreparedBatch
from rlviewer.ingest.steps import EarlierGroup
from rlviewer.lib.text import cut_text, text_from_bytes
from rlviewer.runs.models import Group, RewardPart, Rollout, TokenChunk
from training.records import STOP_REASONS

# Characters of a parsed answer in lists; the whole one lies in the chunk.
ANSWER_CHARS = 200


def copy_rows(
    cursor: CursorWrapper,
    run_id: int,
    step_id: int,
    prepared: PreparedBatch,
    prompt_ids: list[int],
    earlier: dict[int, EarlierGroup],
) -> None:
    """Copy groups, chunks, rollouts and reward parts; groups that are there already (`earlier`, by index) grow."""
    fresh = [position for position, group in enumerate(prepared.groups) if group["index"] not in earlier]
    group_ids = np.array([earlier[g["index"]].id if g["index"] in earlier else 0 for g in prepared.groups], np.int64)
    group_ids[fresh] = take_ids(cursor, Group, len(fresh))
    copy_table(cursor, Group, _group_rows(run_id, step_id, prepared, fresh, group_ids, prompt_ids))
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
    copy_table(cursor, Rollout, _rollout_rows(run_id, step_id, prepared, rollout_ids, group_ids, chunk_ids))
    copy_table(cursor, RewardPart, _part_rows(prepared, rollout_ids))


def _group_rows(
    run_id: int,
    step_id: int,
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
            "step_id": pa.repeat(step_id, len(fresh)),
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
            "stratum_keys": pa.array([group["stratum_keys"] for group in groups], pa.string()),
            "sampling": pa.array([group["sampling"] or "{}" for group in groups], pa.string()),
            "task_seed": pa.array([group["task_seed"] for group in groups], pa.int64()),
        }
    )


def _rollout_rows(
    run_id: int,
    step_id: int,
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

    return pa.table(
        {
            "id": rollout_ids,
            "run_id": pa.repeat(run_id, count),
            "step_id": pa.repeat(step_id, count),
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
            "parsed_answer": _mapped(
                rollouts["parsed_answer"], lambda answer: cut_text(text_from_bytes(answer), ANSWER_CHARS)
            ),
            "answer_cluster": rollouts["answer_cluster"],
        }
    )


def _escaped(texts: pa.ChunkedArray) -> pa.Array:
    """Short texts as Postgres takes them; null becomes empty."""
    return pc.fill_null(_mapped(texts, lambda text: text_from_bytes(text.encode())), "")


def _mapped(values: pa.ChunkedArray, text_of: Callable[[Any], str]) -> pa.Array:
    """`text_of` each value, called once for each distinct one; null stays null."""
    encoded = values.combine_chunks().dictionary_encode()
    texts = pa.array([text_of(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


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
