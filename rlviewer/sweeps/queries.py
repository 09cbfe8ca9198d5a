"""What the pages of sweeps show: trials with the evidence beside their reward, the grid, the best point."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

from django.db.models import Avg, Count, F, Q, QuerySet, Sum
from django.db.models.functions import NullIf
from django.urls import reverse

from rlviewer.accounts.models import Project
from rlviewer.charts import curves, heat, theme
from rlviewer.charts.chart import Chart
from rlviewer.lib.intervals import t_interval
from rlviewer.runs.models import Run, Step
from rlviewer.signal.models import StepSignal
from rlviewer.sweeps.models import Sweep, Trial, TrialState
from rlviewer.sweeps.objectives import TRAIN
from rlviewer.sweeps.spec import SweepSpec, shown
from rlviewer.watch.models import SearchHits

# Training steps at the end of a run that the evidence is the mean of.
EVIDENCE_STEPS = 10
MOST_CURVES = 24


@dataclass(frozen=True, slots=True)
class Evidence:
    """Beside reward: means over the last steps of all runs of a trial; None where nothing is stored."""

    dead_share: float | None
    length: float | None
    truncated_share: float | None
    distinct_answers: float | None
    hit_share: float | None  # rollouts that a saved search of the project finds


@dataclass(frozen=True, slots=True)
class Row:
    trial: Trial
    runs: list[Run]
    values: list[str]  # of the parameters, as shown
    rewards: list[float]
    steps_done: int
    steps_planned: int
    interval: tuple[float, float] | None
    evidence: Evidence
    colour: str


@dataclass(frozen=True, slots=True)
class SweepPage:
    spec: SweepSpec
    rows: list[Row]
    best: Row | None
    counts: dict[str, int]
    points: int
    steps: int
    tokens: int
    charts: list[Chart]
    compare: str  # runs of all trials beside each other


def sweep_list(project: Project) -> QuerySet[Sweep]:
    ended = Q(trials__state__in=[TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED])
    return (
        project.sweeps.select_related("created_by")
        .annotate(trial_count=Count("trials"), ended_count=Count("trials", filter=ended))
        .order_by("-pk")
    )


def sweep_page(sweep: Sweep) -> SweepPage:
    spec = sweep.parsed
    trials = list(sweep.trials.order_by("number").prefetch_related("runs__run"))
    runs = [one.run for trial in trials for one in trial.runs.all() if one.run]
    evidence = _evidence(runs)
    rewards = _rewards(runs)
    rows = [_row(spec, trial, evidence, rewards) for trial in trials]
    complete = [row for row in rows if row.trial.state == TrialState.COMPLETE and row.trial.value is not None]
    pick = max if spec.direction == "maximize" else min
    best = pick(complete, key=lambda row: row.trial.value or 0.0) if complete else None
    counts = {state.label.lower(): sum(row.trial.state == state for row in rows) for state in TrialState}
    return SweepPage(
        spec,
        rows,
        best,
        {word: count for word, count in counts.items() if count},
        spec.point_count(),
        sum(row.steps_done for row in rows),
        sum(run.token_count for run in runs),
        [_heat(spec, rows), _parallel(spec, complete), _overlaid(rows, rewards)],
        f"{reverse('runs-compared', args=[sweep.project_id])}?runs={','.join(str(run.pk) for run in runs[:64])}",
    )


def _row(
    spec: SweepSpec, trial: Trial, evidence: dict[int, Evidence], rewards: dict[int, list[tuple[int, float]]]
) -> Row:
    runs = [one.run for one in trial.runs.all() if one.run]
    values = [one.value for one in trial.runs.all() if one.value is not None]
    return Row(
        trial,
        runs,
        [shown(trial.point[key]) if key in trial.point else "—" for key in spec.parameters],
        [reward for _, reward in rewards.get(runs[0].pk, [])] if runs else [],
        sum(run.last_step + 1 for run in runs if run.last_step is not None),
        sum(run.steps_planned for run in runs),
        t_interval(values, is_share=spec.objective == "pass@1"),
        _mean_evidence([evidence[run.pk] for run in runs if run.pk in evidence]),
        theme.colour_of(trial.number),
    )


def _rewards(runs: Sequence[Run]) -> dict[int, list[tuple[int, float]]]:
    found: dict[int, list[tuple[int, float]]] = defaultdict(list)
    steps = Step.objects.filter(run__in=runs, split=TRAIN, is_current=True, reward_mean__isnull=False)
    for run, index, reward in steps.order_by("run", "index").values_list("run", "index", "reward_mean"):
        if reward is not None:
            found[run].append((index, reward))
    return found


def _evidence(runs: Sequence[Run]) -> dict[int, Evidence]:
    """Over the last steps of each run, by run; three queries."""
    last = Q()
    for run in runs:
        if run.last_step is not None:
            last |= Q(run=run, index__gt=run.last_step - EVIDENCE_STEPS)
    if not last:
        return {}
    steps = Step.objects.filter(last, split=TRAIN, is_current=True)
    means = steps.values("run").annotate(
        dead=Sum("dead_groups") * 1.0 / NullIf(Sum("group_count"), 0),
        length=Avg("length_mean"),
        cut=Avg("truncated_share"),
    )
    distinct = dict(
        StepSignal.objects.filter(step__in=steps).values_list("step__run").annotate(mean=Avg("distinct_answers"))
    )
    hits = dict(
        SearchHits.objects.filter(step__in=steps, search__is_archived=False, hits__isnull=False, scanned__gt=0)
        .filter(query_version=F("search__query_version"))
        .values_list("step__run")
        .annotate(share=Sum("hits") * 1.0 / Sum("scanned"))
    )
    return {
        one["run"]: Evidence(one["dead"], one["length"], one["cut"], distinct.get(one["run"]), hits.get(one["run"]))
        for one in means
    }


def _mean_evidence(found: Sequence[Evidence]) -> Evidence:
    def mean(name: str) -> float | None:
        known = [value for one in found if (value := getattr(one, name)) is not None]
        return statistics.fmean(known) if known else None

    return Evidence(*(mean(one.name) for one in fields(Evidence)))


def _heat(spec: SweepSpec, rows: Sequence[Row]) -> Chart:
    """The two parameters with most values; a cell is the median over all its runs."""
    names = sorted(spec.parameters, key=lambda key: -len({shown(row.trial.point.get(key)) for row in rows}))[:2]
    title, unit = "Where it is good", spec.objective
    if len(names) < 2:
        return Chart("grid", title, unit, None, nothing="Needs two parameters; this sweep varies one.")
    cells: dict[tuple[str, str], list[float]] = defaultdict(list)
    links: dict[tuple[str, str], str] = {}
    axes = [_axis(spec, name, rows) for name in names]
    for row in rows:
        place = shown(row.trial.point.get(names[0])), shown(row.trial.point.get(names[1]))
        links.setdefault(place, f"#trial-{row.trial.number}")
        cells[place] += [one.value for one in row.trial.runs.all() if one.value is not None]
    if not any(cells.values()):
        return Chart("grid", title, unit, None, nothing="No trial has ended yet; the grid fills as they do.")
    values = [[statistics.median(cells[x, y]) if cells.get((x, y)) else None for x in axes[0]] for y in axes[1]]
    figure = heat.figure(
        heat.HeatMap(
            names[0],
            names[1],
            unit,
            axes[0],
            axes[1],
            values,
            links=[[links.get((x, y)) for x in axes[0]] for y in axes[1]],
        )
    )
    meaning = "Median of the objective over the runs of a cell: seeds, and what other parameters vary."
    return Chart("grid", title, unit, figure, meaning)


def _axis(spec: SweepSpec, name: str, rows: Sequence[Row]) -> list[str]:
    """Values in their order; of a range those that were tried."""
    parameter = spec.space[name]
    values = parameter.values() if parameter.choices or parameter.step else []
    tried = [row.trial.point[name] for row in rows if name in row.trial.point]
    every = values or sorted(tried)
    return list(dict.fromkeys(shown(value) for value in [*every, *(one for one in tried if one not in every)]))


def _parallel(spec: SweepSpec, rows: Sequence[Row]) -> Chart:
    """A line a trial through all its settings to its objective, each axis from its lowest to its highest."""
    title = "Which settings lead where"
    if not rows:
        return Chart("parallel", title, spec.objective, None, nothing="No trial has ended yet.")
    axes = [_axis(spec, name, rows) for name in spec.parameters]
    ends = [row.trial.value or 0.0 for row in rows]
    low, span = min(ends), max(ends) - min(ends)
    traces = []
    for row, end in zip(rows, ends, strict=True):
        heights = [
            axis.index(shown(row.trial.point[name])) / max(1, len(axis) - 1) if name in row.trial.point else None
            for name, axis in zip(spec.parameters, axes, strict=True)
        ]
        height = (end - low) / span if span else 0.5
        texts = [*row.values, f"{end:.4g}"]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"trial {row.trial.number}",
                "x": [*spec.parameters, spec.objective],
                "y": [*heights, height],
                "text": texts,
                "meta": {"values": texts},
                "line": {"color": row.colour, "width": 1 + 2 * height},
                "hovertemplate": "%{x} %{text}",
            }
        )
    layout = theme.layout(x_title="", y_title="lowest to highest", hovermode="closest", showlegend=False)
    layout["xaxis"] |= {"type": "category", "rangemode": "normal"}
    layout["yaxis"] |= {"showticklabels": False}
    figure = theme.figure(traces, layout, table=theme.BY_X, x="setting")
    return Chart("parallel", title, "", figure, "One line a complete trial; the thicker, the higher its objective.")


def _overlaid(rows: Sequence[Row], rewards: dict[int, list[tuple[int, float]]]) -> Chart:
    lines = [
        curves.Curve(
            f"trial {row.trial.number}, seed {run.seed}",
            [step for step, _ in rewards[run.pk]],
            [reward for _, reward in rewards[run.pk]],
            row.colour,
            links=reverse("run-detail", args=[run.pk]),
        )
        for row in rows
        for run in row.runs
        if run.pk in rewards
    ]
    if not lines:
        return Chart("curves", "Reward", "reward", None, nothing="No step is stored yet; the curves grow as steps are.")
    note = f"The newest {MOST_CURVES} of {len(lines)} runs." if len(lines) > MOST_CURVES else ""
    figure = curves.figure(curves.CurveChart("reward", lines[-MOST_CURVES:]))
    return Chart("curves", "Mean reward of each step", "reward", figure, note=note, tall=True)
