"""Labels on a rollout's page, and a project's vocabulary. Everybody in the project reads; members write, viewers never."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from rlviewer.accounts.access import RANK, SignedInRequest, project_for, require_role, shown_role
from rlviewer.accounts.models import Project, Role
from rlviewer.review import services
from rlviewer.review.models import Thumb
from rlviewer.review.queries import label_panel, visible_label, vocabulary
from rlviewer.review.services import LabelError, Said
from rlviewer.runs.models import Rollout
from rlviewer.runs.queries.rollout import visible_rollout

THUMBS = {f"thumb {thumb.label}": thumb for thumb in Thumb}


@require_GET
@login_required
def rollout_labels(request: SignedInRequest, rollout_id: int) -> HttpResponse:
    """The panel of labels on a rollout's page."""
    return _panel(request, visible_rollout(request.user, rollout_id))


@require_POST
@login_required
def label_add(request: SignedInRequest, rollout_id: int) -> HttpResponse:
    """Members say something of a rollout or of a range of its tokens."""
    rollout = visible_rollout(request.user, rollout_id)
    require_role(request.user, rollout.step.run.project, Role.MEMBER)
    try:
        services.add_label(request.user, rollout, said_in(request.POST))
    except LabelError as error:
        return _panel(request, rollout, problem=str(error))
    return _panel(request, rollout)


@require_POST
@login_required
def label_edit(request: SignedInRequest, label_id: int) -> HttpResponse:
    """Its author, or an admin of the project."""
    label = visible_label(request.user, label_id)
    require_role(request.user, label.rollout.step.run.project, Role.MEMBER)
    try:
        services.edit_label(request.user, label, said_in(request.POST))
    except LabelError as error:
        return _panel(request, label.rollout, problem=str(error))
    return _panel(request, label.rollout)


@require_POST
@login_required
def label_remove(request: SignedInRequest, label_id: int) -> HttpResponse:
    """Its author, or an admin of the project."""
    label = visible_label(request.user, label_id)
    require_role(request.user, label.rollout.step.run.project, Role.MEMBER)
    services.remove_label(request.user, label)
    return _panel(request, label.rollout)


def said_in(form: QueryDict) -> Said:
    """Raises LabelError where the tokens are no two numbers."""
    said, ends = form.get("said", ""), [form.get(name, "") for name in ("token_start", "token_end")]
    tokens = None
    if any(ends):
        if not all(end.isascii() and end.isdecimal() and len(end) <= 9 for end in ends):
            raise LabelError("A range of tokens is two numbers.")
        tokens = int(ends[0]), int(ends[1])
    return Said(THUMBS.get(said), "" if said in THUMBS else said, form.get("note", ""), tokens)


def _panel(request: SignedInRequest, rollout: Rollout, *, problem: str = "") -> HttpResponse:
    role = shown_role(request.user, rollout.step.run.project)
    context = {
        "rollout": rollout,
        "project": rollout.step.run.project,
        "panel": label_panel(request.user, rollout),
        "may_write": may_write(role),
        "is_admin": role == Role.ADMIN,
        "thumbs": list(THUMBS),
        "problem": problem,
    }
    return render(request, "review/_panel.html", context, status=422 if problem else 200)


def may_write(role: Role | None) -> bool:
    return role is not None and RANK[role] >= RANK[Role.MEMBER]


@require_GET
@login_required
def project_labels(request: SignedInRequest, project_id: int) -> HttpResponse:
    """The project's labels, how many rollouts carry each, and where to change them."""
    return _vocabulary_page(request, project_for(request.user, project_id))


@require_POST
@login_required
def label_name_add(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Members add a label."""
    project = project_for(request.user, project_id, at_least=Role.MEMBER)
    try:
        services.add_name(request.user, project, request.POST.get("name", ""))
    except LabelError as error:
        return _vocabulary_page(request, project, problem=str(error), typed=request.POST.get("name", ""))
    return redirect("project-labels", project.pk)


@require_POST
@login_required
def label_name_change(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Members rename a label, archive it, or bring it back."""
    project = project_for(request.user, project_id, at_least=Role.MEMBER)
    old, archived = request.POST.get("old", ""), request.POST.get("archived")
    try:
        if archived:
            services.archive_name(request.user, project, old, is_archived=archived == "yes")
        else:
            services.rename_name(request.user, project, old, request.POST.get("name", ""))
    except LabelError as error:
        messages.error(request, str(error))
    return redirect("project-labels", project.pk)


def _vocabulary_page(request: SignedInRequest, project: Project, **extra: Any) -> HttpResponse:
    context = {
        "nav": "searches",
        "project": project,
        "vocabulary": vocabulary(project),
        "may_write": may_write(shown_role(request.user, project)),
    }
    return render(request, "review/labels.html", context | extra, status=422 if extra else 200)
