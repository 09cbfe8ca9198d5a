"""Pages of one run: overview, steps, groups, rollouts. Whoever is a member of its project reads; viewers change nothing."""

import json
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from rlviewer.accounts.access import require_role
from rlviewer.accounts.models import Role, User
from rlviewer.lib.json import dumps
from rlviewer.runs import services
from rlviewer.runs.logs import log_tail
from rlviewer.runs.models import Run
from rlviewer.runs.queries import run as run_queries
from rlviewer.runs.queries.curves import curve_series, overlay_of, run_charts
from rlviewer.runs.queries.evaluation import evaluation_page
from rlviewer.runs.queries.ledger import run_ledger
from rlviewer.runs.queries.rollout import packed_rollout, rollout_view, visible_rollout
from rlviewer.runs.queries.rollout_parts import (
    conversation_of,
    group_columns,
    ids_text,
    numbers_of,
    step_columns,
    stored_json,
    tokens_csv,
)
from rlviewer.runs.queries.step import StepFilters, number_from, step_page
from training.hooks import HOOKS

TABS = {"overview": "Overview", "steps": "Steps", "evaluation": "Evaluation", "config": "Config", "log": "Log"}
# Fragments of the run page that refresh themselves.
PARTS = {"live": "runs/_live.html", "newest": "runs/_newest.html", "log": "runs/_log.html"}

ROLLOUT_VIEWS = (("tokens", "Tokens"), ("read", "Read"), ("text", "Text"), ("ids", "Ids"), ("json", "JSON"))


