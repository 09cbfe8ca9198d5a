"""From a step's tensors to its batch file. Whole columns at once: recording must not cost what sampling does.

The loop makes the columns, the writer's thread does the rest. Two threads that both run Python wait for each other at every
call; what the thread does (compressing, the checksum, the disk) leaves the interpreter to the loop.
"""

import dataclasses
import datetime
import json
import operator
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

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
from training.spans import RewardSpan
from training.tasks.base import OracleStep

ROLLOUT_TYPES, GROUP_TYPES, METRIC_TYPES, SPAN_TYPES = (
    dict(zip(schema.names, schema.types, strict=True)) for schema in (ROLLOUTS, GROUPS, METRICS, REWARD_SPANS)
)
NO_METRICS = METRICS.empty_table()
TOKEN_TYPES = {name: kind.to_pandas_dtype() for name, kind in TOKEN_COLUMNS.items()}
SPAN_VALUES = {field.name: operator.attrgetter(field.name) for field in dataclasses.fields(RewardSpan)}
# json.dumps with an option makes an encoder for every call.
_json = json.JSONEncoder(allow_nan=False).encode
_json_text = json.encoder.encode_basestring_ascii


class RecordingSeconds(NamedTuple):
    """What recording took beside making the batches. Waiting for the disk beside the loop keeps the loop from nothing."""

    # The loop handed a batch over, or waited for the writer and the disk: before a checkpoint, and for a batch that took too long.
    held: float = 0.0
    write: float = 0.0  # the writer's thread, from start to end, its waiting for the disk and for its turn included
    write_cpu: float = 0.0  # of it, processor time

    @property
    def taken(self) -> float:
        """What it took from the step: the loop was held up, or the writer had a processor."""
        return self.held + self.write_cpu


