"""The rollout browser over a run or a project. Everybody in the project reads; the address holds the whole state."""

import random
from dataclasses import dataclass
from typing import Any, Self

from django.contrib.auth.decorators import login_required
from django.db import OperationalError
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseRedirect,
    QueryDict,
    StreamingHttpResponse,
)
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from rlviewer.accounts.access import SignedInRequest, project_for
from rlviewer.runs.queries.rollout import visible_rollout
from rlviewer.runs.queries.run import visible_run
from rlviewer.runs.views import run_context
from rlviewer.search.browse import Place, Scope, Search, Sort, time_limit
from rlviewer.search.columns import chosen_columns, offered_columns, save_columns
from rlviewer.search.facets import facets
from rlviewer.search.fields import FIELDS, FORMS, Field
from rlviewer.search.language import FilterError, parse
from rlviewer.search.lines import read_lines, rows_html
from rlviewer.search.preview import preview
from rlviewer.search.sides import side_by_side
from rlviewer.search.totals import Counted, count, known_values, spread
from rlviewer.search.tree import All
from rlviewer.search.words import meaning

PER_PAGE, PER_SAMPLE = 100, 20
LIMIT_MS = 30_000
BEFORE_ALL, AFTER_ALL = 0, 10**17  # ids
# Named here, so that a page does not load Arrow to list them.
EXPORTS = (
    ("jsonl", "JSON lines", "Every stored value with prompt and completion, a line each"),
    ("csv", "CSV", "The same as a sheet"),
    ("parquet", "Parquet", "The same, exact to the bit"),
    ("sft", "SFT examples", "Prompt and completion of each, for supervised fine-tuning"),
    ("pairs", "Preference pairs", "Of each group the best and the worst of these rollouts, where their rewards differ"),
    ("prefixes", "Prefixes", "Prompt and the completion up to each recorded boundary of its steps"),
)
YES_NO = {"bool": ["yes", "no"], "filled": ["yes", "no"]}
TOO_LONG = (
    "This took longer than 30 s and was stopped. Narrow it by step:…, or look for whole words, which are indexed."
)


@dataclass(frozen=True, slots=True)
class State:
    """What the address says beside the filter."""

    filter: str
    sort: Sort
    after: Place | None
    before: Place | None
    is_end: bool

    @classmethod
    def from_query(cls, query: QueryDict) -> Self:
        """Unreadable values are left out: a mistyped address still shows rollouts."""
        sort = Sort.from_text(query.get("sort", ""))
        after = Place.from_text(query.get("after", ""), sort)
        if "at" in query and sort.field.is_number and after is None:
            edge = AFTER_ALL if sort.is_descending else BEFORE_ALL
            after = Place.from_text(f"={query['at']}~{edge}", sort)
            if after is not None and sort.field.name == "id":
                # At the rollout itself: what is compared is the id.
                after = Place(after.value, after.value + (1 if sort.is_descending else -1))
        before = Place.from_text(query.get("before", ""), sort)
        return cls(query.get("filter", "").strip(), sort, after, before, "end" in query)

    @property
    def is_first_page(self) -> bool:
        return not (self.after or self.before or self.is_end)


@require_GET
@login_required
def rollout_list(request: SignedInRequest, run_id: int) -> HttpResponse:
    """The rollouts of one run."""
    run = visible_run(request.user, run_id)
    return _browse(request, Scope(run.project, run), run_context(request, run, "rollouts"))


@require_GET
@login_required
def project_rollouts(request: SignedInRequest, project_id: int) -> HttpResponse:
    """The rollouts of all runs of a project."""
    project = project_for(request.user, project_id)
    context = {"project": project, "nav": "rollouts", "live_url": f"/ws/projects/{project.id}/"}
    return _browse(request, Scope(project), context)


def _browse(request: SignedInRequest, scope: Scope, context: dict[str, Any]) -> HttpResponse:
    if (where := _go_to(request)) is not None:
        return HttpResponseRedirect(where)
    state = State.from_query(request.GET)
    is_fragment = bool(request.headers.get("HX-Request"))
    part = request.GET.get("part", "") if is_fragment else ""
    context |= {"scope": scope, "run": scope.run, "state": state, "sort_text": str(state.sort)}
    try:
        search = Search(scope, state.filter)
        with time_limit(LIMIT_MS):
            if part == "total":
                return render(request, "search/_total.html", context | _total(request, search, state))
            if part == "facets":
                return render(request, "search/_facets.html", context | {"facets": facets(scope, state.filter)})
            if part == "scrubber":
                return render(
                    request, "search/_scrubber.html", context | {"spread": spread(search, state.sort, state.after)}
                )
            context |= _page(request, search, state)
    except FilterError as error:
        return _refused(request, context, state, error, is_fragment)
    except OperationalError as error:
        if "statement timeout" not in str(error):
            raise
        return _refused(request, context, state, FilterError(TOO_LONG, 0, len(state.filter)), is_fragment)
    if is_fragment:
        return render(request, "search/_more.html" if part == "more" else "search/_rollouts.html", context)
    return render(request, "search/rollouts.html", context | _controls(scope))


