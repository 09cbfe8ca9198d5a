"""Every component in every state, on one page."""

import math
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from rlviewer.charts import areas, bars, curves, heat, ridges, scatter
from rlviewer.charts.chart import Chart
from rlviewer.lib.colour import BUCKETS, RUN_COLOURS
from rlviewer.lib.icons import ICONS, STATE_ICONS


class SampleForm(forms.Form):
    plain = forms.CharField(label="Plain", help_text="One sentence of help.", required=False)
    broken = forms.IntegerField(label="With an error", min_value=2)
    options = forms.ChoiceField(label="Choice", choices=[("a", "First"), ("b", "Second")])
    tick = forms.BooleanField(label="A check box", required=False)


def _samples() -> dict[str, Any]:
    now = timezone.now()
    curve = [math.sin(i / 9) + i / 40 for i in range(80)]
    return {
        "icons": sorted(ICONS),
        "states": STATE_ICONS,
        "kinds": ["blue", "green", "red", "amber", "outline"],
        "run_ids": range(len(RUN_COLOURS)),
        "buckets": range(BUCKETS),
        "numbers": [0, 1, 0.123456, 1234, 123456, 2.5e-7, math.nan, math.inf, None],
        "differences": [0.031, -0.2, 0.0],
        "times": [now, now - timedelta(minutes=7), now - timedelta(days=3), None],
        "seconds": [0.0123, 59.7, 3725, 90061],
        "curve": curve,
        "gappy": [*curve[:30], None, None, *curve[32:]],
        "charts": _charts(),
        "form": SampleForm({"plain": "text", "broken": "1", "options": "a"}),
        "tabs": [
            {"label": "Overview", "href": "?", "current": True, "count": None},
            {"label": "Rollouts", "href": "?tab=rollouts", "current": False, "count": 128},
        ],
    }


def _charts() -> list[Chart]:
    """One of each kind. `{x}` and `{y}` in a link are the point's own."""
    steps = list(range(60))
    wave = [math.sin(step / 9) + step / 40 for step in steps]
    gap = [None if 20 <= step < 26 else 0.5 + math.sin(step / 9) / 3 for step in steps]
    edges = [number / 10 for number in range(11)]
    return [
        Chart(
            "sample-curves",
            "Reward",
            "mean per step",
            curves.figure(
                curves.CurveChart(
                    unit="reward",
                    curves=[
                        curves.Curve(
                            "run 0", steps, [*wave[:40], math.nan, *wave[41:]], links="#step-{x}", counts=[64] * 60
                        ),
                    ],
                    bands=[curves.Band("95 % over 5 seeds", steps, [v - 0.3 for v in wave], [v + 0.3 for v in wave])],
                    marks=[curves.Mark(30, "attempt 2")],
                    ticks=[curves.Mark(10, "checkpoint")],
                )
            ),
            meaning="Unscaled, as the reward function gave it.",
        ),
        Chart(
            "sample-bars",
            "Where groups died",
            "groups",
            bars.figure(
                bars.BarChart(
                    "cause",
                    "groups",
                    ["all right", "all wrong", "equal part"],
                    [
                        bars.Bars("train", [12, 30, 4], errors=[(9, 15), (24, 37), (2, 7)], links="#{x}"),
                        bars.Bars("held-out", [5, 9, None]),
                    ],
                )
            ),
            meaning="Groups of which every rollout got the same reward, by cause.",
            note="The lines are 95 % intervals.",
        ),
        Chart(
            "sample-areas",
            "How much of a step taught",
            "share of groups",
            areas.figure(
                areas.AreaChart(
                    "share of groups",
                    steps,
                    [
                        areas.Area("all wrong", gap, links="#wrong-{x}"),
                        areas.Area("mixed", [None if value is None else 1 - value for value in gap]),
                    ],
                    is_share=True,
                )
            ),
            meaning="The rest of the steps stored nothing.",
        ),
        Chart(
            "sample-heat",
            "Advantage by position",
            "advantage",
            heat.figure(
                heat.HeatMap(
                    "step",
                    "prompt",
                    "advantage",
                    list(range(12)),
                    ["12 + 30", "7 x 8", "91 - 45"],
                    [[None if x == 5 else math.sin(x + y) * (y + 1) for x in range(12)] for y in range(3)],
                    links="#prompt-{y}-{x}",
                    is_signed=True,
                )
            ),
            meaning="Blue above 0, orange below, white at 0; an empty cell has no rollout.",
        ),
        Chart(
            "sample-scatter",
            "Does it repeat itself?",
            "",
            scatter.figure(
                scatter.ScatterChart(
                    "entropy, nats",
                    "reward",
                    [
                        scatter.Points(
                            "right",
                            [0.2, 0.5, 0.9],
                            [1, 0.9, 0.7],
                            ["rollout 1", "rollout 2", "rollout 3"],
                            links=["#1", "#2", None],
                        ),
                        scatter.Points("wrong", [0.1, 1.4], [0, 0.2], ["rollout 4", "rollout 5"]),
                    ],
                )
            ),
            meaning="A point a rollout.",
        ),
        Chart(
            "sample-ridges",
            "Reward of each step",
            "rollouts",
            ridges.figure(
                ridges.RidgeChart(
                    "reward",
                    "rollouts",
                    edges,
                    [
                        ridges.Ridge(
                            f"step {step}",
                            [round(20 * math.exp(-((bin_ - step) ** 2) / 6)) for bin_ in range(10)],
                            links=f"#step-{step}",
                        )
                        for step in range(0, 10, 2)
                    ],
                )
            ),
            meaning="Each step's distribution, as shares of its rollouts.",
        ),
        Chart(
            "sample-histogram",
            "Length of completions",
            "rollouts",
            bars.histogram(
                bars.Histogram(
                    "tokens",
                    "rollouts",
                    [16 * n for n in range(9)],
                    [bars.Counts("step 7", [0, 3, 9, 14, 8, 4, 2, 1], links="#length-{x}")],
                )
            ),
            meaning="How many completions fell into each bin of 16 tokens.",
        ),
        Chart("sample-nothing", "Critic", "share", None, nothing="Not applicable: this method has no critic."),
    ]


@login_required
@require_GET
def styleguide(request: HttpRequest) -> HttpResponse:
    """Staff and site admins."""
    if not (request.user.is_staff or request.user.is_superuser):
        raise Http404
    return render(request, "styleguide.html", {"nav": "styleguide", **_samples()})