class Recorder:
    """Writes batches on a thread of its own, in order, one at a time, while the next step already samples.

    A batch in the spool is whole and durable; its name there is for certain once `flush` returns, and a checkpoint is written
    only after that.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        spool.finish_unfinished(folder)
        self._folder = folder
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="spool-writer")
        self._pending: Future[None] | None = None
        self._is_name_durable = True
        self._held = 0.0  # the loop's; the writer's are read once it has been waited for
        self._write = self._write_cpu = 0.0

    def put(self, batch: RolloutBatch, metrics: Mapping[str, float]) -> None:
        """Hand a batch over with the metrics of its step; waits while the one before is still being written.

        Raises:
            OSError: the batch before could not be written.
        """
        self.wait()
        started = time.perf_counter()
        self._is_name_durable = False
        self._pending = self._writer.submit(self._write_batch, batch, metrics)
        self._held += time.perf_counter() - started

    def wait(self) -> None:
        """Return once the batch before is in the spool.

        Raises:
            OSError: it could not be written.
        """
        if self._pending is not None:
            started = time.perf_counter()
            pending, self._pending = self._pending, None
            pending.result()
            self._held += time.perf_counter() - started

    def flush(self) -> None:
        """Return once everything handed over is in the spool and stays there whatever happens to the machine.

        Raises:
            OSError: the batch before could not be written.
        """
        self.wait()
        if not self._is_name_durable:
            started = time.perf_counter()
            spool.fsync_folder(self._folder)
            self._held += time.perf_counter() - started
            self._is_name_durable = True

    def take_seconds(self) -> RecordingSeconds:
        """What recording took since the last call."""
        self.wait()
        taken = RecordingSeconds(self._held, self._write, self._write_cpu)
        self._held = self._write = self._write_cpu = 0.0
        return taken

    def close(self) -> None:
        """Wait for what was handed over, then let the writer go.

        Raises:
            OSError: the last batch could not be written.
        """
        try:
            self.flush()
        finally:
            self._writer.shutdown()

    def _write_batch(self, batch: RolloutBatch, metrics: Mapping[str, float]) -> None:
        started, cpu_started = time.perf_counter(), time.thread_time()
        named = _table({"name": list(metrics), "value": list(metrics.values())}, METRIC_TYPES)
        spool.write(self._folder, dataclasses.replace(batch, metrics=named))
        self._write += time.perf_counter() - started
        self._write_cpu += time.thread_time() - cpu_started


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
    ends_step: np.ndarray,
    checkpoint_step: int,
    sample_seconds: float,
    rollout_columns: Mapping[str, Any],
    token_columns: Mapping[str, Tensor],
    group_columns: Mapping[str, Any],
) -> RolloutBatch:
    """All that is known of a step's rollouts and groups; its metrics come with `Recorder.put`, for they tell what this took.

    Args:
        ends_step: `[V]` bool, tokens that end a step of shown work.
        checkpoint_step: steps trained when these rollouts were sampled.
        rollout_columns, group_columns: further columns, one value a rollout or group; None is null.
        token_columns: further rectangles `[B, T]`.
    """
    sizes = np.bincount(rollouts.group_index.cpu().numpy(), minlength=len(rollouts.prompts))
    columns = _rollout_columns(rollouts, scores, sizes, checkpoint_step, sample_seconds) | dict(rollout_columns)
    columns |= _token_columns(rollouts, token_columns, ends_step, checkpoint_step)
    return RolloutBatch(
        header=header,
        rollouts=_table(columns, ROLLOUT_TYPES),
        groups=_table(_group_columns(rollouts, scores, sizes) | dict(group_columns), GROUP_TYPES),
        metrics=NO_METRICS,
        reward_spans=_table(_span_columns(scores), SPAN_TYPES),
    )


def _rollout_columns(
    rollouts: Rollouts, scores: ScoredRollouts, sizes: np.ndarray, checkpoint_step: int, sample_seconds: float
) -> dict[str, Any]:
    count = len(scores.scored)
    lengths = rollouts.lengths.cpu().numpy()
    transforms = [
        None if prompt.name == "identity" else _json({"name": prompt.name, "parameters": prompt.parameters})
        for prompt in rollouts.prompts
    ]
    asked = [request.count for request in rollouts.requests]
    return {
        "group": rollouts.group_index.cpu().numpy().astype(np.int32),
        "number": rollouts.numbers.cpu().numpy().astype(np.int16),
        "completion": rollouts.completions,
        "reward": pa.array(scores.rewards.cpu().numpy(), from_pandas=True),  # NaN is null
        "correct": scores.correct.cpu().numpy(),
        "stop_reason": ["stop" if is_finished else "length" for is_finished in rollouts.is_finished.tolist()],
        "parsed_answer": _utf8([one.parsed_answer for one in scores.scored]),
        "answer_cluster": [one.answer_cluster for one in scores.scored],
        "policy_version": np.full(count, checkpoint_step, np.int32),
        "staleness_steps": np.zeros(count, np.int32),
        "seed": np.array(rollouts.seeds, np.int64),
        # Rows are sampled together; each pays for its share of the tokens.
        "cost_seconds": (lengths * (sample_seconds / max(lengths.sum(), 1))).astype(np.float32),
        "feedback": _utf8([one.feedback or None for one in scores.scored]),
        "transform": _repeated(transforms, sizes),
        "source_rollout": _repeated([prompt.source_rollout for prompt in rollouts.prompts], sizes),
        "tree_parent": _repeated([request.tree_parent for request in rollouts.requests], asked),
        "branch_token": _repeated([request.branch_token for request in rollouts.requests], asked),
    }


def _token_columns(
    rollouts: Rollouts, further: Mapping[str, Tensor], ends_step: np.ndarray, checkpoint_step: int
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
    flat["token_policy_version"] = (flat["origin"] == GENERATED) * np.int32(checkpoint_step)
    offsets = pa.array(ends)
    columns = {
        name: pa.ListArray.from_arrays(offsets, pa.array(values.astype(TOKEN_TYPES.get(name, np.float32), copy=False)))
        for name, values in flat.items()
    }
    columns["step_boundaries"] = _step_boundaries(flat["token_ids"], ends, ends_step)
    return columns


def _step_boundaries(token_ids: np.ndarray, offsets: np.ndarray, ends_step: np.ndarray) -> pa.Array:
    """Positions after each token that ends a step of shown work, per rollout."""
    found = np.flatnonzero(ends_step[np.minimum(token_ids, len(ends_step) - 1)])
    ends = np.searchsorted(found, offsets).astype(np.int32)
    row = np.searchsorted(offsets, found, side="right") - 1
    return pa.ListArray.from_arrays(pa.array(ends), pa.array((found - offsets[row] + 1).astype(np.int32)))


def _group_columns(rollouts: Rollouts, scores: ScoredRollouts, sizes: np.ndarray) -> dict[str, Any]:
    tasks = [choice.task for choice in rollouts.chosen]
    asked = [0] * len(tasks)
    for request in rollouts.requests:
        asked[request.prompt] += request.count
    owner, rewards = rollouts.group_index.cpu().numpy(), scores.rewards.cpu().numpy()

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(owner, values, len(tasks))

    scored = np.isfinite(rewards)
    count = summed(scored)
    mean = summed(np.where(scored, rewards, 0)) / np.maximum(count, 1)
    deviation = np.where(scored, rewards - mean[owner], 0)
    std = np.sqrt(summed(deviation * deviation) / np.maximum(count - 1, 1))
    return {
        "index": np.arange(len(tasks), dtype=np.int32),
        "prompt": _utf8([prompt.text for prompt in rollouts.prompts]),
        "prompt_ids": rollouts.prompt_ids,
        "generator": [task.family for task in tasks],
        "parameters": [_json(task.params) for task in tasks],
        "difficulty": [task.difficulty for task in tasks],
        "task_seed": [task.seed for task in tasks],
        "answer": _utf8([task.answer for task in tasks]),
        "oracle_trace": [_oracle_json(task.oracle) if task.oracle else None for task in tasks],
        "size_asked": asked,
        "size_got": sizes.astype(np.int32),
        "reward_mean": pa.array(np.where(count, mean, np.nan), from_pandas=True),  # NaN is null
        "reward_std": pa.array(np.where(count, std, np.nan), from_pandas=True),
        "success_share": summed(scores.correct.cpu().numpy()) / sizes,
        "sampling_weight": [choice.sampling_weight for choice in rollouts.chosen],
    }


def _oracle_json(oracle: Sequence[OracleStep]) -> str:
    steps = [f'{{"text": {_json_text(step.text)}, "start": {step.start}, "end": {step.end}}}' for step in oracle]
    return f"[{', '.join(steps)}]"


def _span_columns(scores: ScoredRollouts) -> dict[str, Any]:
    counts = [len(one.spans) for one in scores.scored]
    spans = [span for one in scores.scored for span in one.spans]
    columns = {name: list(map(value, spans)) for name, value in SPAN_VALUES.items()}
    return {"rollout": np.repeat(np.arange(len(counts), dtype=np.int32), counts), **columns}


def _table(columns: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    """The columns that have a value."""
    arrays = {}
    for name, values in columns.items():
        if name not in types and not name.startswith(EXTRA_PREFIX):
            raise ValueError(f"unknown column {name!r}; a further per-token column is named {EXTRA_PREFIX}NAME")
        if values is None or (isinstance(values, list) and values.count(None) == len(values)):
            continue
        arrays[name] = values if isinstance(values, pa.Array) else pa.array(values, types[name])
    return pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))


def _repeated(values: Sequence[Any], counts: Iterable[int]) -> list[Any] | None:
    """Each value as often as its count says; None if all are None."""
    if values.count(None) == len(values):
        return None
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


def _utf8(texts: list[str | None]) -> pa.Array:
    try:
        return pa.array(texts, pa.large_binary())
    except UnicodeEncodeError:  # a lone surrogate
        encoded = [None if text is None else text.encode("utf-8", "surrogatepass") for text in texts]
        return pa.array(encoded, pa.large_binary())