def _page(request: SignedInRequest, search: Search, state: State) -> dict[str, Any]:
    per_page = PER_SAMPLE if state.sort.seed is not None else PER_PAGE
    backwards = state.before is not None or state.is_end
    found = search.find(state.sort, after=state.before or state.after, backwards=backwards, limit=per_page)
    columns = chosen_columns(request.user, search.scope)
    lines = read_lines(found.ids, columns, search.tree)
    places, query = found.places, _query(request)
    has_next = found.has_more if not backwards else state.before is not None
    has_previous = found.has_more if backwards else not state.is_first_page
    return {
        "search": search,
        "found": found,
        "lines": lines,
        "rows": rows_html(lines),
        "columns": columns,
        "heads": _heads(columns, state.sort, query),
        "meaning": meaning(search.tree, state.sort),
        "next": _with(query, after=places[-1]) if places and has_next else "",
        "previous": _with(query, before=places[0]) if places and has_previous else "",
        "first": _with(query) if not state.is_first_page else "",
        "end": _with(query, end=1) if places and has_next else "",
        "resume": _with(query, after=found.resume, part="more") if found.resume and not backwards else "",
        "total_address": _with(query, part="total"),
        "facets_address": _with(query, part="facets"),
        "scrubber_address": _with(query, part="scrubber", **({"after": state.after} if state.after else {}))
        if state.sort.field.is_number and state.sort.seed is None
        else "",
        "random": _with(query, sort=f"random:{random.randrange(10**9)}"),  # noqa: S311
        "exports": _exports(search.scope, query),
        "all": _with(QueryDict()),
    }


def _controls(scope: Scope) -> dict[str, Any]:
    """What the filter box and its completion need to know. Four queries."""
    known, offered = known_values(scope), offered_columns(scope)
    return {
        "fields": [
            {
                "name": field.name,
                "kind": field.kind,
                "help": f"{field.help}{f' In {field.unit}.' if field.unit else ''}",
                "example": field.example,
                "values": known.get(field.name) or list(field.choices or YES_NO.get(field.kind, [])),
            }
            for field in (*FIELDS.values(), *(field for field in offered if field.part))
        ],
        "forms": FORMS,
        "all_columns": offered,
    }


def _refused(
    request: HttpRequest, context: dict[str, Any], state: State, error: FilterError, is_fragment: bool
) -> HttpResponse:
    """Where the filter is wrong. In an open page the last result stays on screen."""
    start, end = error.start, max(error.end, error.start + 1)
    problem = {
        "message": str(error),
        "before": state.filter[:start],
        "at": state.filter[start:end],
        "after": state.filter[end:],
        "start": start,
        "end": end,
    }
    context |= {"problem": problem, "all": "?"}
    if not is_fragment:
        return render(request, "search/rollouts.html", context | _controls(context["scope"]), status=422)
    response = render(request, "search/_problem.html", context, status=422)
    for name, value in {"HX-Retarget": "#filter-problem", "HX-Reswap": "outerHTML", "HX-Push-Url": "false"}.items():
        response.headers[name] = value
    return response


def _total(request: HttpRequest, search: Search, state: State) -> dict[str, Any]:
    counted = count(search, Counted.from_query(request.GET))
    again = _with(_query(request), part="total", **counted.as_query()) if counted.goes_on else ""
    return {"search": search, "counted": counted, "again": again}


def _go_to(request: HttpRequest) -> str | None:
    """`340` goes to step 340, `#1234` to rollout 1234, each in its order."""
    wanted = request.GET.get("go", "").strip()
    number = wanted.removeprefix("#")
    if not (number.isascii() and number.isdecimal() and len(number) <= 18):
        return None
    return request.path + _with(_query(request), sort="id" if wanted.startswith("#") else "step", at=number)


