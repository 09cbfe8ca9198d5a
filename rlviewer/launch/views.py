"""Home, the launch form, what a person asks of a run, and the workers."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Count, Max, Q
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from rlviewer.accounts.access import SignedInRequest, came_from, project_for
from rlviewer.accounts.models import Project, Role, User
from rlviewer.accounts.services import AccountError, create_project
from rlviewer.launch import services
from rlviewer.launch.estimates import estimate
from rlviewer.launch.forms import SHOWN_ALGORITHM, SHOWN_TASK, LaunchForm
from rlviewer.launch.models import Lease, Worker
from rlviewer.launch.places import find_places
from rlviewer.launch.presets import PRESETS
from rlviewer.runs.models import ACTIVE_STATES, Run
from rlviewer.runs.queries.ledger import parked_batches
from rlviewer.runs.views import changeable_run
from training.config import ConfigError

# A worker says that it lives every few seconds; after this long it no longer counts as listening.
LISTENING = timedelta(seconds=60)


@require_GET
@login_required
def home(request: SignedInRequest) -> HttpResponse:
    """Every signed-in person: their projects, or how to begin."""
    projects = (
        Project.objects.visible_to(request.user)
        .annotate(
            run_count=Count("runs", distinct=True),
            active_count=Count("runs", filter=Q(runs__state__in=ACTIVE_STATES), distinct=True),
            newest_run=Max("runs__created_at"),
        )
        .order_by("-newest_run", "name")
    )
    return render(request, "launch/home.html", {"nav": "projects", "projects": projects, "may_launch": True})


@login_required
@require_POST
def demo_launch(request: SignedInRequest) -> HttpResponse:
    """Members of the named project; without one, the demo gets a project of the person's own."""
    named = request.POST.get("project", "")
    try:
        if named.isdecimal() and len(named) < 19:
            project = project_for(request.user, int(named), at_least=Role.MEMBER)
        else:
            project = _own_project(request.user)
        run = services.launch_run(request.user, project, PRESETS["demo"].run_config())
    except (AccountError, ConfigError) as error:
        messages.error(request, f"The demo could not be launched: {error}")
        return redirect("home")
    messages.success(request, "The demo is launched. This page fills itself as the model learns.")
    return redirect("run-detail", run.id)


def _own_project(user: User) -> Project:
    name = f"Demo of {user.username}"[:100]
    return Project.objects.visible_to(user).filter(name=name).first() or create_project(user, name, "A first look.")


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def run_launch(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Members and admins of the project. The form's state is in the URL; htmx gets the form anew after each change."""
    project = project_for(request.user, project_id, at_least=Role.MEMBER)
    name = request.GET.get("preset", "")
    chosen = name if name in PRESETS else "demo"
    form = LaunchForm.from_query(request.user, request.POST or request.GET, PRESETS[chosen])
    if request.method == "POST" and form.is_valid() and form.config:
        try:
            run = services.launch_run(request.user, project, form.config)
        except ConfigError as error:
            form.add_error(error.key if error.key in form.fields else None, error.message)
        else:
            messages.success(request, "Run launched. It starts as soon as a worker is free.")
            return redirect("run-detail", run.id)
    context = {
        "nav": "launch",
        "project": project,
        "form": form,
        "presets": [(key, preset, key == chosen) for key, preset in PRESETS.items()],
        "shown_task": SHOWN_TASK,
        "shown_algorithm": SHOWN_ALGORITHM,
        **_preflight(form),
    }
    template = "launch/_form.html" if request.headers.get("HX-Request") else "launch/form.html"
    return render(request, template, context, status=422 if request.method == "POST" else 200)


def _preflight(form: LaunchForm) -> dict[str, Any]:
    """What the right column says: cost, who would run it, the TOML; or the problems with links to their fields."""
    queue = services.DEFAULT_QUEUE
    listening = [
        worker
        for worker in Worker.objects.filter(seen_at__gt=timezone.now() - LISTENING)
        if queue in worker.queues.replace(",", " ").split()
    ]
    waiting = Run.objects.filter(state="queued", queue=queue).count()
    problems = [(form[key], errors) for key, errors in form.errors.items() if key in form.fields]
    return {
        "queue": queue,
        "listening": listening,
        "waiting": waiting,
        "problems": problems,
        "estimate": estimate(form.config, Run.objects.visible_to(form.user)) if form.config else None,
        "toml": form.config.to_toml() if form.config else "",
    }


# What a person may ask of a run, and what they are told when it is done.
ASKED: dict[str, tuple[Callable[[User, Run], object], str]] = {
    "stop": (services.stop_run, "Stopping at the end of this step, with a checkpoint."),
    "pause": (services.pause_run, "Pausing before the next step."),
    "continue": (services.continue_run, "Going on with the next step."),
    "resume": (services.resume_run, "Queued as a new attempt from the newest checkpoint."),
}


@require_GET
@login_required
def go(request: SignedInRequest) -> HttpResponse:
    """The palette, for every signed-in person: what they may see, their page's surroundings first."""
    at = urlsplit(request.headers.get("HX-Current-URL", "")).path
    return render(request, "launch/_places.html", {"places": find_places(request.user, request.GET.get("q", ""), at)})


@login_required
@require_POST
def run_ask(request: SignedInRequest, run_id: int, verb: str) -> HttpResponse:
    """Members and admins of the project."""
    run = changeable_run(request, run_id)
    action, done = ASKED[verb]
    try:
        action(request.user, run)
    except services.RunStateError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, done)
    return redirect("run-detail", run.id)


@require_GET
@login_required
def workers(request: SignedInRequest) -> HttpResponse:
    """Every signed-in person; runs of projects that they are not in are counted, not named. Site admins: parked batches."""
    now = timezone.now()
    seen = [
        {"worker": worker, "is_silent": worker.seen_at < now - timedelta(seconds=settings.SILENT_SECONDS)}
        for worker in Worker.objects.order_by("host", "name")
    ]
    leases = Lease.objects.exclude(holder="").select_related("attempt__run__project").order_by("acquired_at")
    mine = set(Run.objects.visible_to(request.user).filter(attempts__lease__in=leases).values_list("id", flat=True))
    held = [
        {"lease": lease, "run": lease.attempt.run, "where": " ".join(lease.holder.split(":")[:2])}
        for lease in leases
        if lease.attempt.run_id in mine
    ]
    queued = Run.objects.visible_to(request.user).filter(state="queued").count()
    context = {
        "nav": "workers",
        "project": came_from(request),
        "seen": seen,
        "held": held,
        "others": len(leases) - len(held),
        "queued": queued,
        "parked": parked_batches(None) if request.user.is_superuser else None,
    }
    template = "launch/_workers.html" if request.headers.get("HX-Request") else "launch/workers.html"
    return render(request, template, context)
