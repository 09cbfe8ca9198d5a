"""Recipes beside what a step was really trained on: the matrix, and one recipe in full."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from django.db.models import QuerySet
from django.urls import reverse

from rlviewer.charts import bars, heat, scatter, theme
from rlviewer.charts.bars import BarChart, Bars
from rlviewer.charts.chart import Chart
from rlviewer.charts.heat import HeatMap
from rlviewer.charts.scatter import Points, ScatterChart
from rlviewer.counterfactual import jobs
from rlviewer.counterfactual.models import Replay, ReplayState
from rlviewer.counterfactual.queries.over_run import OverRun, over_run
from rlviewer.counterfactual.state import OWN, Knob, State, knobs_of, own_recipe, questions
from rlviewer.runs.models import Group, Rollout, Run, Step
from rlviewer.runs.queries.step import TRAIN
from rlviewer.signal import sums
from rlviewer.signal.queries.dead_groups import browse
from training.ranks import SAME, rank_correlation
from training.recipes import RECIPES

LISTED = 30
PARTS = ("advantages", "weights", "clip", "gradient")
MEASURES = ("flips", "woken", "died", "entered", "rank_correlation", "largest_difference", "counted_tokens", "moved_tokens",
            "effective_tokens", "clip_high", "clip_low", "share_correct", "share_positive", "share_top_tenth",
            "share_lengths", "loss")  # fmt: skip

Columns = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an answer, and how far it can be trusted."""

    name: str
    kind: str  # exact, approximate, cannot say
    why: str

    @property
    def mark(self) -> str:
        return {"exact": "=", "approximate": "≈"}.get(self.kind, "?")


@dataclass(frozen=True, slots=True)
class Line:
    """One recipe of the matrix. `replay` None: nobody asked yet."""

    name: str
    title: str
    href: str
    is_chosen: bool
    replay: Replay | None

    @property
    def short(self) -> str:
        return self.title.split(",")[0]

    @property
    def measures(self) -> Mapping[str, Any]:
        """None where it is not said."""
        return dict.fromkeys(MEASURES) | (self.replay.measures if self.replay is not None else {})

    @property
    def parts(self) -> list[Part]:
        labels = self.replay.labels if self.replay is not None else {}
        return [Part(name, *labels[name]) for name in PARTS if name in labels]

    @property
    def reason(self) -> str:
        """Why a number is missing, in words."""
        if self.replay is None:
            return "not asked yet"
        if not self.replay.is_over:
            return "being worked out"
        return self.replay.error or next((part.why for part in self.parts if part.kind == "cannot say"), "none")

    @property
    def clipped(self) -> float | None:
        high, low = self.measures["clip_high"], self.measures["clip_low"]
        return None if high is None else high + low

    @property
    def woken(self) -> int | None:
        return None if self.measures["woken"] is None else len(self.measures["woken"])

    @property
    def died(self) -> int | None:
        return None if self.measures["died"] is None else len(self.measures["died"])


@dataclass(frozen=True, slots=True)
class Changed:
    """A rollout whose advantage another recipe turns, wakes or silences."""

    rollout_id: int
    group: int
    number: int
    was: float | None
    now: float


@dataclass(frozen=True, slots=True)
class Chosen:
    line: Line
    knobs: Sequence[Knob]
    is_moved: bool
    flips: Sequence[Changed]
    woken: Sequence[tuple[int, str]]  # number of the group and where it leads
    died: Sequence[tuple[int, str]]
    charts: Sequence[Chart]


@dataclass(frozen=True, slots=True)
class Page:
    step: Step
    previous: tuple[int, str] | None  # step and address
    next: tuple[int, str] | None
    own: str  # title of the run's own recipe
    lines: Sequence[Line]
    choices: Sequence[tuple[str, str, bool]]  # recipes to tick: name, title, is shown
    chosen: Chosen
    done: int
    waiting: int
    asked: int
    correlations: Chart | None
    over: OverRun

    @property
    def wanted(self) -> int:
        """Recipes that nobody asked for yet."""
        return len(self.lines) - self.asked


def counterfactual_page(run: Run, step: Step, state: State) -> Page:
    """Seven queries."""
    own, beside, chosen = questions(run, state)
    known = jobs.known(step, [own, *beside, chosen])
    own_named = own_recipe(run)
    own_title = run.algorithm if own_named is None else own_named.title

    def line(question: jobs.Question) -> Line:
        name = question.recipe or OWN
        title = RECIPES[name].title if question.recipe else f"{own_title}, as the run trained"
        href = f"?{state.query(step=step.index, chosen=name, raw={})}#chosen"
        return Line(name, title, href, name == state.chosen, known.get(question.key))

    lines = [line(question) for question in (own, *beside)]
    rows = list(
        Rollout.objects.filter(group__step=step)
        .order_by("group__index", "number")
        .values_list("pk", "group__index", "number", "advantage", "kept")
    )
    groups = dict(Group.objects.filter(step=step).values_list("index", "pk"))
    picked = line(chosen)
    columns = {one.name: _columns(one.replay, len(rows)) for one in lines}

    def beside_step(steps: QuerySet[Step]) -> tuple[int, str] | None:
        index = steps.values_list("index", flat=True).first()
        return None if index is None else (index, f"?{state.query(step=index)}")

    neighbours = Step.objects.filter(run=run, split=TRAIN, is_current=True)
    states = [one.replay.state if one.replay else "" for one in [*lines, picked]]
    return Page(
        step=step,
        previous=beside_step(neighbours.filter(index__lt=step.index).order_by("-index")),
        next=beside_step(neighbours.filter(index__gt=step.index).order_by("index")),
        own=own_title,
        lines=lines,
        choices=[(name, recipe.title, name in state.recipes) for name, recipe in RECIPES.items()],
        chosen=_chosen(run, step, state, picked, bool(chosen.constants), rows, groups, lines[0]),
        done=sum(one in {ReplayState.FINISHED, ReplayState.FAILED} for one in states[:-1]),
        waiting=sum(one in {ReplayState.QUEUED, ReplayState.RUNNING} for one in states),
        asked=sum(bool(one) for one in states[:-1]),
        correlations=_correlations(lines, columns),
        over=over_run(
            run, [name for name in state.recipes if name != run.algorithm], f"?{state.query(step='STEP')}".replace("STEP", "{x}")
        ),
    )  # fmt: skip


