"""The same chart of several runs, one over the other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlviewer.charts import theme
from rlviewer.charts.chart import Chart


@dataclass(frozen=True, slots=True)
class Layer:
    """A run's chart, with the name and the colour that the run has everywhere."""

    name: str
    colour: str
    chart: Chart


def is_by_step(chart: Chart) -> bool:
    """Whether it shows curves against the step, which is all that can lie over each other."""
    return chart.figure is not None and chart.figure["table"]["x"] == "step" and _first_line(chart) is not None


def overlaid(own: Layer, others: Sequence[Layer]) -> Chart:
    """`own` with the first curve of each of the others drawn into it; a chart that is no curves by step stays as it is."""
    layers = [layer for layer in (own, *others) if is_by_step(layer.chart)]
    if own not in layers or own.chart.figure is None:
        return own.chart
    lines = [(layer, line) for layer in layers if (line := _first_line(layer.chart))]
    traces = [_named(line, layer) for layer, line in lines]
    curves = {trace["name"] for trace in own.chart.figure["data"] if _is_line(trace)}
    note = f"Only {lines[0][1]['name']} is laid over." if len(curves) > 1 else ""
    layout = own.chart.figure["layout"] | {"showlegend": True}
    return replace(
        own.chart,
        figure=own.chart.figure | {"data": traces, "layout": layout},
        note=" ".join(filter(None, (own.chart.note, note))),
    )


def _is_line(trace: dict[str, Any]) -> bool:
    return (
        trace.get("type") == "scatter"
        and str(trace.get("mode", "")).startswith("lines")
        and not {"stackgroup", "fill"} & trace.keys()
        and trace.get("showlegend", True)
    )


def _first_line(chart: Chart) -> dict[str, Any] | None:
    return next((trace for trace in (chart.figure or {"data": []})["data"] if _is_line(trace)), None)


def _named(line: dict[str, Any], layer: Layer) -> dict[str, Any]:
    shown = str(line["hovertemplate"])
    named = shown if "%{fullData.name}" in shown else "%{fullData.name}: " + shown
    name = theme.plain(layer.name)
    return line | {
        "name": name,
        "hovertemplate": named,
        "line": line["line"] | {"color": layer.colour, "dash": "solid"},
    }
