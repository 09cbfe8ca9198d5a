"""What other algorithms would have made of a stored step. Whoever is a member of the project reads; members ask a worker."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from rlviewer.counterfactual import jobs
from rlviewer.counterfactual.queries.matrix import counterfactual_page
from rlviewer.counterfactual.queries.over_run import STEPS, ask_over_run
from rlviewer.counterfactual.state import State, knobs_of, questions
from rlviewer.runs.models import Run, Step
from rlviewer.runs.queries.run import may_act, visible_run
from rlviewer.runs.queries.step import TRAIN
from rlviewer.runs.views import changeable_run, person, run_context
from rlviewer.signal.pages import SignalPage
from rlviewer.signal.views import page_tabs

NAME = "counterfactual"
PAGE = SignalPage(
    "Other algorithms",
    "What would another algorithm have done with exactly these rollouts?",
    "counterfactual/_content.html",
    lambda *_: None,
    has_range=False,
)


@require_GET
@login_required
def counterfactual(request: HttpRequest, run_id: int) -> HttpResponse:
    """One step under several recipes; htmx gets the part below the tabs."""
    run = visible_run(person(request), run_id)
    return _shown(request, run, State.from_query(request.GET))


@require_POST
@login_required
def counterfactual_ask(request: HttpRequest, run_id: int) -> HttpResponse:
    """Members and admins of the project: have a worker work out what the page shows, or some steps of the run evenly."""
    run = changeable_run(request, run_id)
    state = State.from_query(request.POST)
    step = step_of(run, state)
    if step is None:
        raise Http404("no step is stored")
    own, beside, chosen = questions(run, state)
    if request.POST.get("over") == "run":
        ask_over_run(person(request), run, [own, *beside])
    elif not any(knob.error for knob in knobs_of(run, state)):
        jobs.ask(person(request), step, [own, *beside, chosen])
    if request.headers.get("HX-Request"):
        response = _shown(request, run, state)
        response["HX-Replace-Url"] = address(run, state)
        return response
    return HttpResponseRedirect(address(run, state))


def address(run: Run, state: State, **changes: Any) -> str:
    return f"{reverse(NAME, args=[run.pk])}?{state.query(**changes)}"


def step_of(run: Run, state: State) -> Step | None:
    """The step of the address, the newest where it names none.

    Raises:
        Http404: it is not stored.
    """
    steps = Step.objects.filter(run=run, split=TRAIN, is_current=True).select_related("run", "attempt")
    if state.step is None:
        return steps.order_by("-index").first()
    found = steps.filter(index=state.step).first()
    if found is None:
        raise Http404(f"no step {state.step} is stored")
    return found


def _shown(request: HttpRequest, run: Run, state: State) -> HttpResponse:
    step = step_of(run, state)
    context = {
        "run": run,
        "page": PAGE,
        "state": state,
        "may_ask": may_act(person(request), run),
        "content": None if step is None else counterfactual_page(run, step, state),
        "here": address(run, state),
        "over_steps": STEPS,
    }
    if request.headers.get("HX-Request"):
        return render(request, "counterfactual/_page.html", context)
    context |= run_context(request, run, "signal") | {"page_tabs": page_tabs(run, NAME)}
    return render(request, "counterfactual/page.html", context)