def _columns(replay: Replay | None, count: int) -> Columns:
    if replay is None or not replay.columns:
        return {}
    found = sums.unpack(replay.columns)
    return found if all(len(column) == count for column in found.values()) else {}


def _chosen(
    run: Run,
    step: Step,
    state: State,
    line: Line,
    is_moved: bool,
    rows: Sequence[tuple[int, int, int, float | None, bool]],
    groups: Mapping[int, int],
    own: Line,
) -> Chosen:
    columns = _columns(line.replay, len(rows))
    flips: list[Changed] = []
    charts: list[Chart] = []
    if "advantage" in columns:
        now = np.where(columns["kept"], columns["advantage"], 0.0)
        was = np.array([0.0 if value is None or value != value or not kept else value for *_, value, kept in rows])
        turned = np.flatnonzero((was * now < 0) & (np.minimum(abs(was), abs(now)) > SAME))
        for place in turned[:LISTED].tolist():
            pk, group, number, advantage, _ = rows[place]
            flips.append(Changed(pk, group, number, advantage, float(now[place])))
        charts.append(_scatter(rows, was, now, line.title))
    charts += _lengths(run, step, line, own)
    indexes = dict(enumerate(sorted(groups)))

    def links(name: str) -> list[tuple[int, str]]:
        places = (line.measures[name] or [])[:LISTED]
        return [(indexes[place], reverse("group-detail", args=[groups[indexes[place]]])) for place in places if place in indexes]  # fmt: skip

    return Chosen(line, knobs_of(run, state), is_moved, flips, links("woken"), links("died"), charts)


def _scatter(rows: Sequence[tuple[Any, ...]], was: npt.NDArray[Any], now: npt.NDArray[Any], title: str) -> Chart:
    figure = scatter.figure(
        ScatterChart(
            "advantage it was trained with",
            f"advantage under {title}",
            [
                Points(
                    "rollouts",
                    was.tolist(),
                    now.tolist(),
                    texts=[f"group {group}, rollout {number}" for _, group, number, *_ in rows],
                    links=[reverse("rollout-detail", args=[pk]) for pk, *_ in rows],
                )
            ],
            has_diagonal=True,
        )
    )
    return Chart(
        "advantages",
        "Advantages",
        "per rollout",
        figure,
        meaning="0 for what stays out of the update. On the dotted line nothing changes; in the upper left and lower right the sign turns.",
        note="Where the tokens of a rollout have advantages of their own, their mean.",
    )


def _lengths(run: Run, step: Step, line: Line, own: Line) -> list[Chart]:
    parts = line.measures["share_lengths"]
    mine = own.measures["share_lengths"]
    if not parts:
        return []
    names = [f"{part['low']} to {part['high']}" for part in parts]
    links = [browse(run, f"step:{step.index}", f"length:{part['low']}..{part['high']}") for part in parts]
    series = [Bars(line.title, [part["share"] for part in parts], links=links)]
    if mine and len(mine) == len(parts) and own.name != line.name:
        series.append(Bars(own.title, [part["share"] for part in mine], links=links, colour=theme.colour_of(1)))
    return [
        Chart(
            "lengths",
            "Gradient by length",
            "share",
            bars.figure(BarChart("tokens of the completion", "share of the gradient", names, series, is_share=True)),
            meaning="Share of the sum of |gradient by each token's log-probability|, over quarters of the rollouts by length.",
        )
    ]


def _correlations(lines: Sequence[Line], columns: Mapping[str, Columns]) -> Chart | None:
    """Spearman's between the advantages of every two recipes, over the rollouts that both let in."""
    there = [one for one in lines if "advantage" in columns[one.name]]
    if len(there) < 2:
        return None
    values: list[list[float | None]] = []
    for first in there:
        row: list[float | None] = []
        for second in there:
            a, b = columns[first.name], columns[second.name]
            both = a["kept"] & b["kept"]
            row.append(rank_correlation(a["advantage"][both], b["advantage"][both]))
        values.append(row)
    titles = [one.short for one in there]
    figure = heat.figure(HeatMap("recipe", "recipe", "Spearman", titles, titles, values, is_signed=True))
    return Chart(
        "correlations",
        "Rank correlation between recipes",
        "Spearman",
        figure,
        meaning="Of the advantages of the rollouts that enter the update under both. Empty where one side does not vary.",
        tall=True,
    )
