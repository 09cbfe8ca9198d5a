"""Pages of saved searches. Everybody in the project reads them; members write, viewers never."""

import csv
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from rlviewer.accounts.access import RANK, SignedInRequest, project_for, require_role, shown_role
from rlviewer.accounts.models import Project, Role
from rlviewer.outbox.services import current_seq
from rlviewer.runs.queries.run import visible_run
from rlviewer.search.browse import Sort
from rlviewer.search.language import FilterError, parse
from rlviewer.search.words import meaning
from rlviewer.watch import services
from rlviewer.watch.counting import waiting_steps
from rlviewer.watch.forms import SearchForm
from rlviewer.watch.models import SavedSearch
from rlviewer.watch.queries import CSV_COLUMNS, csv_rows, run_onsets, search_list, search_page, visible_search
from rlviewer.watch.services import SearchError
from rlviewer.watch.suspects import SUSPECTS


@require_GET
@login_required
def project_searches(request: SignedInRequest, project_id: int) -> HttpResponse:
    """The searches of a project; `?query=` begins a new one, `?archived=yes` lists those that are no longer watched."""
    project = project_for(request.user, project_id)
    query = request.GET.get("query", "").strip()
    return _list_page(request, project, SearchForm(project, initial={"query": query}), is_open=bool(query))


def _list_page(
    request: SignedInRequest, project: Project, form: SearchForm, *, is_open: bool, status: int = 200
) -> HttpResponse:
    is_archived = request.GET.get("archived") == "yes"
    context: dict[str, Any] = {"project": project, "is_archived": is_archived}
    context |= {"live_url": f"/ws/projects/{project.pk}/", "live_seq": current_seq(f"project:{project.pk}")}
    context["rows"] = search_list(project, archived=is_archived)
    if request.headers.get("HX-Request"):
        return render(request, "watch/_list.html", context)
    watched = {row.search.name.lower(): row.search.pk for row in context["rows"]} if not is_archived else {}
    context |= {
        "nav": "searches",
        "form": form,
        "is_open": is_open,
        "may_write": _may_write(request, project),
        "suspects": [(name, suspect, watched.get(name.lower())) for name, suspect in SUSPECTS.items()],
    }
    return render(request, "watch/searches.html", context, status=status)


def _may_write(request: SignedInRequest, project: Project) -> bool:
    role = shown_role(request.user, project)
    return role is not None and RANK[role] >= RANK[Role.MEMBER]


@require_POST
@login_required
def search_create(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Members save a search."""
    project = project_for(request.user, project_id, at_least=Role.MEMBER)
    form = SearchForm(project, request.POST)
    if form.is_valid():
        try:
            search = services.create_search(request.user, project, form.wanted())
        except SearchError as error:
            form.add_error(error.field, str(error))
        else:
            return redirect("search-detail", search.pk)
    return _list_page(request, project, form, is_open=True, status=422)


@require_POST
@login_required
def suspect_save(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Members watch for one of the ready-made suspects."""
    project = project_for(request.user, project_id, at_least=Role.MEMBER)
    try:
        search = services.save_suspect(request.user, project, request.POST.get("name", ""))
    except SearchError as error:
        messages.error(request, str(error))
        return redirect("project-searches", project.pk)
    return redirect("search-detail", search.pk)


@require_GET
@login_required
def search_detail(request: SignedInRequest, search_id: int) -> HttpResponse:
    """One search: its curve over runs, `?runs=1&runs=2`, of `?split=`."""
    search = visible_search(request.user, search_id)
    return _detail_page(request, search, SearchForm(search.project, initial=SearchForm.initial_of(search)))


def _detail_page(request: SignedInRequest, search: SavedSearch, form: SearchForm, *, status: int = 200) -> HttpResponse:
    runs = [int(n) for n in request.GET.getlist("runs") if n.isascii() and n.isdecimal() and len(n) <= 18]
    context: dict[str, Any] = {"search": search, "project": search.project}
    context |= {"live_url": f"/ws/projects/{search.project_id}/"}
    context |= {"live_seq": current_seq(f"project:{search.project_id}"), "waiting": waiting_steps(search)}
    context["page"] = search_page(search, runs, request.GET.get("split", ""))
    context["meaning"], context["trouble"] = _meaning(search)
    if request.headers.get("HX-Request"):
        return render(request, "watch/_search.html", context)
    context |= {"nav": "searches", "form": form, "may_write": _may_write(request, search.project)}
    return render(request, "watch/search.html", context, status=status)


def _meaning(search: SavedSearch) -> tuple[str, str]:
    """The query in words, and what is wrong with it where the language has changed since."""
    try:
        return meaning(parse(search.query), Sort.from_text("")).removesuffix(", newest first"), ""
    except FilterError as error:
        return "", f"At character {error.start + 1}: {error}"


@require_POST
@login_required
def search_edit(request: SignedInRequest, search_id: int) -> HttpResponse:
    """Members change a search."""
    search = visible_search(request.user, search_id)
    require_role(request.user, search.project, Role.MEMBER)
    form = SearchForm(search.project, request.POST)
    if form.is_valid():
        try:
            services.edit_search(request.user, search, form.wanted())
        except SearchError as error:
            form.add_error(error.field, str(error))
        else:
            return redirect("search-detail", search.pk)
    return _detail_page(request, search, form, status=422)


@require_POST
@login_required
def search_archive(request: SignedInRequest, search_id: int) -> HttpResponse:
    """Members put a search away, or bring it back."""
    search = visible_search(request.user, search_id)
    require_role(request.user, search.project, Role.MEMBER)
    try:
        services.archive_search(request.user, search, is_archived=request.POST.get("archived") != "no")
    except SearchError as error:
        messages.error(request, str(error))
    return redirect("search-detail", search.pk)


@require_GET
@login_required
def search_csv(request: SignedInRequest, search_id: int) -> HttpResponse:
    """Every counted step of every run."""
    search = visible_search(request.user, search_id)
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="search-{search.pk}.csv"'
    sheet = csv.writer(response)
    sheet.writerow(CSV_COLUMNS)
    # A name that a spreadsheet would take for a formula.
    sheet.writerows(
        [f"'{c}" if isinstance(c, str) and c[:1] in "=+-@" and c else c for c in row] for row in csv_rows(search)
    )
    return response


@require_GET
@login_required
def run_alarms(request: SignedInRequest, run_id: int) -> HttpResponse:
    """Which searches lie over their limit in a run, for its page."""
    run = visible_run(request.user, run_id)
    return render(request, "watch/_alarms.html", {"run": run, "onsets": run_onsets(run)})
