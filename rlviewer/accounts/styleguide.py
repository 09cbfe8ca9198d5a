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
        "form": SampleForm({"plain": "text", "broken": "1", "options": "a"}),
        "tabs": [
            {"label": "Overview", "href": "?", "current": True, "count": None},
            {"label": "Rollouts", "href": "?tab=rollouts", "current": False, "count": 128},
        ],
    }


@login_required
@require_GET
def styleguide(request: HttpRequest) -> HttpResponse:
    """Staff and site admins."""
    if not (request.user.is_staff or request.user.is_superuser):
        raise Http404
    return render(request, "styleguide.html", {"nav": "styleguide", **_samples()})
