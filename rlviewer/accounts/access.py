"""Who may open a project's pages: a stranger gets the same 404 as for a project that does not exist."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404

from rlviewer.accounts.models import Project, Role, User


class SignedInRequest(HttpRequest):
    """What a view behind `login_required` gets."""

    user: User


RANK = {Role.VIEWER: 0, Role.MEMBER: 1, Role.ADMIN: 2}
NEEDS = {
    Role.VIEWER: "",
    Role.MEMBER: "You read this project as a viewer. Ask one of its admins to make you a member.",
    Role.ADMIN: "Only an admin of this project may do this.",
}


def project_for(user: User, project_id: int, *, at_least: Role = Role.VIEWER) -> Project:
    """The project, if the person may see it and has at least this role in it.

    Raises:
        Http404: no such project, or none of the person's.
        PermissionDenied: the person sees the project, but the role does not suffice.
    """
    project = get_object_or_404(Project.objects.visible_to(user), pk=project_id)
    require_role(user, project, at_least)
    return project


def require_role(user: User, project: Project, at_least: Role) -> None:
    """Raises PermissionDenied with words for the person when the role in the project does not suffice."""
    role = shown_role(user, project)
    if role is None or RANK[role] < RANK[at_least]:
        raise PermissionDenied(NEEDS[at_least])


def shown_role(user: User, project: Project) -> Role | None:
    """The person's role, asked once for this object: a page that reads it thrice costs one query."""
    known: dict[int, Role | None] = project.__dict__.setdefault("_shown_roles", {})
    if user.pk not in known:
        known[user.pk] = project.role_of(user)
    return known[user.pk]


def came_from(request: HttpRequest) -> Project | None:
    """The project that `?project=` names, for the navigation of pages of the whole site; None where the person may not see it."""
    number = request.GET.get("project", "")
    if not (number.isascii() and number.isdecimal() and len(number) <= 18):
        return None
    assert isinstance(request.user, User)
    return Project.objects.visible_to(request.user).filter(pk=int(number)).first()


def site_admin_required(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Only for the site's admins; everybody else gets a 404."""

    @login_required
    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_superuser:
            raise Http404
        return view(request, *args, **kwargs)

    return guarded
