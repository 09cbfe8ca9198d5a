"""Rollouts by meaning: clusters of what a filter finds, what lies near a text or a rollout. Members ask for embedding."""

from dataclasses import dataclass, replace
from typing import Any, Self

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import OperationalError
from django.http import HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from rlviewer.accounts.access import SignedInRequest, project_for, require_role, shown_role
from rlviewer.accounts.models import Project, Role, User
from rlviewer.analysis import jobs, queries, vectors
from rlviewer.analysis.models import EmbeddingJob
from rlviewer.analysis.selection import SAMPLED, Selection
from rlviewer.runs.models import Run
from rlviewer.runs.queries.rollout import visible_rollout
from rlviewer.runs.queries.run import visible_run
from rlviewer.runs.views import changeable_run, run_context
from rlviewer.search.browse import Scope, Search, time_limit
from rlviewer.search.language import FilterError
from rlviewer.search.views import LIMIT_MS, TOO_LONG
from rlviewer.search.words import meaning, order
from training.sentences import MAX_TOKENS, MODEL

PARTS = {
    "coverage": "analysis/_coverage.html",
    "counts": "analysis/_coverage.html",
    "found": "analysis/_found.html",
}
FAILURES = "correct:no"
FEWEST, USUAL, MOST = 2, 8, 20
FACTS = {
    "model": MODEL,
    "max_tokens": MAX_TOKENS,
    "fewest": FEWEST,
    "most": MOST,
    "text_chars": jobs.TEXT_CHARS,
    "needs_extension": vectors.NEEDS_EXTENSION,
}


@dataclass(frozen=True, slots=True)
class State:
    """What the address says. Without a filter: failures; with an empty one: everything."""

    filter: str
    count: int
    text: str

    @classmethod
    def from_query(cls, query: QueryDict) -> Self:
        number = query.get("k", "")
        count = int(number) if number.isascii() and number.isdecimal() and len(number) < 4 else USUAL
        return cls(query.get("filter", FAILURES).strip(), min(MOST, max(FEWEST, count)), query.get("means", "").strip())

    @property
    def query(self) -> str:
        query = QueryDict(mutable=True)
        query["filter"] = self.filter
        if self.count != USUAL:
            query["k"] = str(self.count)
        if self.text:
            query["means"] = self.text
        return query.urlencode(safe=":,()")


@require_GET
@login_required
def run_clusters(request: SignedInRequest, run_id: int) -> HttpResponse:
    """The rollouts of a run by meaning."""
    run = visible_run(request.user, run_id)
    return _clusters(request, Scope(run.project, run), run_context(request, run, "rollouts"))


@require_GET
@login_required
def project_clusters(request: SignedInRequest, project_id: int) -> HttpResponse:
    """The rollouts of all runs of a project by meaning."""
    project = project_for(request.user, project_id)
    context = {"project": project, "nav": "rollouts", "live_url": f"/ws/projects/{project.id}/"}
    return _clusters(request, Scope(project), context)


def _clusters(request: SignedInRequest, scope: Scope, context: dict[str, Any]) -> HttpResponse:
    state = State.from_query(request.GET)
    part = request.GET.get("part", "") if request.headers.get("HX-Request") else ""
    owner, pk = scope.owner
    context |= FACTS | {
        "scope": scope,
        "run": scope.run,
        "state": state,
        "clusters_query": replace(state, text="").query,
        "may_ask": _may_ask(request.user, scope),
        "ask_url": reverse(f"{owner}-embed", args=[pk]),
        "list_url": _list_url(scope),
    }
    try:
        search = Search(scope, state.filter)
        with time_limit(LIMIT_MS):
            if part == "coverage" and (progress := _progress(_newest_job(scope, state))):
                return render(request, "analysis/_progress.html", context | progress)
            context |= _coverage(search, state)
            if part not in {"coverage", "counts"}:
                context |= _found(search, state, context["coverage"].selection)
    except FilterError as error:
        problem = f"The filter is wrong at character {error.start + 1}: {error}"
        return render(request, "analysis/clusters.html", context | {"problem": problem}, status=422)
    except OperationalError as error:
        if "statement timeout" not in str(error):
            raise
        return render(request, "analysis/clusters.html", context | {"problem": TOO_LONG}, status=422)
    # A fragment that was waited for has news for the rest of the page.
    context["has_news"] = part == "coverage"
    return render(request, PARTS.get(part, "analysis/clusters.html"), context)


