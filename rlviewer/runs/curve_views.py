"""A run's curves apart from its page: a zoomed window of them in full, and the runs that may be laid over it."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from rlviewer.runs.queries.curves import chart_windows, overlay_choices, overlay_of
from rlviewer.runs.queries.run import visible_run
from rlviewer.runs.queries.step import number_from
from rlviewer.runs.views import person

LAST_STEP = 2**31 - 1  # of the column


@require_GET
@login_required
def run_curves(request: HttpRequest, run_id: int) -> JsonResponse:
    """Members of the project. Figures of the panels `?keys=` between the steps `?from=` and `?to=`, as JSON by key."""
    overlay = overlay_of(person(request), visible_run(person(request), run_id), request.GET.get("with", ""))
    first, last = number_from(request.GET.get("from")), number_from(request.GET.get("to"))
    keys = request.GET.get("keys", "").split(",")
    return JsonResponse(chart_windows(overlay, keys, first or 0, LAST_STEP if last is None else last))


@require_GET
@login_required
def run_overlay(request: HttpRequest, run_id: int) -> HttpResponse:
    """Members of the project. Runs that may be laid over this one and whose name holds `?search=`."""
    overlay = overlay_of(person(request), visible_run(person(request), run_id), request.GET.get("with", ""))
    choices = overlay_choices(person(request), overlay, request.GET.get("search", "").strip())
    return render(request, "runs/_overlay_choices.html", {"run": overlay.run, "choices": choices})
