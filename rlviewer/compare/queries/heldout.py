"""Held-out scores of runs at equal steps, tokens, rollouts or time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt
from django.db import connection

from rlviewer.compare.queries.matrix import Curves
from rlviewer.runs.models import Run
from rlviewer.runs.queries.step import TRAIN

Floats = npt.NDArray[np.float64]
# Title and unit of what "equal" may mean.
AXES = {
    "step": "steps",
    "tokens": "tokens sampled",
    "rollouts": "rollouts",
    "seconds": "seconds of the trainer's clock",
}
MEASURES = {"pass_at_1": "pass@1", "pass_at_k": "pass@k", "reward": "reward"}
NEAR = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Scores:
    """One run's evaluation: for each prompt the score of every sample."""

    run_id: int
    step: int  # checkpoint step
    step_id: int
    by_prompt: Mapping[int, Floats]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """`end` is the common point on the axis; `missing` are runs without an evaluation up to it."""

    end: float | None
    found: Mapping[int, Scores]
    missing: Sequence[int]
    split: str = ""


def heldout_scores(runs: Sequence[Run], curves: Mapping[int, Curves], axis: str, measure: str) -> HeldOut:
    """Each run's last evaluation up to the point that all runs reached. Two queries."""
    evaluations = _evaluations([run.pk for run in runs])
    splits = [split for of in evaluations.values() for split in of]
    if not splits:
        return HeldOut(None, {}, [run.pk for run in runs])
    split = max(dict.fromkeys(splits), key=splits.count)
    places = {
        pk: [(index, step_id, _place(curves.get(pk), axis, index)) for index, step_id in of[split]]
        for pk, of in evaluations.items()
        if split in of
    }
    ends = [max((at for _, _, at in own if at is not None), default=None) for own in places.values()]
    known = [end for end in ends if end is not None]
    if not known:
        return HeldOut(None, {}, [run.pk for run in runs], split)
    end = min(known)
    chosen: dict[int, tuple[int, int]] = {}
    for pk, own in places.items():
        reached = [(index, step_id) for index, step_id, at in own if at is not None and at <= end * NEAR]
        if reached:
            chosen[pk] = reached[-1]
    scores = _scores([step_id for _, step_id in chosen.values()], measure)
    found = {
        pk: Scores(pk, index, step_id, scores[step_id]) for pk, (index, step_id) in chosen.items() if scores[step_id]
    }
    return HeldOut(end, found, [run.pk for run in runs if run.pk not in found], split)


def _evaluations(run_ids: Sequence[int]) -> dict[int, dict[str, list[tuple[int, int]]]]:
    """By run and split: (checkpoint step, id), in order."""
    found: dict[int, dict[str, list[tuple[int, int]]]] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT run_id, split, index, id FROM runs_step WHERE run_id = ANY(%s) AND is_current AND split <> %s"
            " ORDER BY index",
            [list(run_ids), TRAIN],
        )
        for run_id, split, index, step_id in cursor.fetchall():
            found.setdefault(run_id, {}).setdefault(split, []).append((index, step_id))
    return found


def _place(curves: Curves | None, axis: str, index: int) -> float | None:
    """Where on the axis the checkpoint after `index` steps lies; None where its training is not stored."""
    if axis == "step" or index == 0:
        return float(index)
    if curves is None:
        return None
    before = np.flatnonzero(curves.step < index)
    sums: Floats = getattr(curves, axis)
    return float(sums[before[-1]]) if len(before) else None


def _scores(step_ids: Sequence[int], measure: str) -> dict[int, dict[int, Floats]]:
    value = "r.reward" if measure == "reward" else "r.correct::int"
    found: dict[int, dict[int, Floats]] = {step_id: {} for step_id in step_ids}
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT g.step_id, g.prompt_id, array_agg(({value})::float8 ORDER BY r.number)"  # noqa: S608 (our own names)
            " FROM runs_group g JOIN runs_rollout r ON r.group_id = g.id"
            f" WHERE g.step_id = ANY(%s) AND ({value})::float8 <> 'NaN' GROUP BY g.step_id, g.prompt_id",
            [list(step_ids)],
        )
        for step_id, prompt_id, values in cursor.fetchall():
            found[step_id][prompt_id] = np.array(values, np.float64)
    if measure == "pass_at_k":
        k = min((len(values) for of in found.values() for values in of.values()), default=0)
        return {step: {prompt: pass_at(values, k) for prompt, values in of.items()} for step, of in found.items()}
    return found


def pass_at(values: Floats, k: int) -> Floats:
    """Unbiased estimate that one of k draws is right, from n >= k verdicts: one number. Source: Chen et al. 2021, eq. 1."""
    n, right = len(values), int(values.sum())
    return np.array([1 - comb(n - right, k) / comb(n, k)])


def stacked(runs: Sequence[Scores], prompts: Sequence[int]) -> Floats:
    """(runs, prompts, samples), NaN where one prompt has fewer samples than another."""
    most = max(len(run.by_prompt[prompt]) for run in runs for prompt in prompts)
    found = np.full((len(runs), len(prompts), most), np.nan)
    for i, run in enumerate(runs):
        for j, prompt in enumerate(prompts):
            values = run.by_prompt[prompt]
            found[i, j, : len(values)] = values
    return found
