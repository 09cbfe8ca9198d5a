"""Algorithms and runs side by side. Everybody in the project reads."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from rlviewer.accounts.access import SignedInRequest, project_for
from rlviewer.accounts.models import Role
from rlviewer.compare.queries.ladder import changes, children, ladder, node_of, presets_of
from rlviewer.compare.queries.matrix import matrix
from rlviewer.runs.models import Run
from training.hooks import HOOKS
from training.recipes import RECIPES

NEWEST_RUNS = 20


def _context(request: SignedInRequest, project_id: int) -> dict[str, Any]:
    project = project_for(request.user, project_id, at_least=Role.VIEWER)
    role = project.role_of(request.user)
    return {"nav": "algorithms", "project": project, "may_launch": role in {Role.MEMBER, Role.ADMIN}}


@require_GET
@login_required
def algorithms(request: SignedInRequest, project_id: int) -> HttpResponse:
    """The tree of algorithms, and how they did here on one task (`?task=`)."""
    context = _context(request, project_id)
    found = matrix(context["project"], request.GET.get("task", "").replace("\0", ""))
    return render(request, "compare/algorithms.html", context | {"nodes": ladder(context["project"]), "matrix": found})


@require_GET
@login_required
def algorithm_detail(request: SignedInRequest, project_id: int, name: str) -> HttpResponse:
    """One algorithm: formula, parts, knobs, relatives, presets and the runs that use it."""
    context = _context(request, project_id)
    if name not in RECIPES:
        raise Http404(f"no algorithm {name!r}")
    recipe = RECIPES[name]
    names = [name, *presets_of(name)]
    runs = Run.objects.filter(project=context["project"], algorithm__in=names).order_by("-pk")
    parts = [(hook, HOOKS[hook].title, ", ".join(entries) or "none") for hook, entries in recipe.parts.items()]
    return render(
        request,
        "compare/algorithm.html",
        context
        | {
            "recipe": recipe,
            "node": node_of(context["project"], recipe, 0, runs.count()),
            "parent": RECIPES.get(recipe.parent),
            "children": children(name),
            "changes": list(changes(recipe)),
            "formula": recipe.formula.replace(";  ", "\n"),
            "parts": parts,
            "knobs": sorted(recipe.params.items()),
            "presets": presets_of(name),
            "runs": runs[:NEWEST_RUNS],
        },
    )
