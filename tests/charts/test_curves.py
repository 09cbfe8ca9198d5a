import json
import math

from rlviewer.charts.curves import Curve, CurveChart, Mark, figure

NAN, INF = float("nan"), float("inf")


def test_a_value_that_is_not_finite_is_a_gap_with_a_mark() -> None:
    curve = Curve("loss", [0, 1, 2, 3, 4], [1.0, NAN, 2.0, INF, -INF])
    drawn = figure(CurveChart(unit="loss", curves=[curve]))
    line, marks = drawn["data"]
    assert line["y"] == [1.0, None, 2.0, None, None]
    assert line["connectgaps"] is False
    assert marks["x"] == [1, 3, 4]
    assert marks["text"] == ["NaN", "infinite", "minus infinite"]
    # NaN and minus infinity at the foot, plus infinity at the top of an axis of their own.
    assert marks["y"] == [0.02, 0.98, 0.02] and marks["yaxis"] == "y2" and "yaxis2" in drawn["layout"]
    json.dumps(drawn, allow_nan=False)


def test_a_finite_curve_has_no_marks_and_its_values_unchanged() -> None:
    drawn = figure(CurveChart(unit="reward", curves=[Curve("reward", [0, 5], [0.1, -0.25])]))
    assert [trace["y"] for trace in drawn["data"]] == [[0.1, -0.25]]
    assert "yaxis2" not in drawn["layout"] and drawn["layout"]["showlegend"] is False


def test_superseded_points_are_thin_and_not_in_the_legend() -> None:
    curves = [Curve("now", [0, 1], [1.0, 2.0]), Curve("attempt 1", [1, 2], [3.0, 4.0], superseded=True)]
    drawn = figure(CurveChart(unit="reward", curves=curves, marks=[Mark(1, "attempt 2")]))
    now, before = drawn["data"]
    assert (now["line"]["dash"], before["line"]["dash"]) == ("solid", "dot")
    assert before["showlegend"] is False and drawn["layout"]["showlegend"] is False
    assert drawn["layout"]["shapes"][0]["x0"] == 1
    assert drawn["layout"]["annotations"][0]["text"] == "attempt 2"


def test_a_share_starts_at_zero_and_reads_as_percent() -> None:
    drawn = figure(CurveChart(unit="share", curves=[Curve("dead", [0], [0.5])], is_share=True))
    assert drawn["layout"]["yaxis"]["rangemode"] == "tozero"
    assert drawn["layout"]["yaxis"]["tickformat"] == ".2~%"


def test_a_refresh_keeps_zoom() -> None:
    first = figure(CurveChart(unit="", curves=[Curve("a", [0], [1.0])]))
    second = figure(CurveChart(unit="", curves=[Curve("a", [0, 1], [1.0, 2.0])]))
    assert first["layout"]["uirevision"] == second["layout"]["uirevision"]


def test_a_long_curve_keeps_its_extremes() -> None:
    values = [math.sin(i / 50) for i in range(50_000)]
    values[31_234] = 40.0
    (line,) = figure(CurveChart(unit="", curves=[Curve("a", range(50_000), values)]))["data"]
    assert len(line["x"]) <= 2000 and max(line["y"]) == 40.0


def test_what_is_missing_is_a_gap_and_no_mark() -> None:
    drawn = figure(CurveChart("nats", [Curve("kl", [0, 1, 2], [1.0, None, 3.0])]))
    (line,) = drawn["data"]
    assert line["y"] == [1.0, None, 3.0]


def test_few_steps_have_whole_ticks_and_no_spacing_that_a_far_zoom_would_repeat_thousands_of_times() -> None:
    axis = figure(CurveChart(unit="", curves=[Curve("a", [0, 3], [1.0, 2.0])]))["layout"]["xaxis"]
    assert axis["tickvals"] == [0, 1, 2, 3] and "dtick" not in axis
