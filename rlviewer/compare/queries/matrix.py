"""Algorithms side by side on one task: at equal steps, equal tokens and equal time."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from django.db import connection
from django.db.models import Count

from rlviewer.accounts.models import Project
from rlviewer.compare.queries.ladder import recipe_name
from rlviewer.lib.intervals import t_interval
from rlviewer.runs.models import Run
from rlviewer.runs.queries.series import NO_SERIES, Points, metric_series_of, pass_at_k_name

# A run's value at a point is the mean over this many steps that end there: one step alone is noise.
WINDOW = 10
MOST_RUNS = 100
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curves:
    """One run, step by step; `tokens`, `trained`, `seconds` and `rollouts` are sums up to and with each step."""

    run_id: int
    algorithm: str
    step: Floats
    reward: Floats
    entropy: Floats
    dead: Floats
    tokens: Floats
    trained: Floats
    seconds: Floats
    pass_at_1: Points  # by steps trained
    pass_at_k: Points
    rollouts: Floats = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, slots=True)
class Cell:
    """Mean over the runs that have the value, with a 95 % t interval from two runs on."""

    mean: float | None
    low: float | None
    high: float | None
    runs: int


@dataclass(frozen=True, slots=True)
class Measure:
    key: str
    title: str
    meaning: str
    is_share: bool = False


MEASURES = (
    Measure(
        "steps", "reward at equal steps", "Mean reward of the steps up to the last one that every algorithm reached."
    ),
    Measure("tokens", "reward at equal tokens", "The same at equal tokens sampled."),
    Measure("seconds", "reward at equal time", "The same at equal seconds of the trainer's clock."),
    Measure("pass_at_1", "pass@1", "Newest held-out evaluation up to equal steps.", is_share=True),
    Measure("pass_at_k", "pass@k", "The same evaluation, at the largest k recorded.", is_share=True),
    Measure("entropy", "entropy", "Nats per token, at equal steps."),
    Measure("dead", "dead groups", "Share of groups whose rewards are all equal, at equal steps.", is_share=True),
    Measure("trained", "tokens trained on", "In all, up to equal steps."),
)


@dataclass(frozen=True, slots=True)
class MatrixRow:
    algorithm: str
    runs: int
    cells: Mapping[str, Cell]

    @property
    def measured(self) -> list[tuple[Measure, Cell]]:
        return [(measure, self.cells[measure.key]) for measure in MEASURES]


@dataclass(frozen=True, slots=True)
class Matrix:
    task: str
    tasks: Sequence[tuple[str, int]]  # with how many runs
    rows: Sequence[MatrixRow]
    step: int | None = None  # where "equal" is
    tokens: float | None = None
    seconds: float | None = None
    left_out: int = 0  # runs older than the newest `MOST_RUNS`
    measures: Sequence[Measure] = field(default=MEASURES)


def matrix(project: Project, wanted: str) -> Matrix:
    """Runs of one task, the one with the most runs unless `wanted` is another. Three queries."""
    stored = Run.objects.filter(project=project, last_step__isnull=False, archived=False)
    tasks = [(task, n) for task, n in stored.values_list("task").annotate(n=Count("pk")).order_by("-n", "task")]
    names = [task for task, _ in tasks]
    if not names:
        return Matrix("", [], [])
    task = wanted if wanted in names else names[0]
    found = run_curves(list(stored.filter(task=task).order_by("-pk")[:MOST_RUNS]))
    by_algorithm: dict[str, list[Curves]] = {}
    for one in found:
        by_algorithm.setdefault(recipe_name(one.algorithm), []).append(one)
    ends = {axis: _common_end(by_algorithm, axis) for axis in ("step", "tokens", "seconds")}
    rows = [MatrixRow(name, len(runs), _cells(runs, ends)) for name, runs in sorted(by_algorithm.items())]
    end = ends["step"]
    return Matrix(
        task=task,
        tasks=tasks,
        rows=sorted(rows, key=lambda row: -_sortable(row.cells["steps"].mean)),
        step=None if end is None else int(end),
        tokens=ends["tokens"],
        seconds=ends["seconds"],
        left_out=max(0, dict(tasks)[task] - MOST_RUNS),
    )


def _sortable(value: float | None) -> float:
    return float("-inf") if value is None else value


def run_curves(runs: Sequence[Run]) -> list[Curves]:
    """Of those that have stored a training step. Two queries."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT run_id, array_agg(index ORDER BY index), array_agg(reward_mean ORDER BY index),"
            " array_agg(entropy_mean ORDER BY index), array_agg(dead_groups::float8 / nullif(group_count, 0) ORDER BY index),"
            " array_agg(tokens_sampled ORDER BY index), array_agg(tokens_trained ORDER BY index),"
            " array_agg(phase_seconds::text ORDER BY index), array_agg(rollout_count ORDER BY index)"
            " FROM runs_step WHERE run_id = ANY(%s) AND split = 'train' AND is_current GROUP BY run_id",
            [[run.pk for run in runs]],
        )
        rows = {row[0]: row[1:] for row in cursor.fetchall()}
    series = metric_series_of([run.pk for run in runs], [])
    found = []
    for run in runs:
        if run.pk not in rows:
            continue
        step, reward, entropy, dead, sampled, trained, phases, rollouts = rows[run.pk]
        seconds = [sum(v for v in json.loads(text).values() if isinstance(v, int | float)) for text in phases]
        of_k = series[run.pk].get(pass_at_k_name(series[run.pk]) or "", NO_SERIES).current
        found.append(
            Curves(
                run_id=run.pk,
                algorithm=run.algorithm,
                step=_numbers(step),
                reward=_numbers(reward),
                entropy=_numbers(entropy),
                dead=_numbers(dead),
                tokens=np.cumsum(_numbers(sampled)),
                trained=np.cumsum(_numbers(trained)),
                seconds=np.cumsum(_numbers(seconds)),
                pass_at_1=series[run.pk].get("eval_pass_at_1", NO_SERIES).current,
                pass_at_k=of_k,
                rollouts=np.cumsum(_numbers(rollouts)),
            )
        )
    return found


