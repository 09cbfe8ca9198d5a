"""A stored step as the batch that its trainer wrote, as far as the tables keep it."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rlviewer.lib.text import bytes_from_text
from rlviewer.runs.models import MetricChunk, RewardPart, Rollout, Step, StopReason
from rlviewer.signal.material import Material, read_step
from training.records import (
    GROUPS,
    METRICS,
    REWARD_SPANS,
    ROLLOUTS,
    TOKEN_COLUMNS,
    BatchHeader,
    RolloutBatch,
    complete,
)

# Metrics that later steps go by.
COEFFICIENTS = ("kl_coefficient", "entropy_coefficient")
NARROW = ("number", "reward", "advantage", "correct", "kept", "answer_cluster", "policy_version", "staleness_steps")


def batch_of(step: Step) -> RolloutBatch:
    """Its rollouts by group and number. Six queries; tokens that only some rollouts have are left out."""
    material = read_step(step)
    return RolloutBatch(
        BatchHeader(
            batch_id="00000000-0000-0000-0000-000000000000",
            run_uid=str(step.run.uid),
            attempt=step.attempt.number,
            step=step.index,
            split=step.split,
        ),
        complete(_rollouts(material), ROLLOUTS),
        complete(pa.Table.from_pylist([_group(material, place) for place in range(len(material.groups))]), GROUPS),
        _metrics(step),
        _spans(step, material),
    )


def rollout_ids(step: Step) -> list[int]:
    """In the order of the batch."""
    ordered = Rollout.objects.filter(group__step=step).order_by("group__index", "number")
    return list(ordered.values_list("pk", flat=True))


def earlier_rewards(step: Step) -> list[float] | None:
    """Mean reward of every step before; None: not all are stored."""
    earlier = Step.objects.filter(run=step.run, split=step.split, is_current=True, index__lt=step.index)
    found = dict(earlier.values_list("index", "reward_mean"))
    means = [found.get(index) for index in range(step.index)]
    return None if None in means else [float(mean) for mean in means if mean is not None]


def _rollouts(material: Material) -> pa.Table:
    narrow, packed = material.narrow, material.packed
    columns: dict[str, Any] = {name: pa.array(narrow[name], ROLLOUTS.field(name).type) for name in NARROW}
    columns |= {
        "group": pa.array(material.group_of.astype(np.int32)),
        "completion": pa.array([one.completion for one in packed], pa.large_binary()),
        "drop_reason": [bytes_from_text(reason).decode("utf-8", "replace") or None for reason in narrow["drop_reason"]],
        "stop_reason": [StopReason(reason).label for reason in narrow["stop_reason"]],
        "parsed_answer": pa.array([one.details.get("parsed_answer") for one in packed], pa.large_binary()),
    }
    offsets = pa.array(material.starts.astype(np.int32))
    for name, values in material.columns.items():
        columns[name] = pa.ListArray.from_arrays(offsets, pa.array(values, TOKEN_COLUMNS.get(name, pa.float32())))
    return pa.table(columns)


def _group(material: Material, place: int) -> dict[str, Any]:
    group = material.groups[place]
    prompt, first = group.prompt, int(np.searchsorted(material.group_of, place))
    ids: npt.NDArray[Any] | None = material.prompt_ids[first] if first < material.count else None
    return {
        "index": group.index,
        "prompt": bytes(prompt.text),
        "prompt_ids": None if ids is None else ids.tolist(),
        "generator": bytes_from_text(prompt.generator).decode("utf-8", "replace"),
        "parameters": json.dumps(prompt.parameters),
        "difficulty": prompt.difficulty,
        "task_seed": group.task_seed,
        "answer": None if prompt.answer is None else bytes(prompt.answer),
        "size_asked": group.size_asked,
        "size_got": group.size_got,
        "tracker_value": _tracked(material, place),
    }


def _tracked(material: Material, place: int) -> float | None:
    """Of a run whose prompts have a running value and no critic it stands on every token."""
    values, first = material.columns.get("x_value"), int(np.searchsorted(material.group_of, place))
    hooks = material.step.run.plugins
    if values is None or hooks.get("H9") not in ("tracked", ["tracked"]) or first >= material.count:
        return None
    return float(values[material.starts[first]])


def _metrics(step: Step) -> pa.Table:
    rows = MetricChunk.objects.filter(run=step.run, attempt=step.attempt, name__in=COEFFICIENTS)
    found = {
        chunk.name: value
        for chunk in rows
        for index, value in zip(chunk.steps, chunk.values, strict=True)
        if index == step.index
    }
    return pa.table({"name": pa.array(list(found), pa.string()), "value": pa.array(list(found.values()), pa.float64())},
                    schema=METRICS)  # fmt: skip


def _spans(step: Step, material: Material) -> pa.Table:
    place = {pk: number for number, pk in enumerate(material.narrow["id"])}
    rows = RewardPart.objects.filter(rollout__group__step=step).order_by("rollout", "part")
    names = ("rollout_id", "token_start", "token_end", "value", "kind", "name", "version")
    columns: dict[str, list[Any]] = dict(
        zip(names, map(list, zip(*rows.values_list(*names), strict=True)), strict=False)
    ) or {name: [] for name in names}
    columns["rollout"] = [place[pk] for pk in columns.pop("rollout_id")]
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in REWARD_SPANS})