def _query(request: HttpRequest) -> QueryDict:
    """The state that all addresses of a list share: filter and order."""
    query = QueryDict(mutable=True)
    for name in ("filter", "sort"):
        if request.GET.get(name):
            query[name] = request.GET[name]
    return query


def _with(query: QueryDict, **changes: Any) -> str:
    changed = query.copy()
    for name, value in changes.items():
        changed[name] = str(value)
    return f"?{changed.urlencode(safe=':,()')}"


def _heads(columns: list[Field], sort: Sort, query: QueryDict) -> list[dict[str, Any]]:
    """Column heads; pressing one orders by it, pressing again turns the order round."""
    heads = []
    for field in columns:
        is_current = sort.seed is None and sort.field.name == field.name
        starts_low = field.kind in {"text", "choice"}
        is_down = (not sort.is_descending) if is_current else not starts_low
        heads.append(
            {
                "label": field.label,
                "n": field.is_number,
                "help": f"{field.help}{' Press to sort.' if field.is_column else ''}",
                "direction": ("descending" if sort.is_descending else "ascending") if is_current else "",
                "href": _with(query, sort=f"{'-' if is_down else ''}{field.name}") if field.is_column else "",
            }
        )
    return heads


@require_GET
@login_required
def rollout_preview(request: SignedInRequest, rollout_id: int) -> HttpResponse:
    """One rollout beside the list, what the filter looks for marked."""
    rollout = visible_rollout(request.user, rollout_id)
    try:
        tree = parse(request.GET.get("filter", ""))
    except FilterError:
        tree = All(())  # the list says what is wrong
    return render(request, "search/_preview.html", {"shown": preview(rollout, tree), "rollout": rollout})


@require_GET
@login_required
def rollout_compare(request: SignedInRequest) -> HttpResponse:
    """Up to eight rollouts side by side, those that the person may see."""
    ids = [int(n) for n in request.GET.get("ids", "").split(",") if n.isascii() and n.isdecimal() and len(n) <= 18]
    sides = side_by_side(request.user, list(dict.fromkeys(ids))[:8])
    projects = {side.rollout.step.run.project_id: side.rollout.step.run.project for side in sides}
    project = next(iter(projects.values())) if len(projects) == 1 else None
    return render(
        request, "search/compare.html", {"sides": sides, "project": project, "nav": "rollouts", "asked": len(ids)}
    )


@require_GET
@login_required
def run_export(request: SignedInRequest, run_id: int, name: str) -> HttpResponseBase:
    """What the filter finds of a run, as a file."""
    run = visible_run(request.user, run_id)
    return _export(request, Scope(run.project, run), name)


@require_GET
@login_required
def project_export(request: SignedInRequest, project_id: int, name: str) -> HttpResponseBase:
    """What the filter finds of a project, as a file."""
    return _export(request, Scope(project_for(request.user, project_id)), name)


def _export(request: SignedInRequest, scope: Scope, name: str) -> HttpResponseBase:
    # Arrow is big and an idle site does not need it.
    from rlviewer.search.exports import FORMATS, stream

    chosen, state = FORMATS.get(name), State.from_query(request.GET)
    if chosen is None:
        raise Http404(f"no export {name!r}")
    try:
        search = Search(scope, state.filter)
    except FilterError as error:
        return HttpResponse(
            f"The filter is wrong at character {error.start + 1}: {error}\n", "text/plain; charset=utf-8", 400
        )
    response = StreamingHttpResponse(stream(chosen.write(search, state.sort)), content_type=chosen.content_type)
    owner, pk = scope.owner
    response.headers["Content-Disposition"] = (
        f'attachment; filename="rollouts-of-{owner}-{pk}{"" if name == chosen.ending else f"-{name}"}.{chosen.ending}"'
    )
    return response


def _exports(scope: Scope, query: QueryDict) -> list[dict[str, str]]:
    owner, pk = scope.owner
    return [
        {"label": label, "help": help_text, "href": reverse(f"{owner}-rollouts-export", args=[pk, name]) + _with(query)}
        for name, label, help_text in EXPORTS
    ]


@require_POST
@login_required
def columns_save(request: SignedInRequest) -> HttpResponseBase:
    """The person's own columns."""
    save_columns(request.user, [] if "reset" in request.POST else request.POST.getlist("columns"))
    back = request.POST.get("next", "")
    is_ours = url_has_allowed_host_and_scheme(back, {request.get_host()}, require_https=request.is_secure())
    return HttpResponseRedirect(back if is_ours else reverse("home"))
