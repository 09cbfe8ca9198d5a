"""Writes that concern people, projects and who may do what; each leaves an entry in the audit trail."""

import secrets
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F

from rlviewer.accounts.models import ApiToken, AuditEvent, Member, Project, Role, User

# Who acts when no person does: workers and commands.
SYSTEM = "rlviewer"


class AccountError(ValueError):
    """What was asked is not allowed; the message is for the person who asked. `field` names the form's field."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


def record(actor: User | None, verb: str, target: str, project: Project | None = None, **detail: Any) -> AuditEvent:
    """Add to the audit trail who did what; call it in the transaction that does it."""
    name = actor.get_username() if actor is not None else SYSTEM
    return AuditEvent.objects.create(
        actor=actor, actor_name=name, verb=verb, target=target[:200], project=project, detail=detail
    )


@transaction.atomic
def create_project(actor: User, name: str, description: str = "") -> Project:
    """A new project, administered by whoever makes it."""
    try:
        with transaction.atomic():
            project = Project.objects.create(name=name, description=description)
    except IntegrityError:
        # Also when the name belongs to a project that this person may not see: names are shared by the site.
        raise AccountError("This name is taken. Choose another one.", "name") from None
    Member.objects.create(project=project, user=actor, role=Role.ADMIN)
    record(actor, "create-project", f"project:{project.id}", project, name=name)
    return project


@transaction.atomic
def set_member(actor: User, project: Project, username: str, role: Role) -> Member:
    """Add a person to the project, or change the role of one who is in it."""
    person = User.objects.filter(username__iexact=username, is_active=True).first()
    if person is None:
        raise AccountError(f"Nobody here is called {username!r}. A site admin adds people.", "username")
    _lock_members(project)
    member = project.members.filter(user=person).first()
    if member is None:
        member = Member.objects.create(project=project, user=person, role=role)
    elif member.role != role:
        _keep_one_admin(project, member)
        member.role = role
        member.save(update_fields=["role"])
    record(actor, "set-member", f"user:{person.id}", project, name=person.username, role=role)
    return member


@transaction.atomic
def remove_member(actor: User, project: Project, member: Member) -> None:
    """Take a person out of the project; the last admin stays."""
    _lock_members(project)
    _keep_one_admin(project, member)
    member.delete()
    record(actor, "remove-member", f"user:{member.user_id}", project, name=member.user.username)


def _lock_members(project: Project) -> None:
    # Two admins who demote each other at the same moment must not leave the project without one.
    Project.objects.select_for_update().get(pk=project.pk)


def _keep_one_admin(project: Project, member: Member) -> None:
    others = project.members.filter(role=Role.ADMIN, user__is_active=True).exclude(pk=member.pk)
    if member.role == Role.ADMIN and not others.exists():
        raise AccountError("The project would have no admin left. Make somebody else an admin first.")


@transaction.atomic
def add_person(actor: User, username: str, *, is_admin: bool = False) -> tuple[User, str]:
    """A new person with a one-time password, which cannot be read again."""
    password = secrets.token_urlsafe(12)
    if User.objects.filter(username__iexact=username).exists():
        raise AccountError("This name is taken. Choose another one.", "username")
    person = User.objects.create_user(
        username=username,
        password=password,
        is_superuser=is_admin,
        is_staff=is_admin,
        password_is_temporary=True,
    )
    record(actor, "add-person", f"user:{person.id}", name=username, is_admin=is_admin)
    return person, password


@transaction.atomic
def reset_password(actor: User, person: User) -> str:
    """A new one-time password; every session of the person ends."""
    password = secrets.token_urlsafe(12)
    person.set_password(password)
    person.password_is_temporary = True
    person.save(update_fields=["password", "password_is_temporary"])
    sign_out_everywhere(actor, person)
    record(actor, "reset-password", f"user:{person.id}", name=person.username)
    return password


@transaction.atomic
def change_password(person: User, password: str) -> None:
    """The person's own new password; every other session ends."""
    person.set_password(password)
    person.password_is_temporary = False
    person.save(update_fields=["password", "password_is_temporary"])
    record(person, "change-password", f"user:{person.id}", name=person.username)


@transaction.atomic
def sign_out_everywhere(actor: User, person: User) -> None:
    """End every session of the person, open pages included; API tokens stay."""
    User.objects.filter(pk=person.pk).update(session_generation=F("session_generation") + 1)
    person.refresh_from_db(fields=["session_generation"])
    record(actor, "sign-out-everywhere", f"user:{person.id}", name=person.username)


@transaction.atomic
def set_active(actor: User, person: User, is_active: bool) -> None:
    """Open or close a person's account. What the person did and launched stays."""
    if person == actor:
        raise AccountError("You cannot close your own account.")
    person.is_active = is_active
    person.save(update_fields=["is_active"])
    record(actor, "open-account" if is_active else "close-account", f"user:{person.id}", name=person.username)


@transaction.atomic
def create_token(person: User, name: str) -> str:
    """A new API token of the person; its text cannot be read again."""
    token, plain = ApiToken.issue(person, name)
    record(person, "create-token", f"token:{token.id}", name=name)
    return plain


@transaction.atomic
def revoke_token(person: User, token: ApiToken) -> None:
    record(person, "revoke-token", f"token:{token.id}", name=token.name)
    token.delete()
