"""From a step's tensors to its batch file. Whole columns at once: recording must not cost what sampling does.

The loop makes the columns, the writer's thread does the rest. Two threads that both run Python wait for each other at every
call; what the thread does (compressing, the checksum, the disk) leaves the interpreter to the loop.
"""

import datetime
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from training import spool
from training.records import (
    EXTRA_PREFIX,
    GROUPS,
    METRICS,
    REWARD_SPANS,
    ROLLOUTS,
    TOKEN_COLUMNS,
    BatchHeader,
    RolloutBatch,
)
from training.rollouts import GENERATED, Rollouts, ScoredRollouts
from training.tasks.base import STEP_END, OracleStep

TOKEN_TYPES = {name: kind.to_pandas_dtype() for name, kind in TOKEN_COLUMNS.items()}
# json.dumps with an option makes an encoder for every call.
_json = json.JSONEncoder(allow_nan=False).encode


class Recorder:
    """Writes batches on a thread of its own, in order, one at a time, while the next step already samples.

    `flush` returns once everything handed over is durable; a checkpoint is written only after it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        spool.discard_unfinished(folder)
        self._folder = folder
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="spool-writer")
        self._pending: Future[None] | None = None
        # What the batch before took on the writer's thread: from start to end, and the processor's part of it.
        self.write_seconds = 0.0
        self.write_cpu_seconds = 0.0

    def put(self, batch: RolloutBatch, metrics: Mapping[str, float]) -> None:
        """Hand a batch over with the metrics of its step; waits while the one before is still being written.

        Raises:
            OSError: the batch before could not be written.
        """
        self.flush()
        self._pending = self._writer.submit(self._write, batch, metrics)

    def flush(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def close(self) -> None:
        """Wait for what was handed over, then let the writer go.

        Raises:
            OSError: the last batch could not be written.
        """
        try:
            self.flush()
        finally:
            self._writer.shutdown()

    def _write(self, batch: RolloutBatch, metrics: Mapping[str, float]) -> None:
        started, cpu_started = time.perf_counter(), time.thread_time()
        named = _table({"name": list(metrics), "value": list(metrics.values())}, METRICS)
        spool.put(self._folder, replace(batch, metrics=named))
        self.write_seconds = time.perf_counter() - started
        self.write_cpu_seconds = time.thread_time() - cpu_started


def batch_header(
    run_uid: str,
    attempt: int,
    step: int,
    *,
    split: str,
    phase_seconds: Mapping[str, float],
    events: Sequence[dict[str, Any]] = (),
) -> BatchHeader:
    """The batch id follows from run, attempt, split and step, so the same batch can never be stored as two."""
    return BatchHeader(
        batch_id=str(uuid.uuid5(uuid.UUID(run_uid), f"{attempt}/{split}/{step}")),
        run_uid=run_uid,
        attempt=attempt,
        step=step,
        split=split,
        phase_seconds=dict(phase_seconds),
        events=list(events),
        written_at=datetime.datetime.now(datetime.UTC).isoformat(),
    )


def make_batch(
    header: BatchHeader,
    rollouts: Rollouts,
    scores: ScoredRollouts,
    *,
    pieces: Sequence[bytes],
    checkpoint_step: int,
    sample_seconds: float,
    rollout_columns: Mapping[str, Any],
    token_columns: Mapping[str, Tensor],
    group_columns: Mapping[str, Any],
) -> RolloutBatch:
    """All that is known of a step's rollouts and groups; its metrics come with `Recorder.put`, for they tell what this took.

    Args:
        checkpoint_step: steps trained when these rollouts were sampled.
        rollout_columns, group_columns: further columns, one value a rollout or group; None is null.
        token_columns: further rectangles `[B, T]`.
    """
    columns = _rollout_columns(rollouts, scores, checkpoint_step, sample_seconds) | dict(rollout_columns)
    columns |= _token_columns(rollouts, token_columns, pieces, checkpoint_step)
    return RolloutBatch(
        header=header,
        rollouts=_table(columns, ROLLOUTS),
        groups=_table(_group_columns(rollouts, scores) | dict(group_columns), GROUPS),
        metrics=METRICS.empty_table(),
        reward_spans=_table(_span_columns(scores), REWARD_SPANS),
    )


def _rollout_columns(
    rollouts: Rollouts, scores: ScoredRollouts, checkpoint_step: int, sample_seconds: float
) -> dict[str, Any]:
    count = len(scores.scored)
    lengths = rollouts.lengths.cpu().numpy()
    rewards = scores.rewards.cpu().numpy()
    owner = rollouts.group_index.tolist()
    prompts = [rollouts.prompts[prompt] for prompt in owner]
    requests = [request for request in rollouts.requests for _ in range(request.count)]
    transforms = [
        None if prompt.name == "identity" else _json({"name": prompt.name, "parameters": prompt.parameters})
        for prompt in rollouts.prompts
    ]
    return {
        "group": rollouts.group_index.cpu().numpy().astype(np.int32),
        "number": rollouts.numbers.cpu().numpy().astype(np.int16),
        "completion": rollouts.completions,
        "reward": pa.array(rewards, mask=np.isnan(rewards)),
        "correct": scores.correct.cpu().numpy(),
        "stop_reason": np.where(rollouts.is_finished.cpu().numpy(), "stop", "length").tolist(),
        "parsed_answer": [_bytes(one.parsed_answer) for one in scores.scored],
        "answer_cluster": [one.answer_cluster for one in scores.scored],
        "policy_version": np.full(count, checkpoint_step, np.int32),
        "staleness_steps": np.zeros(count, np.int32),
        "seed": np.array(rollouts.seeds, np.int64),
        # Rows are sampled together; each pays for its share of the tokens.
        "cost_seconds": (sample_seconds * lengths / max(lengths.sum(), 1)).astype(np.float32),
        "feedback": [_bytes(one.feedback or None) for one in scores.scored],
        "transform": [transforms[prompt] for prompt in owner],
        "source_rollout": [prompt.source_rollout for prompt in prompts],
        "tree_parent": [request.tree_parent for request in requests],
        "branch_token": [request.branch_token for request in requests],
    }


def _token_columns(
    rollouts: Rollouts, further: Mapping[str, Tensor], pieces: Sequence[bytes], checkpoint_step: int
) -> dict[str, pa.Array]:
    rectangles = {
        "token_ids": rollouts.tokens.completion_ids,
        "sampler_logprobs": rollouts.sampler_logprobs,
        "entropy": rollouts.entropy,
        "origin": rollouts.origin,
        **further,
    }
    counted = np.flatnonzero(rollouts.tokens.completion_mask.cpu().numpy())
    lengths = rollouts.lengths.cpu().numpy()
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    flat = {name: rectangle.cpu().numpy().ravel()[counted] for name, rectangle in rectangles.items()}
    flat["token_policy_version"] = np.where(flat["origin"] == GENERATED, checkpoint_step, 0)
    offsets = pa.array(ends)
    columns = {
        name: pa.ListArray.from_arrays(offsets, pa.array(values.astype(TOKEN_TYPES.get(name, np.float32), copy=False)))
        for name, values in flat.items()
    }
    columns["step_boundaries"] = _step_boundaries(flat["token_ids"], ends, pieces)
    return columns


def _step_boundaries(token_ids: np.ndarray, offsets: np.ndarray, pieces: Sequence[bytes]) -> pa.Array:
    """Positions after each token that ends a step of shown work, per rollout."""
    known = np.minimum(token_ids, len(pieces) - 1)
    # A vocabulary can have more pieces than the step has tokens.
    used = np.flatnonzero(np.bincount(known))
    ends_step = np.zeros(len(pieces), bool)
    ends_step[used] = [STEP_END.encode() in pieces[token] for token in used.tolist()]
    found = np.flatnonzero(ends_step[known])
    ends = np.searchsorted(found, offsets).astype(np.int32)
    row = np.searchsorted(offsets, found, side="right") - 1
    return pa.ListArray.from_arrays(pa.array(ends), pa.array((found - offsets[row] + 1).astype(np.int32)))


def _group_columns(rollouts: Rollouts, scores: ScoredRollouts) -> dict[str, Any]:
    tasks = [choice.task for choice in rollouts.chosen]
    asked = [0] * len(tasks)
    for request in rollouts.requests:
        asked[request.prompt] += request.count
    rewards = rollouts.by_group(scores.rewards, float("nan")).cpu().numpy()
    correct = rollouts.by_group(scores.correct.double(), float("nan")).cpu().numpy()
    scored = np.isfinite(rewards)
    count = scored.sum(axis=1)
    mean = np.where(scored, rewards, 0).sum(axis=1) / np.maximum(count, 1)
    deviation = np.where(scored, rewards - mean[:, None], 0)
    std = np.sqrt((deviation**2).sum(axis=1) / np.maximum(count - 1, 1))
    return {
        "index": np.arange(len(tasks), dtype=np.int32),
        "prompt": [_bytes(prompt.text) for prompt in rollouts.prompts],
        "prompt_ids": rollouts.prompt_ids,
        "generator": [task.family for task in tasks],
        "parameters": [_json(task.params) for task in tasks],
        "difficulty": [task.difficulty for task in tasks],
        "task_seed": [task.seed for task in tasks],
        "answer": [_bytes(task.answer) for task in tasks],
        "oracle_trace": [_oracle_json(task.oracle) if task.oracle else None for task in tasks],
        "size_asked": asked,
        "size_got": rollouts.group_sizes,
        "reward_mean": pa.array(mean, mask=count == 0),
        "reward_std": pa.array(std, mask=count == 0),
        "success_share": np.nanmean(correct, axis=1),
        "sampling_weight": [choice.sampling_weight for choice in rollouts.chosen],
    }


def _oracle_json(oracle: Sequence[OracleStep]) -> bytes:
    return _json([{"text": step.text, "start": step.start, "end": step.end} for step in oracle]).encode()


def _span_columns(scores: ScoredRollouts) -> dict[str, Any]:
    spans = [(row, span) for row, one in enumerate(scores.scored) for span in one.spans]
    return {
        "rollout": [row for row, _ in spans],
        "token_start": [span.token_start for _, span in spans],
        "token_end": [span.token_end for _, span in spans],
        "value": [span.value for _, span in spans],
        "kind": [span.kind for _, span in spans],
        "name": [span.name for _, span in spans],
        "version": [span.version for _, span in spans],
    }


def _table(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Every column of `schema` in its order, missing ones null; further per-token columns follow."""
    names = set(schema.names)
    for name in columns:
        if name.startswith(EXTRA_PREFIX):
            schema = schema.append(pa.field(name, pa.list_(pa.float32())))
        elif name not in names:
            raise ValueError(f"unknown column {name!r}; a further per-token column is named {EXTRA_PREFIX}NAME")
    rows = len(next(iter(columns.values())))
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        arrays.append(pa.nulls(rows, field.type) if values is None else pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")
