"""Pages of one group and of one prompt through all its visits. Whoever is a member of the project reads."""

from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from rlviewer.accounts.access import SignedInRequest
from rlviewer.runs.queries.group import GroupFilters, group_page, visible_group, whole_text
from rlviewer.runs.queries.step import number_from


@require_GET
@login_required
def group_detail(request: SignedInRequest, group_id: int) -> HttpResponse:
    """One group side by side; `?ref=` is the rollout to compare with, `?whole=` asks for all of one text."""
    group, filters = visible_group(request.user, group_id), GroupFilters.from_query(request.GET)
    whole = number_from(request.GET.get("whole"))
    if whole is not None and request.headers.get("HX-Request"):
        shown = whole_text(group, whole, filters.reference)
        return render(request, "runs/_text.html", {"shown": shown, "label": f"Completion of rollout {whole}"})
    page = group_page(group, filters)
    context = {"page": page, "group": group, "run": page.run, "project": page.run.project, "nav": "runs"}
    return render(request, "runs/group.html", context)