def _numbers(values: Sequence[float | None]) -> Floats:
    return np.array(values, dtype=np.float64)


def _common_end(by_algorithm: Mapping[str, Sequence[Curves]], axis: str) -> float | None:
    """How far the longest run of every algorithm came, along one axis; None where that is nowhere."""
    ends = [max(float(getattr(run, axis)[-1]) for run in runs) for runs in by_algorithm.values()]
    end = min(ends, default=0.0)
    return end if end > 0 or axis == "step" else None


def at(run: Curves, axis: str, end: float | None, values: Floats) -> float | None:
    """Mean of the last `WINDOW` known values up to `end` on an axis; None for a run that never came so far."""
    places: Floats = getattr(run, axis)
    if end is None or places[-1] < end:
        return None
    known = values[places <= end]
    known = known[np.isfinite(known)][-WINDOW:]
    return float(known.mean()) if len(known) else None


def evaluated(run: Curves, end: float | None, points: Points) -> float | None:
    """The newest evaluation of a policy that was trained on no more steps than up to `end`; None for a run that never came so far."""
    if end is None or run.step[-1] < end:
        return None
    # `end` counts from 0, an evaluation names the steps trained before it.
    known = [value for trained, value in zip(points.steps, points.values, strict=True) if trained <= end + 1]
    return known[-1] if known else None


def _cells(runs: Sequence[Curves], ends: Mapping[str, float | None]) -> dict[str, Cell]:
    step = ends["step"]
    values: dict[str, Callable[[Curves], float | None]] = {
        "steps": lambda run: at(run, "step", step, run.reward),
        "tokens": lambda run: at(run, "tokens", ends["tokens"], run.reward),
        "seconds": lambda run: at(run, "seconds", ends["seconds"], run.reward),
        "pass_at_1": lambda run: evaluated(run, step, run.pass_at_1),
        "pass_at_k": lambda run: evaluated(run, step, run.pass_at_k),
        "entropy": lambda run: at(run, "step", step, run.entropy),
        "dead": lambda run: at(run, "step", step, run.dead),
        "trained": lambda run: (
            float(run.trained[run.step <= step][-1]) if step is not None and run.step[-1] >= step else None
        ),
    }
    shares = {measure.key for measure in MEASURES if measure.is_share}
    return {key: cell([value(run) for run in runs], is_share=key in shares) for key, value in values.items()}


def cell(values: Sequence[float | None], *, is_share: bool = False) -> Cell:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return Cell(None, None, None, 0)
    low, high = t_interval(known, is_share=is_share) or (None, None)
    return Cell(math.fsum(known) / len(known), low, high, len(known))
