"""Signing in and out, one's own account, the site's people, a project's members, the audit trail."""

from typing import Any

from django.contrib import messages
from django.contrib.auth import authenticate, login, logout, update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render, resolve_url
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from rlviewer.accounts import services, throttle
from rlviewer.accounts.access import SignedInRequest, came_from, project_for, shown_role, site_admin_required
from rlviewer.accounts.audit import audit_page
from rlviewer.accounts.forms import MemberForm, PasswordForm, PersonForm, ProjectForm, SignInForm, TokenForm
from rlviewer.accounts.models import Member, Project, Role, User

REFUSED = "This name and password do not match an open account."
TOO_MANY = "Too many attempts. Wait a quarter of an hour, or ask a site admin to reset the password."


@sensitive_post_parameters("password")
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    """Everybody. What is wrong is not said: name, password or a closed account look the same."""
    if request.user.is_authenticated:
        return redirect(_next_page(request))
    form = SignInForm(request.POST or None)
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            username, address = form.cleaned_data["username"], request.META.get("REMOTE_ADDR", "")
            if not throttle.may_try(username, address):
                status = 429
                form.add_error(None, TOO_MANY)
            elif user := authenticate(request, username=username, password=form.cleaned_data["password"]):
                throttle.succeeded(username, address)
                login(request, user)
                return redirect("account" if user.password_is_temporary else _next_page(request))
            else:
                form.add_error(None, REFUSED)
    return render(request, "accounts/sign_in.html", {"form": form, "next": _next_page(request)}, status=status)


def _next_page(request: HttpRequest) -> str:
    """Where the person wanted to go, if that is a page of ours."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    ours = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    return wanted if ours else resolve_url("home")


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """Everybody; other devices stay signed in."""
    logout(request)
    return redirect("sign-in")


@login_required
@require_GET
def account(request: SignedInRequest) -> HttpResponse:
    """Every signed-in person, about themselves."""
    return _account_page(request)


def _account_page(request: SignedInRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    context = {
        "nav": "account",
        "project": came_from(request),
        "password_form": PasswordForm(request.user, auto_id="password_%s"),
        "token_form": TokenForm(auto_id="token_%s"),
        "tokens": request.user.api_tokens.order_by("-id"),
        **extra,
    }
    return render(request, "accounts/account.html", context, status=status)


@sensitive_post_parameters("old", "new")
@login_required
@require_POST
def account_password(request: SignedInRequest) -> HttpResponse:
    """Every signed-in person: a new password; other sessions end, this one stays."""
    form = PasswordForm(request.user, request.POST, auto_id="password_%s")
    if not form.is_valid():
        return _account_page(request, status=422, password_form=form)
    is_first = request.user.password_is_temporary
    services.change_password(request.user, form.cleaned_data["new"])
    update_session_auth_hash(request, request.user)
    messages.success(request, "Password changed. Your other sessions are signed out.")
    # Who has just arrived goes on to the work, not back to the form.
    return redirect("home" if is_first else "account")


@login_required
@require_POST
def account_sign_out(request: SignedInRequest) -> HttpResponse:
    """Every signed-in person: ends their other sessions, this one stays."""
    services.sign_out_everywhere(request.user, request.user)
    update_session_auth_hash(request, request.user)
    messages.success(request, "Your other sessions are signed out.")
    return redirect("account")


@login_required
@require_POST
def token_create(request: SignedInRequest) -> HttpResponse:
    """Every signed-in person: a new API token, shown in this answer and never again."""
    form = TokenForm(request.POST, auto_id="token_%s")
    if not form.is_valid():
        return _account_page(request, status=422, token_form=form)
    return _account_page(request, new_token=services.create_token(request.user, form.cleaned_data["name"]))


@login_required
@require_POST
def token_revoke(request: SignedInRequest, token_id: int) -> HttpResponse:
    """Every signed-in person, their own tokens only."""
    services.revoke_token(request.user, get_object_or_404(request.user.api_tokens, pk=token_id))
    messages.success(request, "Token revoked. Programs that use it are refused from now on.")
    return redirect("account")


@require_GET
@site_admin_required
def people(request: SignedInRequest) -> HttpResponse:
    """Site admins."""
    return _people_page(request)


def _people_page(request: SignedInRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    shown = User.objects.annotate(project_count=Count("memberships")).order_by("-is_active", "username")
    context = {"nav": "people", "project": came_from(request), "form": PersonForm(), "people": shown[:500], **extra}
    return render(request, "accounts/people.html", context, status=status)


@require_POST
@site_admin_required
def person_add(request: SignedInRequest) -> HttpResponse:
    """Site admins: a new person; the one-time password is in this answer and never shown again."""
    form = PersonForm(request.POST)
    if form.is_valid():
        try:
            person, password = services.add_person(request.user, **form.cleaned_data)
        except services.AccountError as error:
            form.add_error(error.field, str(error))
        else:
            return _people_page(request, person=person, new_password=password)
    return _people_page(request, status=422, form=form)


@require_POST
@site_admin_required
def person_reset(request: SignedInRequest, user_id: int) -> HttpResponse:
    """Site admins: a new one-time password for somebody else; their sessions end."""
    person = _somebody_else(request, user_id)
    password = services.reset_password(request.user, person)
    return _people_page(request, person=person, new_password=password)


@require_POST
@site_admin_required
def person_sign_out(request: SignedInRequest, user_id: int) -> HttpResponse:
    """Site admins: ends every session of somebody else."""
    person = _somebody_else(request, user_id)
    services.sign_out_everywhere(request.user, person)
    messages.success(request, f"{person.username} is signed out everywhere.")
    return redirect("people")


@require_POST
@site_admin_required
def person_active(request: SignedInRequest, user_id: int) -> HttpResponse:
    """Site admins: closes or opens somebody else's account."""
    person = _somebody_else(request, user_id)
    services.set_active(request.user, person, request.POST.get("active") == "1")
    messages.success(request, f"The account of {person.username} is {'open' if person.is_active else 'closed'}.")
    return redirect("people")


