"""The Signal tab: what a run is learning from, a page a question. Whoever is a member of its project reads."""

import csv
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from rlviewer.charts.overlay import Layer, overlaid
from rlviewer.lib.colour import run_colour
from rlviewer.lib.visible import visible_start
from rlviewer.runs.models import Run
from rlviewer.runs.queries.curves import Overlay, overlay_of
from rlviewer.runs.queries.run import may_act, visible_run
from rlviewer.runs.views import person, run_context
from rlviewer.signal.pages import DEFAULT, FURTHER, PAGES, SignalPage
from rlviewer.signal.queries.dead_groups import PROMPT_COLUMNS, prompt_list
from rlviewer.signal.steps import StepRange, waiting_steps


@require_GET
@login_required
def signal_page(request: HttpRequest, run_id: int, name: str = DEFAULT) -> HttpResponse:
    """One page of the tab; htmx gets the part below the tabs."""
    run = visible_run(person(request), run_id)
    if name not in PAGES:
        raise Http404(f"no page {name!r}")
    page, steps = PAGES[name], StepRange.from_query(request.GET)
    context = {"run": run, "page": page, "steps": steps, "waiting": waiting_steps(run)}
    part = request.GET.get("part", "")
    if part:
        if part not in page.parts:
            raise Http404(f"no part {part!r}")
        template, content = page.parts[part]
        return render(request, template, context | {"content": content(run, steps, request.GET)})
    overlay = overlay_of(person(request), run, request.GET.get("with", "") if page.takes_runs else "")
    context |= {
        "content": laid_over(overlay, page, steps, request.GET),
        "may_launch": may_act(person(request), run),
        "overlay": overlay,
    }
    if request.headers.get("HX-Request"):
        return render(request, "signal/_page.html", context)
    context |= run_context(request, run, "signal") | {"page_tabs": page_tabs(run, name)}
    return render(request, "signal/page.html", context)


def page_tabs(run: Run, current: str) -> list[dict[str, Any]]:
    """The pages of the tab, those of other apps last."""
    pages = [(key, page.title, reverse("signal-page", args=[run.pk, key])) for key, page in PAGES.items()]
    pages += [(name, title, reverse(name, args=[run.pk])) for name, title in FURTHER.items()]
    return [{"label": title, "href": href, "current": key == current} for key, title, href in pages]


def laid_over(overlay: Overlay, page: SignalPage, steps: StepRange, query: Mapping[str, str]) -> Any:
    """What the page shows of its run, with the curves of other runs in its charts."""
    content = page.content(overlay.run, steps, query)
    if not overlay.others:
        return content
    layers: dict[str, list[Layer]] = {}
    for other in overlay.others:
        for chart in page.content(other, steps, query).charts:
            layers.setdefault(chart.key, []).append(
                Layer(visible_start(other.name.encode(), 60), run_colour(other.pk), chart)
            )
    own = [
        Layer(visible_start(overlay.run.name.encode(), 60), run_colour(overlay.run.pk), chart)
        for chart in content.charts
    ]
    return replace(content, charts=[overlaid(layer, layers.get(layer.chart.key, [])) for layer in own])


@require_GET
@login_required
def signal_prompts(request: HttpRequest, run_id: int, which: str) -> HttpResponse:
    """A list of prompts to drop from the data, or to keep, as CSV."""
    run = visible_run(person(request), run_id)
    if which not in {"drop", "keep"}:
        raise Http404(f"no list {which!r}")
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="run-{run.pk}-prompts-to-{which}.csv"'
    lines = csv.writer(response)
    lines.writerow(PROMPT_COLUMNS)
    lines.writerows(prompt_list(run, StepRange.from_query(request.GET), drop=which == "drop"))
    return response
