"""Algorithms and runs side by side. Everybody in the project reads."""

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from rlviewer.accounts.access import SignedInRequest, project_for
from rlviewer.accounts.models import Role
from rlviewer.compare.queries.arms import GROUPINGS, Choice, choice_of
from rlviewer.compare.queries.bands import band_charts
from rlviewer.compare.queries.equal import equal_table
from rlviewer.compare.queries.evidence import evidence
from rlviewer.compare.queries.heldout import AXES, MEASURES
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


@require_GET
@login_required
def runs_compared(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Sets of runs (`?runs=1,2,3`, put together as `?by=` says) against a baseline (`?baseline=`).

    `?axis=` is what the runs have equal, `?measure=` what is compared; `?part=evidence` is the fragment that takes longer.
    """
    context = _context(request, project_id) | {"nav": "runs"}
    query = {key: str(value).replace("\0", "") for key, value in request.GET.dict().items()}
    choice = choice_of(request.user, project_id, query)
    context["choice"] = choice
    if query.get("part") == "evidence":
        return render(
            request,
            "compare/_evidence.html",
            context | {"evidence": evidence(choice, query), "apart": choice.address(by="run")},
        )
    axis = query.get("axis", "") if query.get("axis") in AXES else "step"
    measure = query.get("measure", "") if query.get("measure") in MEASURES else "pass_at_1"
    return render(
        request,
        "compare/runs.html",
        context
        | {
            "charts": band_charts(choice, query),
            "equal": equal_table(choice, axis),
            "axis_words": AXES[axis],
            "picks": [
                ("Sets", _links(choice, "by", GROUPINGS, choice.grouping)),
                ("At equal", _links(choice, "axis", AXES, axis)),
                ("Measure", _links(choice, "measure", MEASURES, measure)),
                (
                    "Baseline",
                    _links(
                        choice,
                        "baseline",
                        {str(arm.key): arm.title for arm in choice.arms},
                        str(choice.baseline.key) if choice.baseline else "",
                    ),
                ),
            ],
        },
    )


def _links(choice: Choice, name: str, options: Mapping[str, str], chosen: str) -> list[tuple[str, str, bool]]:
    """Words, address and whether it is the one in use."""
    return [(words, choice.address(**{name: key}), key == chosen) for key, words in options.items()]
