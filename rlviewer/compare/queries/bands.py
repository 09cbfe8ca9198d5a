"""Curves of sets of runs, seeds as one line with a band, against steps, tokens, rollouts or time."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Band, Curve, CurveChart, figure
from rlviewer.compare.queries.arms import Arm, Choice
from rlviewer.compare.queries.heldout import AXES
from rlviewer.compare.queries.matrix import Curves, cell, run_curves
from rlviewer.runs.measures import PANELS, measure_of
from rlviewer.runs.queries.series import NO_SERIES, Points, metric_series_of

Floats = npt.NDArray[np.float64]
# Where the axis is not the step, seeds are read at so many places each has reached.
PLACES = 200


def band_charts(choice: Choice, query: Mapping[str, str]) -> list[Chart]:
    """A chart for the main measure of each panel that a run has recorded. Four queries."""
    axis = query.get("axis", "") if query.get("axis") in AXES else "step"
    runs = [run for arm in choice.arms for run in arm.runs]
    series = metric_series_of([run.pk for run in runs], [panel.names[0] for panel in PANELS])
    curves = {own.run_id: own for own in run_curves(runs)}
    charts = []
    for panel in PANELS:
        name = panel.names[0]
        lines: list[Curve] = []
        bands: list[Band] = []
        for arm in choice.ordered:
            found = [
                _placed(
                    series[run.pk].get(name, NO_SERIES).current,
                    curves.get(run.pk),
                    axis,
                    is_before=name.startswith("eval_"),
                )
                for run in arm.runs
            ]
            known = [one for one in found if one is not None]
            if not known:
                continue
            places, mean, low, high = _spread(known, on_steps=axis == "step", is_share=panel.is_share)
            shown: Sequence[int] = [int(x) for x in places] if axis != "seconds" else places.tolist()
            lines.append(
                Curve(
                    _named(arm, len(known)),
                    shown,
                    mean,
                    arm.colour,
                    markers=axis == "step" and name.startswith("eval_"),
                )
            )
            if len(known) > 1:
                bands.append(
                    Band(f"{arm.title}, 95 % over {len(known)} seeds", shown, low, high, arm.colour, in_legend=False)
                )
        if lines:
            measure = measure_of(name)
            drawn = figure(
                CurveChart(
                    panel.unit,
                    lines,
                    bands=bands,
                    is_share=panel.is_share,
                    x_title=AXES[axis] if axis != "step" else "step",
                )
            )
            title = panel.title if len(panel.names) == 1 else f"{panel.title}: {measure.title}"
            charts.append(Chart(panel.key, title, panel.unit, drawn, meaning=measure.meaning))
    return charts


def _named(arm: Arm, seeds: int) -> str:
    return f"{arm.title}, {seeds} seed{'s' if seeds != 1 else ''}"


def _placed(points: Points, curves: Curves | None, axis: str, *, is_before: bool) -> tuple[Floats, Floats] | None:
    """A metric's values with their places on the axis. `is_before`: a point at step n is of the weights after n steps."""
    steps, values = np.array(points.steps, np.float64), np.array(points.values, np.float64)
    if axis == "step":
        return (steps, values) if len(steps) else None
    if curves is None or not len(steps):
        return None
    sums: Floats = getattr(curves, axis)
    # How many of the stored training steps lie before the point, or are it.
    counts = np.searchsorted(curves.step, steps, side="left" if is_before else "right")
    return np.concatenate([[0.0], sums])[counts], values


def _spread(
    runs: Sequence[tuple[Floats, Floats]], *, on_steps: bool, is_share: bool
) -> tuple[Floats, list[float | None], list[float | None], list[float | None]]:
    """Places, mean over the runs that came so far, and a 95 % t interval where two or more did."""
    if on_steps or len(runs) == 1:
        places = np.unique(np.concatenate([places for places, _ in runs]))
        table = np.full((len(runs), len(places)), np.nan)
        for row, (own, values) in zip(table, runs, strict=True):
            row[np.searchsorted(places, own)] = values
    else:
        places = np.linspace(max(own[0] for own, _ in runs), max(own[-1] for own, _ in runs), PLACES)
        table = np.stack([np.interp(places, own, values, right=np.nan) for own, values in runs])
    cells = [cell(column.tolist(), is_share=is_share) for column in table.T]
    return places, [one.mean for one in cells], [one.low for one in cells], [one.high for one in cells]
