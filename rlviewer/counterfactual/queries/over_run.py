"""The same recipes over steps of the whole run, evenly spread: what is known of them by step and on average."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlviewer.accounts.models import User
from rlviewer.charts import curves, theme
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Curve, CurveChart
from rlviewer.counterfactual import jobs
from rlviewer.counterfactual.jobs import Question
from rlviewer.counterfactual.models import Replay, ReplayState
from rlviewer.runs.models import Run, Step
from rlviewer.runs.queries.step import TRAIN
from training.recipes import RECIPES
from training.replay_frames import VERSION

STEPS = 10  # worked out for a summary


@dataclass(frozen=True, slots=True)
class OverRow:
    """Means over the steps that are worked out."""

    title: str
    steps: int
    flips: float | None  # share of rollouts
    woken: float | None  # groups a step
    died: float | None
    rank_correlation: float | None
    effective: float | None  # share of counted tokens


@dataclass(frozen=True, slots=True)
class OverRun:
    rows: Sequence[OverRow]
    steps: int  # with at least one recipe worked out
    waiting: int
    chart: Chart | None


def ask_over_run(user: User, run: Run, questions: Sequence[Question]) -> None:
    """Ask for STEPS steps of the run, the first and the last among them."""
    steps = list(Step.objects.filter(run=run, split=TRAIN, is_current=True).order_by("index"))
    for place in np.unique(np.linspace(0, len(steps) - 1, min(STEPS, len(steps))).astype(int)).tolist():
        jobs.ask(user, steps[place], questions)


def over_run(run: Run, recipes: Sequence[str], link: str) -> OverRun:
    """One query. `link` leads from a mark to its step."""
    rows = Replay.objects.filter(
        step__run=run, step__split=TRAIN, step__is_current=True, version=VERSION, constants="{}", rewards="[]"
    )
    found = list(
        rows.filter(recipe__in=["", *recipes])
        .order_by("step__index")
        .values_list("recipe", "step__index", "state", "measures", "rollout_count", "step__rollout_count")
    )
    current = [row for row in found if row[4] == row[5]]
    known: dict[str, dict[int, dict[str, Any]]] = {}
    for recipe, index, state, measures, *_ in current:
        if state == ReplayState.FINISHED and "flips" in measures:
            known.setdefault(recipe, {})[index] = measures
    names = [name for name in ("", *recipes) if name in known]
    steps = sorted({index for of_step in known.values() for index in of_step})
    lines = [
        Curve(
            _title(name, run),
            steps,
            [known[name].get(index, {}).get("rank_correlation") for index in steps],
            theme.colour_of(place),
            markers=True,
            links=link,
        )
        for place, name in enumerate(names)
        if name
    ]
    chart = Chart(
        "over-run",
        "Rank correlation with what was trained",
        "Spearman",
        curves.figure(CurveChart("rank correlation", lines)) if len(steps) > 1 and lines else None,
        meaning="Of the advantages of rollouts that enter the update under both; 1: the same order.",
        note="Exact for the stored rollouts. Under another algorithm later steps would have held other rollouts.",
        nothing="Not yet: two steps at least make a curve.",
    )
    return OverRun(
        rows=[_row(_title(name, run), list(known[name].values())) for name in names],
        steps=len(steps),
        waiting=sum(state in {ReplayState.QUEUED, ReplayState.RUNNING} for _, _, state, *_ in current),
        chart=chart if steps else None,
    )


def _title(name: str, run: Run) -> str:
    return RECIPES[name].title if name else f"{run.algorithm} (its own)"


def _row(title: str, measures: Sequence[dict[str, Any]]) -> OverRow:
    def mean(values: Sequence[float | None]) -> float | None:
        there = [value for value in values if value is not None]
        return sum(there) / len(there) if there else None

    return OverRow(
        title,
        len(measures),
        flips=mean([one["flips"] / one["rollouts"] for one in measures]),
        woken=mean([len(one["woken"]) for one in measures]),
        died=mean([len(one["died"]) for one in measures]),
        rank_correlation=mean([one["rank_correlation"] for one in measures]),
        effective=mean(
            [one["effective_tokens"] / max(one["counted_tokens"], 1) for one in measures if "effective_tokens" in one]
        ),
    )
