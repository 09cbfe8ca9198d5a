"""The sweeps of a project, the form of a new one, one sweep, and what a person asks of it."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from rlviewer.accounts.access import SignedInRequest, project_for, require_role, shown_role
from rlviewer.accounts.models import Project, Role, User
from rlviewer.launch.presets import PRESETS
from rlviewer.outbox.services import current_seq
from rlviewer.runs.models import Run
from rlviewer.sweeps import services
from rlviewer.sweeps.checking import cost
from rlviewer.sweeps.forms import SweepForm, spec_values
from rlviewer.sweeps.models import Sweep
from rlviewer.sweeps.queries import sweep_list, sweep_page
from rlviewer.sweeps.spec import SweepSpec
from training.config import ConfigError, to_toml

ASKED: dict[str, tuple[Callable[[User, Sweep], None], str]] = {
    "pause": (services.pause_sweep, "Paused: no more runs start; those in flight go on."),
    "resume": (services.resume_sweep, "Going on with what was not tried yet."),
    "stop": (services.stop_sweep, "Stopping: runs in flight end at their next step, with a checkpoint."),
}


def _live(request: SignedInRequest, project: Project) -> dict[str, Any]:
    """Read before the rows: news that comes in between makes the page look again."""
    return {
        "nav": "sweeps",
        "project": project,
        "may_launch": shown_role(request.user, project) in {Role.MEMBER, Role.ADMIN},
        "live_seq": current_seq(f"project:{project.pk}"),
        "live_url": f"/ws/projects/{project.pk}/",
    }


@require_GET
@login_required
def sweeps(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Everybody in the project."""
    project = project_for(request.user, project_id)
    context = _live(request, project) | {"sweeps": sweep_list(project)}
    template = "sweeps/_list.html" if request.headers.get("HX-Request") else "sweeps/list.html"
    return render(request, template, context)


@require_GET
@login_required
def sweep_detail(request: SignedInRequest, sweep_id: int) -> HttpResponse:
    """Everybody in the project; htmx gets what changes."""
    sweep = _visible(request, sweep_id)
    context = _live(request, sweep.project) | {"sweep": sweep, "page": sweep_page(sweep)}
    template = "sweeps/_detail.html" if request.headers.get("HX-Request") else "sweeps/detail.html"
    return render(request, template, context)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def sweep_launch(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Members and admins of the project. htmx posts the form to see what it would cost; only the button launches."""
    project = project_for(request.user, project_id, at_least=Role.MEMBER)
    form = _form(request, _first_values(request, project))
    if _is_launch(request) and form.is_valid() and form.checked:
        try:
            sweep = services.launch_sweep(request.user, project, form.checked.spec)
        except ConfigError as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, "Sweep launched. Its runs start as workers are free.")
            return redirect("sweep-detail", sweep.pk)
    context = {"presets": PRESETS, "action": request.path}
    return _render_form(request, project, form, context)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def sweep_edit(request: SignedInRequest, sweep_id: int) -> HttpResponse:
    """Members and admins of the project: values, ranges, trials, seeds and budgets; what was tried stays."""
    sweep = _visible(request, sweep_id)
    require_role(request.user, sweep.project, Role.MEMBER)
    form = _form(request, spec_values(sweep.parsed))
    if _is_launch(request) and form.is_valid() and form.checked:
        try:
            services.edit_sweep(request.user, sweep, form.checked.spec)
        except (ConfigError, services.SweepStateError) as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, "Changed. What was tried stays; the rest follows the new values.")
            return redirect("sweep-detail", sweep.pk)
    return _render_form(request, sweep.project, form, {"sweep": sweep, "action": request.path})


@login_required
@require_POST
def sweep_ask(request: SignedInRequest, sweep_id: int, verb: str) -> HttpResponse:
    """Members and admins of the project."""
    sweep = _visible(request, sweep_id)
    require_role(request.user, sweep.project, Role.MEMBER)
    action, done = ASKED[verb]
    try:
        action(request.user, sweep)
    except services.SweepStateError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, done)
    return redirect("sweep-detail", sweep.pk)


def _visible(request: SignedInRequest, sweep_id: int) -> Sweep:
    return get_object_or_404(
        Sweep.objects.visible_to(request.user).select_related("project", "created_by"), pk=sweep_id
    )


def _is_launch(request: SignedInRequest) -> bool:
    return request.method == "POST" and not request.headers.get("HX-Request") and "read" not in request.POST


def _form(request: SignedInRequest, first: dict[str, str]) -> SweepForm:
    if "read" in request.POST:
        source = request.POST.get("toml", "")
        try:
            return SweepForm.of_spec(request.user, SweepSpec.from_toml(source))
        except ConfigError as error:
            messages.error(request, f"This is no sweep: {error}")
            return SweepForm(request.user, first | {"toml": source})
    sent = {key: value.replace("\0", "") for key, value in request.POST.dict().items()}
    return SweepForm(request.user, sent if request.method == "POST" else first)


def _first_values(request: SignedInRequest, project: Project) -> dict[str, str]:
    """`?run=` starts from a run of the project, `?preset=` from a preset."""
    number = request.GET.get("run", "")
    if number.isdecimal() and len(number) < 19:
        run = get_object_or_404(Run.objects.filter(project=project), pk=int(number))
        config = {key: value for key, value in run.config.items() if key not in {"name", "seed"}}
        if config:
            return {"base": to_toml(config), "name": f"Sweep of {run.name}"[:150]}
    chosen = request.GET.get("preset", "")
    preset = PRESETS[chosen if chosen in PRESETS else "short"]
    config = {key: value for key, value in preset.config.items() if key not in {"name", "seed"}}
    return {
        "base": to_toml(config),
        "key-0": "optimizer.learning_rate",
        "values-0": "3e-5, 1e-4",
    }


def _render_form(request: SignedInRequest, project: Project, form: SweepForm, extra: dict[str, Any]) -> HttpResponse:
    form.is_valid()
    checked = form.checked
    context = {
        "nav": "sweeps",
        "project": project,
        "form": form,
        "cost": cost(checked, Run.objects.visible_to(request.user)) if checked else None,
        "checked": checked or form.illegal,
        "problems": [(form[key], errors) for key, errors in form.errors.items() if key in form.fields],
        "toml": checked.spec.to_toml() if checked else "",
        **extra,
    }
    is_fragment = bool(request.headers.get("HX-Request"))
    status = 422 if request.method == "POST" and not is_fragment else 200
    return render(request, "sweeps/_form.html" if is_fragment else "sweeps/form.html", context, status=status)