def _coverage(search: Search, state: State) -> dict[str, Any]:
    return {
        "coverage": queries.coverage(search),
        "meaning": meaning(search.tree, SAMPLED).removesuffix(f", {order(SAMPLED)}")
        if search.tree.parts
        else "All rollouts",
        "is_ready": vectors.is_ready(),
        "job": (job := _newest_job(search.scope, state)),
        **_progress(job),
    }


def _newest_job(scope: Scope, state: State) -> EmbeddingJob | None:
    assert scope.project is not None
    return jobs.newest_job(scope.project, scope.run, state.filter)


def _progress(job: EmbeddingJob | None) -> dict[str, Any]:
    """What a job that waits or works shows; nothing for one that is over."""
    if job is None or job.is_over:
        return {}
    return {"active": job, "seconds_left": queries.seconds_left(job)}


def _found(search: Search, state: State, selection: Selection) -> dict[str, Any]:
    if not vectors.is_ready():
        return {}
    if not state.text:
        return {"clusters": queries.found_clusters(selection.ids, state.count)}
    assert search.scope.project is not None
    job = jobs.known_text(search.scope.project, state.text)
    context: dict[str, Any] = {"text_job": job, "text_active": None if job is None or job.is_over else job}
    if job is not None and job.vector is not None:
        context["near"] = queries.near_text(search, bytes(job.vector), selection)
    return context


@require_POST
@login_required
def run_embed(request: SignedInRequest, run_id: int) -> HttpResponse:
    """Members and admins of the project."""
    run = changeable_run(request, run_id)
    return _ask(request, run.project, run)


@require_POST
@login_required
def project_embed(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Members and admins of the project."""
    return _ask(request, project_for(request.user, project_id, at_least=Role.MEMBER), None)


def _ask(request: SignedInRequest, project: Project, run: Run | None) -> HttpResponse:
    """Embed what a filter finds, or a text to look for; then the page that shows it."""
    state = State.from_query(request.POST)
    try:
        Search(Scope(project, run), state.filter)  # the page says what is wrong with it
        if not vectors.ensure():
            messages.error(request, vectors.NEEDS_EXTENSION)
        elif not state.text:
            jobs.ask_rollouts(request.user, project, run, state.filter)
        else:
            if len(state.text) > jobs.TEXT_CHARS:
                state = replace(state, text=state.text[: jobs.TEXT_CHARS])
                messages.info(request, f"Only the first {jobs.TEXT_CHARS} characters of the text are looked for.")
            jobs.ask_text(request.user, project, state.text)
    except FilterError:
        pass
    page = reverse("run-clusters", args=[run.pk]) if run else reverse("project-clusters", args=[project.pk])
    return HttpResponseRedirect(f"{page}?{state.query}")


@require_POST
@login_required
def embedding_stop(request: SignedInRequest, job_id: int) -> HttpResponse:
    """Members and admins of the project; what was embedded stays."""
    visible = EmbeddingJob.objects.filter(project__in=Project.objects.visible_to(request.user))
    job = get_object_or_404(visible.select_related("project", "run"), pk=job_id)
    require_role(request.user, job.project, Role.MEMBER)
    jobs.stop(job)
    page = "run-clusters" if job.run else "project-clusters"
    state = State(job.filter_text, USUAL, job.text)
    return HttpResponseRedirect(f"{reverse(page, args=[job.run_id or job.project_id])}?{state.query}")


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def rollout_similar(request: SignedInRequest, rollout_id: int) -> HttpResponse:
    """The part of a rollout's page that says which mean about the same; members have it embedded by a POST."""
    rollout = visible_rollout(request.user, rollout_id)
    run = rollout.step.run
    if request.method == "POST":
        require_role(request.user, run.project, Role.MEMBER)
        if vectors.ensure():
            jobs.ask_rollouts(request.user, run.project, run, f"id:{rollout.pk}")
    is_ready = vectors.is_ready()
    in_project = request.GET.get("in") == "project"
    scope = Scope(run.project, None if in_project else run)
    job = jobs.newest_job(run.project, run, f"id:{rollout.pk}")
    context = FACTS | {
        "rollout": rollout,
        "run": run,
        "is_ready": is_ready,
        "in_project": in_project,
        "may_ask": _may_ask(request.user, scope),
        "job": job,
        **_progress(job),
        "similar": queries.similar_rollouts(rollout, scope) if is_ready else None,
        "list_url": _list_url(scope),
    }
    return render(request, "analysis/_similar.html", context)


def _list_url(scope: Scope) -> str:
    owner, pk = scope.owner
    return reverse("rollout-list" if owner == "run" else "project-rollouts", args=[pk])


def _may_ask(user: User, scope: Scope) -> bool:
    assert scope.project is not None
    return shown_role(user, scope.project) in {Role.MEMBER, Role.ADMIN}
