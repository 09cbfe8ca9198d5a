"""Every kind of figure: gaps stay gaps, links stay with their points, and all of it is strict JSON."""

import json
from typing import Any

import pytest

from rlviewer.accounts.styleguide import _charts
from rlviewer.charts import areas, bars, heat, ridges, scatter
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Band, Curve, CurveChart, figure


@pytest.mark.parametrize("chart", _charts(), ids=lambda chart: chart.key)
def test_every_kind_is_strict_json_that_ends_no_element(chart: Chart) -> None:
    assert "<" not in chart.json and json.loads(chart.json) == chart.figure


def test_text_of_a_figure_cannot_leave_its_element() -> None:
    chart = Chart("a", "A", "", {"data": [{"name": "</div><script>&"}]})
    assert json.loads(chart.json) == chart.figure and "<" not in chart.json and "&" not in chart.json


def test_a_band_is_parted_at_its_gap_and_its_edges_are_numbers() -> None:
    band = Band("95 % over 5 seeds", [0, 1, 2], [0.0, None, 4.0], [1.0, 2.0, 5.0])
    filled, low, high, _ = figure(CurveChart(unit="", curves=[Curve("a", [0], [1.0])], bands=[band]))["data"]
    assert (filled["x"], filled["y"]) == ([0, 0, None, 2, 2, None], [1.0, 0.0, None, 5.0, 4.0, None])
    assert (low["y"], high["y"]) == ([0.0, None, 4.0], [1.0, 2.0, 5.0])


def test_a_curve_says_of_how_many_its_values_are() -> None:
    same, changing = Curve("a", [0, 1], [1.0, 2.0], counts=[64, 64]), Curve("b", [0, 1], [1.0, 2.0], counts=[64, 1024])
    first, second = figure(CurveChart(unit="", curves=[same, changing]))["data"]
    assert "(n = 64 rollouts)" in first["hovertemplate"] and "text" not in first
    assert second["text"] == ["64", "1,024"] and "(n = %{text} rollouts)" in second["hovertemplate"]


def test_links_and_counts_stay_with_their_points_when_some_are_left_out() -> None:
    values = [float(i % 13) for i in range(5_000)]
    values[777] = 99.0
    curve = Curve("a", range(5_000), values, links=[f"/{i}/" for i in range(5_000)], counts=range(5_000))
    drawn = figure(CurveChart(unit="", curves=[curve]))
    (line,) = drawn["data"]
    assert drawn["is_thinned"] and 99.0 in line["y"]
    assert line["customdata"] == [f"/{x}/" for x in line["x"]]
    assert line["text"] == [f"{x:,}" for x in line["x"]]


def test_curves_of_one_chart_share_its_points() -> None:
    curves = [Curve(str(n), range(5_000), [float(i % (n + 7)) for i in range(5_000)]) for n in range(4)]
    drawn = figure(CurveChart(unit="", curves=curves, point_limit=2_000))
    assert all(len(line["x"]) <= 502 for line in drawn["data"])


def test_names_are_text_not_markup() -> None:
    (line,) = figure(CurveChart(unit="", curves=[Curve("<b>%{x}</b>", [0], [1.0])]))["data"]
    assert line["name"] == "&lt;b&gt;%{x}&lt;/b&gt;" and "%{x}" not in line["hovertemplate"]


def test_bars_keep_gaps_and_intervals() -> None:
    chart = bars.BarChart(
        "cause", "groups", ["a", "b"], [bars.Bars("x", [2, None], errors=[(1, 5), (0, 0)], links=["/a/", None])]
    )
    (trace,) = bars.figure(chart)["data"]
    assert trace["y"] == [2, None] and trace["customdata"] == ["/a/", None]
    assert (trace["error_y"]["array"], trace["error_y"]["arrayminus"]) == ([3, None], [1, None])