def person(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


@require_GET
@login_required
def run_detail(request: HttpRequest, run_id: int) -> HttpResponse:
    """The run's page; `?tab=` chooses the view, `?part=` one of its fragments."""
    run = run_queries.visible_run(person(request), run_id)
    part = request.GET.get("part", "") if request.headers.get("HX-Request") else ""
    tab = request.GET.get("tab", "overview")
    if tab not in TABS:
        raise Http404(f"no view {tab!r}")
    context = run_context(request, run, tab)
    if part == "newest":
        return render(request, PARTS[part], context | {"newest": run_queries.newest_rollouts(run)})
    if part == "log":
        return render(request, PARTS[part], context | log_context(request, run))
    overlay = overlay_of(person(request), run, request.GET.get("with", "") if tab == "overview" else "")
    all_series = curve_series(overlay)
    series = all_series[run.pk]
    header = run_queries.run_header(person(request), run, series.get("seconds_step", run_queries.NO_SERIES))
    context |= {"header": header, "stats": run_queries.run_stats(run, series)}
    if tab == "overview":
        charts = run_charts(overlay, all_series, header.attempts)
        context |= {
            "overlay": overlay,
            "charts": [chart for chart in charts if chart.figure],
            "missing": [chart.title for chart in charts if not chart.figure],
        }
    if part == "live":
        return render(request, PARTS[part], context)
    return render(request, "runs/detail.html", context | tab_context(request, run, tab, series))


def run_context(request: HttpRequest, run: Run, tab: str) -> dict[str, Any]:
    """What every page of a run needs: its tabs and its address for live news."""
    here = reverse("run-detail", args=[run.pk])
    tabs = [
        {"label": label, "href": here if name == "overview" else f"{here}?tab={name}", "current": tab == name}
        for name, label in TABS.items()
    ]
    tabs.insert(
        1,
        {
            "label": "Rollouts",
            "href": reverse("rollout-list", args=[run.pk]),
            "current": tab == "rollouts",
            "count": f"{run.rollout_count:,}",
        },
    )
    tabs.insert(2, {"label": "Prompts", "href": reverse("run-prompts", args=[run.pk]), "current": tab == "prompts"})
    tabs.insert(3, {"label": "Signal", "href": reverse("signal", args=[run.pk]), "current": tab == "signal"})
    return {
        "run": run,
        "project": run.project,
        "nav": "runs",
        "tab": tab,
        "tabs": tabs,
        "live_url": f"/ws/runs/{run.pk}/",
    }


def tab_context(request: HttpRequest, run: Run, tab: str, series: dict[str, Any]) -> dict[str, Any]:
    if tab == "overview":
        return {"newest": run_queries.newest_rollouts(run)}
    if tab == "steps":
        rows = run_queries.step_rows(run, "train", number_from(request.GET.get("before")))
        return {"rows": rows, "ledger": run_ledger(run)}
    if tab == "evaluation":
        return {"evaluation": evaluation_page(run, series)}
    if tab == "log":
        return log_context(request, run)
    parts = [(hook_words(hook), part_words(part)) for hook, part in run.plugins.items() if part]
    return {"config_json": json.dumps(run.config, indent=2, ensure_ascii=False), "parts": parts}


def hook_words(hook: str) -> str:
    """What a hook decides; a source may name hooks that we do not know."""
    return HOOKS[hook].title if hook in HOOKS else hook


def part_words(part: Any) -> str:
    """A part of the algorithm as its source names it: a name, several, a name with its version, or settings."""
    if isinstance(part, list):
        return ", ".join(map(part_words, part))
    if isinstance(part, dict) and "name" in part:
        return " ".join(str(part[key]) for key in ("name", "version") if part.get(key))
    if isinstance(part, dict):
        return ", ".join(f"{name} {value}" for name, value in part.items())
    return str(part)


def log_context(request: HttpRequest, run: Run) -> dict[str, Any]:
    numbers = list(run.attempts.order_by("-number").values_list("number", flat=True))
    asked = number_from(request.GET.get("attempt"))
    number = asked if asked in numbers else (numbers[0] if numbers else 1)
    return {"log": log_tail(settings.HOME, run.uid, number), "log_attempt": number, "log_attempts": numbers}


@require_GET
@login_required
def step_detail(request: HttpRequest, run_id: int, split: str, index: int) -> HttpResponse:
    """The groups of one step; `?kind=` and `?attempt=` choose, `?after=` pages."""
    run = run_queries.visible_run(person(request), run_id)
    page = step_page(run, split, index, StepFilters.from_query(request.GET))
    context = {"run": run, "project": run.project, "nav": "runs", "page": page}
    template = "runs/_groups.html" if request.headers.get("HX-Request") else "runs/step.html"
    return render(request, template, context)


@require_GET
@login_required
def rollout_detail(request: HttpRequest, rollout_id: int) -> HttpResponse:
    """One rollout with its tokens and its group."""
    view = rollout_view(visible_rollout(person(request), rollout_id))
    return render(
        request,
        "runs/rollout.html",
        {
            "view": view,
            "run": view.run,
            "project": view.run.project,
            "rollout": view.rollout,
            "nav": "runs",
            "views": ROLLOUT_VIEWS,
            "nothing_text": nothing_text(view.rollout.length_tokens),
        },
    )


def nothing_text(length: int) -> str:
    if length:
        return "This source recorded text but no token values. The text is under “Text”."
    return "The completion is empty: the model ended at once."


@require_GET
@login_required
def rollout_raw(request: HttpRequest, rollout_id: int, what: str) -> HttpResponse:
    """What is stored, byte for byte: the completion, the prompt, the token ids, every token as CSV, or everything as JSON."""
    rollout = visible_rollout(person(request), rollout_id)
    if what == "prompt":
        data = bytes(rollout.group.prompt.text)
    elif what == "csv":
        data = tokens_csv(rollout)
    elif what == "json":
        # A key a line: readable, and a browser's parser, which rounds large numbers, need not lay it out.
        lines = (f"{dumps(key)}: {dumps(value)}" for key, value in stored_json(rollout).items())
        data = ("{\n" + ",\n".join(lines) + "\n}\n").encode()
    else:
        packed, _ = packed_rollout(rollout)
        data = packed.completion if what == "text" else ids_text(packed)
    ending = {"ids": "json", "json": "json", "csv": "csv"}.get(what, "txt")
    kind = {"json": "application/json", "csv": "text/csv; charset=utf-8", "txt": "text/plain; charset=utf-8"}[ending]
    response = HttpResponse(data, content_type=kind)
    disposition = "attachment" if "download" in request.GET else "inline"
    response.headers["Content-Disposition"] = f'{disposition}; filename="rollout-{rollout.pk}-{what}.{ending}"'
    return response


@require_GET
@login_required
def rollout_part(request: HttpRequest, rollout_id: int, part: str) -> HttpResponse:
    """What the rollout's page asks for when it is wanted: its numbers, its turns, or its group's or step's columns for the what-if."""
    rollout = visible_rollout(person(request), rollout_id)
    if part == "numbers":
        return HttpResponse(numbers_of(rollout), content_type="application/octet-stream")
    parts = {"turns": conversation_of, "group": group_columns, "step": step_columns}
    return JsonResponse(parts[part](rollout))


@require_POST
@login_required
def run_rename(request: HttpRequest, run_id: int) -> HttpResponse:
    """Members rename a run."""
    run = changeable_run(request, run_id)
    try:
        services.rename_run(person(request), run, request.POST.get("name", ""))
    except services.RunTextError as error:
        messages.error(request, str(error))
    return redirect("run-detail", run.pk)


@require_POST
@login_required
def run_tags(request: HttpRequest, run_id: int) -> HttpResponse:
    """Members tag a run."""
    run = changeable_run(request, run_id)
    try:
        services.tag_run(person(request), run, request.POST.get("tags", "").split(","))
    except services.RunTextError as error:
        messages.error(request, str(error))
    return redirect("run-detail", run.pk)


def changeable_run(request: HttpRequest, run_id: int) -> Run:
    """The run, 404 for strangers, 403 for viewers."""
    run = run_queries.visible_run(person(request), run_id)
    require_role(person(request), run.project, Role.MEMBER)
    return run