def _somebody_else(request: SignedInRequest, user_id: int) -> User:
    if user_id == request.user.pk:
        raise Http404  # the page offers no such button for oneself; the account page does
    return get_object_or_404(User, pk=user_id)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def project_create(request: SignedInRequest) -> HttpResponse:
    """Every signed-in person, who becomes the project's admin."""
    form = ProjectForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            project = services.create_project(request.user, **form.cleaned_data)
        except services.AccountError as error:
            form.add_error(error.field, str(error))
        else:
            return redirect("run-list", project.id)
    status = 422 if request.method == "POST" else 200
    return render(request, "accounts/project_create.html", {"nav": "projects", "form": form}, status=status)


@login_required
@require_GET
def project_members(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Everybody in the project reads; its admins see the controls."""
    return _members_page(request, project_for(request.user, project_id))


def _members_page(
    request: SignedInRequest, project: Project, *, form: MemberForm | None = None, status: int = 200
) -> HttpResponse:
    context = {
        "nav": "members",
        "project": project,
        "may_manage": shown_role(request.user, project) == Role.ADMIN,
        "members": project.members.select_related("user").order_by("user__username"),
        "roles": Role.choices,
        "form": form or MemberForm(initial={"role": Role.MEMBER}),
    }
    return render(request, "accounts/members.html", context, status=status)


@login_required
@require_POST
def member_set(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Admins of the project: adds a person, or changes a member's role."""
    project = project_for(request.user, project_id, at_least=Role.ADMIN)
    form = MemberForm(request.POST)
    if form.is_valid():
        role = Role(form.cleaned_data["role"])
        try:
            member = services.set_member(request.user, project, form.cleaned_data["username"], role)
        except services.AccountError as error:
            form.add_error(error.field, str(error))
        else:
            messages.success(request, f"{member.user.username} is now {role} of {project.name}.")
            return redirect("project-members", project.id)
    return _members_page(request, project, form=form, status=422)


@login_required
@require_POST
def member_remove(request: SignedInRequest, project_id: int, member_id: int) -> HttpResponse:
    """Admins of the project."""
    project = project_for(request.user, project_id, at_least=Role.ADMIN)
    member = get_object_or_404(Member.objects.select_related("user"), pk=member_id, project=project)
    try:
        services.remove_member(request.user, project, member)
    except services.AccountError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, f"{member.user.username} is no longer in {project.name}.")
    return redirect("project-members", project.id)


@login_required
@require_GET
def project_audit(request: SignedInRequest, project_id: int) -> HttpResponse:
    """Everybody in the project: who did what here."""
    project = project_for(request.user, project_id)
    context = {"nav": "audit", "project": project, "page": audit_page(request.GET, project=project)}
    return render(request, "accounts/audit.html", context)


@require_GET
@site_admin_required
def audit(request: SignedInRequest) -> HttpResponse:
    """Site admins: who did what anywhere."""
    return render(request, "accounts/audit.html", {"nav": "site-audit", "page": audit_page(request.GET)})
