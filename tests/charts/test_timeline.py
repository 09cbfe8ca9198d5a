import math

import pytest

from rlviewer.charts import timeline
from rlviewer.charts.curves import Mark
from rlviewer.charts.timeline import Dot, level


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        (1.0, timeline.STRONG_UP), (0.4, timeline.UP), (0.0, timeline.NONE), (-0.4, timeline.DOWN), (-0.6, timeline.STRONG_DOWN),
        (None, timeline.UNKNOWN), (math.nan, timeline.UNKNOWN),
    ],
)  # fmt: skip
def test_the_sign_and_the_reach_of_an_advantage(advantage: float | None, expected: int) -> None:
    assert level(advantage, largest=1.0) == expected


def test_dots_of_a_step_lie_side_by_side_and_the_table_keeps_their_step() -> None:
    dots = [Dot(3, 1.0, 0.5, f"dot {n}", f"/rollouts/{n}/") for n in range(2)] + [
        Dot(4, 0.0, -0.5, "<b>", "/rollouts/9/")
    ]
    made = timeline.timeline(dots, [Mark(3, "first <solved>")], y_title="reward", steps=(3, 4), largest=0.5)
    up, down = made["data"]
    # Two of step 3, a quarter of 0.7 to each side.
    assert up["x"] == pytest.approx([2.825, 3.175]) and down["x"] == [4.0]
    assert up["meta"]["xs"] == [3, 3] and up["customdata"] == ["/rollouts/0/", "/rollouts/1/"]
    assert down["text"] == ["&lt;b&gt;"] and made["layout"]["shapes"][0]["label"]["text"] == "first &lt;solved&gt;"
    assert up["marker"]["symbol"] != down["marker"]["symbol"]
