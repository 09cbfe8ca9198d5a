"""The curves of a run's page: all measures of one run, or the main measure of up to eight runs over each other."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from django.db.models import Case, When
from django.urls import reverse

from rlviewer.accounts.models import User
from rlviewer.charts import theme
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import DASHES, Curve, CurveChart, Mark, figure
from rlviewer.lib.colour import run_colour
from rlviewer.lib.visible import visible_start
from rlviewer.runs.measures import MADE_OF_ROLLOUTS, PANEL_METRICS, PANELS, Panel, measure_of
from rlviewer.runs.models import Attempt, Run, Step
from rlviewer.runs.queries.series import NO_SERIES, Points, Series, metric_series_of, pass_at_k_name
from rlviewer.runs.queries.step_counts import Counts, step_counts

MOST_RUNS = 8
TOLD_EVENTS = 200
HELDOUT = "heldout"
# Of one chart, all its curves together: a page of charts stays light, a zoomed window is drawn in full.
PAGE_POINTS, WINDOW_POINTS = 1_000, 8_000
FOUND_RUNS = 20

SeriesOf = dict[int, dict[str, Series]]


@dataclass(frozen=True, slots=True)
class Overlay:
    """The run whose page it is, and the runs drawn over it."""

    run: Run
    others: Sequence[Run] = ()
    hidden: int = 0  # that were asked for and are not there, or not for this person

    @property
    def runs(self) -> list[Run]:
        return [self.run, *self.others]

    @property
    def ids(self) -> str:
        return ",".join(str(run.pk) for run in self.others)

    @property
    def is_full(self) -> bool:
        return len(self.runs) >= MOST_RUNS

    @property
    def chips(self) -> list[tuple[Run, str]]:
        """Each of the others with the address of the page without it."""
        return [(run, self._address([other for other in self.others if other != run])) for run in self.others]

    def with_run(self, run: Run) -> str:
        """Address of the page with one run more."""
        return self._address([*self.others, run])

    def _address(self, others: Sequence[Run]) -> str:
        # Of whichever page shows it.
        return f"?with={','.join(str(run.pk) for run in others)}" if others else "./"


def overlay_of(user: User, run: Run, asked: str) -> Overlay:
    """`run` with those that `?with=` names and this person may see. At most one query."""
    ids = [int(part) for part in asked.split(",") if part.isdecimal() and len(part) < 19]
    wanted = [pk for pk in dict.fromkeys(ids) if pk != run.pk][: MOST_RUNS - 1]
    if not wanted:
        return Overlay(run)
    found = Run.objects.visible_to(user).select_related("project").in_bulk(wanted)
    return Overlay(run, [found[pk] for pk in wanted if pk in found], len(wanted) - len(found))


def overlay_choices(user: User, overlay: Overlay, search: str) -> list[tuple[Run, str]]:
    """Runs that may be laid over, those of the same project first, each with the address of that page. One query."""
    runs = Run.objects.visible_to(user).exclude(pk__in=[run.pk for run in overlay.runs]).select_related("project")
    if search:
        runs = runs.filter(name__icontains=search.replace("\0", "")[:200])
    elsewhere = Case(When(project=overlay.run.project_id, then=0), default=1)
    return [(run, overlay.with_run(run)) for run in runs.order_by(elsewhere, "-id")[:FOUND_RUNS]]


def curve_series(overlay: Overlay) -> SeriesOf:
    """Everything that the curves and the strip of numbers are drawn from. One query."""
    return metric_series_of([run.pk for run in overlay.runs], [*PANEL_METRICS, "seconds_step"])


def run_charts(overlay: Overlay, series: SeriesOf, attempts: Sequence[Attempt]) -> list[Chart]:
    """The panels of the overview; one without a figure has nothing stored. Four queries at most."""
    run = overlay.run
    marks = [
        Mark(attempt.resumed_from_step or 0, f"attempt {attempt.number}")
        for attempt in reversed(attempts)
        if attempt.number > 1
    ]
    ticks = _ticks(run, series[run.pk].get("eval_pass_at_1", NO_SERIES))
    counts = step_counts(overlay.runs, ["train", HELDOUT])
    window = reverse("run-curves", args=[run.pk]) + (f"?with={overlay.ids}" if overlay.others else "")
    charts = []
    for panel in PANELS:
        names = _names(panel, overlay, series)
        if panel.is_optional and not names:
            continue
        measure = measure_of(panel.names[0])
        drawn = _drawn(overlay, panel, names, series, counts, marks=marks, ticks=ticks) if names else None
        note = f"Only {measure.title} is laid over." if overlay.others and len(panel.names) > 1 else ""
        charts.append(
            Chart(panel.key, panel.title, panel.unit, drawn, meaning=measure.meaning, window=window, note=note)
        )
    return charts


def chart_windows(overlay: Overlay, keys: Sequence[str], first: int, last: int) -> dict[str, dict[str, Any]]:
    """The figures of these panels between two steps, with the points just outside, so that lines reach the edge."""
    panels = [panel for panel in PANELS if panel.key in keys]
    names = [name for panel in panels for name in panel.names]
    whole = metric_series_of([run.pk for run in overlay.runs], names)
    series = {pk: {name: _between(found, first, last) for name, found in own.items()} for pk, own in whole.items()}
    counts = step_counts(overlay.runs, ["train", HELDOUT])
    drawn = {}
    for panel in panels:
        shown = _names(panel, overlay, series)
        if shown:
            drawn[panel.key] = _drawn(overlay, panel, shown, series, counts, point_limit=WINDOW_POINTS)
    return drawn


def _names(panel: Panel, overlay: Overlay, series: SeriesOf) -> list[str]:
    """Stored metrics of a panel, the main one first; only that one when several runs are drawn."""
    if overlay.others:
        return [name for name in panel.names[:1] if any(name in own for own in series.values())]
    own = series[overlay.run.pk]
    names = [pass_at_k_name(own) if name == "eval_pass_at_k" else name for name in panel.names]
    return [name for name in names if name and name in own]


def _drawn(
    overlay: Overlay,
    panel: Panel,
    names: Sequence[str],
    series: SeriesOf,
    counts: dict[tuple[int, str], Counts],
    *,
    marks: Sequence[Mark] = (),
    ticks: Sequence[Mark] = (),
    point_limit: int = PAGE_POINTS,
) -> dict[str, Any]:
    curves: list[Curve] = []
    for run, name, title, colour, dash in _lines(overlay, names):
        found = series[run.pk].get(name)
        if found is None:
            continue
        split, counted = (HELDOUT if name.startswith("eval_") else "train"), measure_of(name).counted
        of = counts.get((run.pk, split))
        curves.append(
            Curve(
                title,
                found.current.steps,
                found.current.values,
                colour,
                dash=dash,
                markers=split == HELDOUT,
                links=_step_links(run, split, name),
                counts=of.at(counted, found.current.steps) if of and counted else (),
                counted=counted,
            )
        )
        if not overlay.others and name == names[0]:
            curves += [
                Curve(f"{title}, attempt {attempt}", older.steps, older.values, superseded=True)
                for attempt, older in found.superseded.items()
            ]
    return figure(CurveChart(panel.unit, curves, marks, ticks, is_share=panel.is_share, point_limit=point_limit))


def _lines(overlay: Overlay, names: Sequence[str]) -> list[tuple[Run, str, str, str, str]]:
    """Run, metric, name, colour and dash of each line. A run has its own colour; its further measures have others."""
    own = run_colour(overlay.run.pk)
    if not overlay.others:
        colours = cycle([own, *(colour for colour in theme.SERIES_COLOURS if colour != own)])
        return [
            (overlay.run, name, measure_of(name).title, colour, DASHES[0])
            for name, colour in zip(names, colours, strict=False)
        ]
    lines, used = [], dict.fromkeys(theme.SERIES_COLOURS, 0)
    for run in overlay.runs:
        colour = run_colour(run.pk)
        # More runs than colours: two of the same colour differ in their dashes.
        lines.append((run, names[0], f"{run.name} #{run.pk}", colour, DASHES[used[colour] % len(DASHES)]))
        used[colour] += 1
    return lines


def _step_links(run: Run, split: str, name: str) -> str:
    """Where the points of curves lead: to what made them where rollouts did, else to the rollouts of their step."""
    if run.last_step is None:  # metrics alone
        return ""
    if split == "train" and name in MADE_OF_ROLLOUTS:
        return f"{reverse('signal-page', args=[run.pk, 'point'])}?metric={name}&step={{x}}"
    return reverse("step-detail", args=[run.pk, split, 0]).removesuffix("0/") + "{x}/"


def _between(series: Series, first: int, last: int) -> Series:
    return Series(_part(series.current, first, last), {n: _part(p, first, last) for n, p in series.superseded.items()})


def _part(points: Points, first: int, last: int) -> Points:
    start = max(0, bisect_left(points.steps, first) - 1)
    end = bisect_right(points.steps, last) + 1
    return Points(points.steps[start:end], points.values[start:end])


def _ticks(run: Run, evaluations: Series) -> list[Mark]:
    """What happened at which step: evaluations, checkpoints that are kept, events of the trainer. Two queries."""
    happened: dict[int, list[str]] = {}
    for step in evaluations.current.steps:
        happened.setdefault(step, []).append("evaluation")
    for step in run.checkpoints.filter(is_deleted=False).values_list("step", flat=True):
        happened.setdefault(step, []).append("checkpoint")
    steps = Step.objects.filter(run=run, split="train", is_current=True).exclude(events=[])
    for step, events in steps.order_by("-index").values_list("index", "events")[:TOLD_EVENTS]:
        happened.setdefault(step, []).extend(_kind_of(event) for event in events)
    return [Mark(step, ", ".join(dict.fromkeys(words))) for step, words in sorted(happened.items())]


def _kind_of(event: dict[str, Any]) -> str:
    """What a trainer calls an event, short enough for a chart."""
    return visible_start(str(event.get("kind", "event")).encode(), 60)
