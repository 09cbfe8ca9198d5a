"""The list of a project's runs."""

from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from rlviewer.accounts.access import SignedInRequest, project_for, shown_role
from rlviewer.accounts.models import Role
from rlviewer.outbox.models import Topic
from rlviewer.runs.queries.run_list import RunFilters, run_page

COLUMNS = (
    # key of the sort, label, is a number, definition
    ("name", "Run", False, ""),
    ("", "State", False, ""),
    ("algorithm", "Algorithm", False, ""),
    ("task", "Task", False, ""),
    ("steps", "Steps", False, "Training steps stored, of those planned"),
    ("reward", "Reward", False, "Mean reward of each training step; the number is the newest step's"),
    ("pass", "pass@1", True, "Share of held-out prompts solved by one completion, at the newest evaluation"),
    ("gain", "Gain", True, "pass@1 now minus that of the base model, in percentage points"),
    (
        "dead",
        "Dead",
        True,
        "Share of groups of the newest step whose rollouts all got the same reward: they teach nothing",
    ),
    ("tokens", "Tokens", True, "Tokens of all stored rollouts"),
    ("age", "Queued", True, "When the run was queued"),
)


def _heads(sort: str) -> list[dict[str, object]]:
    """Column heads; pressing one orders by it, pressing again turns the order round."""
    heads: list[dict[str, object]] = []
    for key, label, is_number, help_text in COLUMNS:
        first = key if key in {"name", "algorithm", "task", "model"} else f"-{key}"
        direction = {key: "ascending", f"-{key}": "descending"}.get(sort, "") if key else ""
        turned = key if sort == f"-{key}" else f"-{key}"
        heads.append(
            {"label": label, "n": is_number, "help": help_text, "direction": direction}
            | {"sort": (turned if direction else first) if key else ""}
        )
    return heads


@require_GET
@login_required
def run_list(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Everybody in the project. The whole state is in the URL; htmx gets the list alone."""
    project = project_for(request.user, project_id)
    filters = RunFilters.from_query(request.GET)
    topic = f"project:{project.id}"
    context = {
        "nav": "runs",
        "project": project,
        "may_launch": shown_role(request.user, project) != Role.VIEWER,
        # Read before the rows: news that comes in between makes the page look again.
        "live_seq": Topic.objects.filter(name=topic).values_list("seq", flat=True).first() or 0,
        "live_url": f"/ws/projects/{project.id}/",
        "filters": filters,
        "page": run_page(project, filters),
        "heads": _heads(filters.sort),
    }
    return render(request, "runs/_list.html" if request.headers.get("HX-Request") else "runs/list.html", context)