def test_a_histogram_names_its_bins() -> None:
    drawn = bars.histogram(bars.Histogram("tokens", "rollouts", [0, 10, 30], [bars.Counts("step 1", [3, 4])]))
    (trace,) = drawn["data"]
    assert (trace["x"], trace["width"], trace["y"]) == ([5.0, 20.0], [10, 20], [3, 4])
    assert drawn["x_names"] == ["0 to 10", "10 to 30"]


def test_areas_part_where_no_part_has_a_value() -> None:
    parts = [areas.Area("dead", [0.5, None, 0.2], links=["/0/", "/1/", "/2/"]), areas.Area("mixed", [0.5, None, None])]
    drawn = areas.figure(areas.AreaChart("share", [0, 1, 2], parts, is_share=True))["data"]
    assert [(t["name"], t["x"], t["y"], t["stackgroup"]) for t in drawn] == [
        ("dead", [0], [0.5], "0"), ("mixed", [0], [0.5], "0"), ("dead", [2], [0.2], "1"), ("mixed", [2], [None], "1")
    ]  # fmt: skip
    assert [t.get("customdata") for t in drawn] == [["/0/"], None, ["/2/"], None]
    assert [t["showlegend"] for t in drawn] == [True, True, False, False]


def test_long_areas_keep_the_extremes_of_every_part() -> None:
    spiky: list[Any] = [0.1] * 9_000
    spiky[4_321] = 0.9
    drawn = areas.figure(
        areas.AreaChart("share", range(9_000), [areas.Area("a", spiky), areas.Area("b", [0.05] * 9_000)])
    )
    assert all(4_321 in trace["x"] and len(trace["x"]) < 3_000 for trace in drawn["data"])


def test_a_signed_heat_map_is_white_at_zero() -> None:
    chart = heat.HeatMap("step", "prompt", "advantage", [0, 1], ["p"], [[-0.5, 2.0]], is_signed=True)
    (trace,) = heat.figure(chart)["data"]
    assert (trace["zmin"], trace["zmax"]) == (-2.0, 2.0) and trace["colorscale"][1][0] == 0.5


def test_the_lowest_value_of_a_heat_map_is_not_white() -> None:
    (trace,) = heat.figure(heat.HeatMap("x", "y", "u", [0, 1], ["p"], [[1.0, 2.0]]))["data"]
    assert (trace["zmin"], trace["zmax"]) == (0.8, 2.0)


def test_a_heat_map_keeps_its_gaps_and_its_links() -> None:
    chart = heat.HeatMap("x", "y", "u", [0, 1], ["p"], [[None, float("nan")]], links=[["/a/", None]])
    (trace,) = heat.figure(chart)["data"]
    assert trace["z"] == [[None, None]] and trace["customdata"] == [["/a/", None]]


def test_points_carry_names_and_links() -> None:
    chart = scatter.ScatterChart(
        "x", "y", [scatter.Points("a", [1, 3], [2, 9], ["<1>", "2"], links="/r/{x}/")], has_diagonal=True
    )
    drawn = scatter.figure(chart)
    assert drawn["data"][0]["text"] == ["&lt;1&gt;", "2"] and drawn["data"][0]["meta"] == {"href": "/r/{x}/"}
    assert (drawn["layout"]["shapes"][0]["x0"], drawn["layout"]["shapes"][0]["y1"]) == (1, 9)


def test_a_ridge_draws_shares_and_tells_counts() -> None:
    chart = ridges.RidgeChart(
        "reward", "rollouts", [0, 1, 2], [ridges.Ridge("step 0", [1, 3]), ridges.Ridge("step 1", [20, 20])]
    )
    _, first, _, second = ridges.figure(chart)["data"]
    assert first["meta"]["values"] == [1, 3] and second["meta"]["values"] == [20, 20]
    # Feet one apart, the oldest on top; the highest share, 0.75, reaches OVERLAP above its foot.
    assert first["y"] == pytest.approx([1 + ridges.OVERLAP / 3, 1 + ridges.OVERLAP])
    assert second["y"] == pytest.approx([ridges.OVERLAP * 2 / 3] * 2)
