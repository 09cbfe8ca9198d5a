"""Stored rollouts judged anew, and the rewards of a project. Whoever is a member reads; members ask and write notes."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from rlviewer.accounts.access import SignedInRequest, project_for
from rlviewer.accounts.models import Role
from rlviewer.counterfactual import jobs
from rlviewer.counterfactual.jobs import Question
from rlviewer.counterfactual.queries.over_run import STEPS, ask_over_run
from rlviewer.counterfactual.queries.rescore import rescore_page
from rlviewer.counterfactual.rewards import add_note, judges, registry, rewards_of
from rlviewer.counterfactual.state import KNOB, Knob, State, typed_knob
from rlviewer.counterfactual.views import step_of
from rlviewer.runs.models import Run
from rlviewer.runs.queries.run import may_act, visible_run
from rlviewer.runs.views import changeable_run, person, run_context
from rlviewer.signal.pages import SignalPage
from rlviewer.signal.views import page_tabs
from training.recipes.knobs import KNOBS

NAME = "rescore"
PAGE = SignalPage(
    "Other rewards",
    "What changes if the reward is repaired, without sampling again?",
    "counterfactual/_rescore.html",
    lambda *_: None,
    has_range=False,
)


@require_GET
@login_required
def rescore(request: HttpRequest, run_id: int) -> HttpResponse:
    """A step under other rewards; htmx gets the part below the tabs."""
    run = visible_run(person(request), run_id)
    return _shown(request, run, request.GET)


@require_POST
@login_required
def rescore_ask(request: HttpRequest, run_id: int) -> HttpResponse:
    """Members and admins of the project: have a worker judge a step anew, or some steps of the run evenly."""
    run = changeable_run(request, run_id)
    chosen, knobs = _chosen(run, request.POST)
    step = step_of(run, State.from_query(request.POST))
    if step is None:
        raise Http404("no step is stored")
    question = _question(chosen, knobs)
    if chosen and not any(knob.error for knob in knobs):
        if request.POST.get("over") == "run":
            ask_over_run(person(request), run, [question])
        jobs.ask(person(request), step, [question])
    return HttpResponseRedirect(_address(run, step.index, chosen, request.POST))


def _chosen(run: Run, query: QueryDict) -> tuple[list[str], list[Knob]]:
    """The rewards that the address names, and their knobs. Without any: the run's own."""
    allowed = judges(run.project)
    asked = [name for text in query.getlist("rewards") for name in text.split(",")]
    chosen = list(dict.fromkeys(name for name in asked if name in allowed)) or [
        name for name in rewards_of(run) if name in allowed
    ]
    params = {name: param for entry in chosen for name, param in KNOBS.get(("H4", entry), {}).items()}
    return chosen, [typed_knob(name, param, query.get(KNOB + name, "").strip(), param.default) for name, param in params.items()]  # fmt: skip


def _question(chosen: list[str], knobs: list[Knob]) -> Question:
    return Question("", {knob.name: knob.value for knob in knobs if knob.value != knob.param.default}, chosen)


def _address(run: Run, step: int, chosen: list[str], query: QueryDict) -> str:
    told = QueryDict(mutable=True)
    told["step"] = str(step)
    told["rewards"] = ",".join(chosen)
    for key, value in query.items():
        if key.startswith(KNOB) and value:
            told[key] = str(value)
    return f"{reverse(NAME, args=[run.pk])}?{told.urlencode(safe=',:')}"


def _shown(request: HttpRequest, run: Run, query: QueryDict) -> HttpResponse:
    chosen, knobs = _chosen(run, query)
    step = step_of(run, State.from_query(query))
    context: dict[str, Any] = {
        "run": run,
        "page": PAGE,
        "chosen": chosen,
        "knobs": knobs,
        "names": [(name, name in chosen) for name in judges(run.project)],
        "may_ask": may_act(person(request), run),
        "over_steps": STEPS,
        "content": None if step is None else rescore_page(run, step, _question(chosen, knobs)),
        "here": "" if step is None else _address(run, step.index, chosen, query),
    }
    if request.headers.get("HX-Request"):
        return render(request, "counterfactual/_page.html", context)
    context |= run_context(request, run, "signal") | {"page_tabs": page_tabs(run, NAME)}
    return render(request, "counterfactual/page.html", context)


@require_GET
@login_required
def project_rewards(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Every reward of the project: what it is, its versions, the runs that used it, what people know of it."""
    project = project_for(request.user, project_id, at_least=Role.VIEWER)
    may_write = project.role_of(request.user) in {Role.MEMBER, Role.ADMIN}
    context = {"project": project, "nav": "algorithms", "rewards": registry(project), "may_write": may_write}
    return render(request, "counterfactual/rewards.html", context)


@require_POST
@login_required
def reward_note(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Members and admins of the project add what they know of a reward."""
    project = project_for(request.user, project_id, at_least=Role.MEMBER)
    name, text = request.POST.get("name", ""), request.POST.get("text", "").replace("\0", "").strip()
    page = reverse("project-rewards", args=[project.pk])
    if not text:
        return HttpResponseRedirect(page)
    if name not in {one.name for one in registry(project)}:
        raise Http404("no such reward in this project")
    add_note(request.user, project, name, text)
    return HttpResponseRedirect(f"{page}#{name}")
