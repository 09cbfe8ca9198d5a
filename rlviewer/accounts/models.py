"""People, the projects they share, API tokens and the audit trail."""

import hashlib
import secrets
from typing import Self

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models.functions import Lower
from django.utils.crypto import salted_hmac


class User(AbstractUser):
    """A person. `is_superuser` is the site's admin, who sees every project and adds people."""

    # Raising it signs the person out of every session at once.
    session_generation = models.PositiveIntegerField(default=0)
    # Set by somebody else and shown once; the person is asked for an own one after signing in.
    password_is_temporary = models.BooleanField(default=False)

    def _get_session_auth_hash(self, secret: str | None = None) -> str:
        value = f"{self.password}:{self.session_generation}"
        return salted_hmac("rlviewer.accounts.session", value, secret=secret, algorithm="sha256").hexdigest()


class Role(models.TextChoices):
    """What a member may do in a project."""

    VIEWER = "viewer", "Viewer: reads everything"
    MEMBER = "member", "Member: also launches and stops runs"
    ADMIN = "admin", "Admin: also manages members"


class ProjectQuerySet(models.QuerySet["Project"]):
    def visible_to(self, user: User) -> Self:
        return self if user.is_superuser else self.filter(members__user=user)


class Project(models.Model):
    """A team's shared history: runs, prompts and members."""

    name = models.CharField(max_length=100)
    description = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = ProjectQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(Lower("name"), name="project_name_unique")]
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def role_of(self, user: User) -> Role | None:
        if user.is_superuser:
            return Role.ADMIN
        member = self.members.filter(user=user).first()
        return Role(member.role) if member else None


class Member(models.Model):
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="members")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.VIEWER)
    added_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "user"], name="member_once_per_project"),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="member_role_known"),
        ]


def token_digest(plain: str) -> str:
    return hashlib.sha256(plain.encode()).hexdigest()


class ApiToken(models.Model):
    """Lets a program read as its person. Only the digest is stored; the token is shown once."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100)
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    last_used_at = models.DateTimeField(null=True)

    @classmethod
    def issue(cls, user: User, name: str) -> tuple[Self, str]:
        """A new token and its plain text, which cannot be read again."""
        plain = f"rlv_{secrets.token_urlsafe(32)}"
        return cls.objects.create(user=user, name=name, digest=token_digest(plain)), plain


class SignInFailure(models.Model):
    """A sign-in that was tried and not (yet) right, kept for a quarter of an hour."""

    key = models.CharField(max_length=64)  # digest of the address, or of name and address
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        # The throttle's question: how many of this key since a while ago?
        indexes = [models.Index(fields=["key", "at"], name="sign_in_failure_recent")]


class AuditEvent(models.Model):
    """Who did what, when. Only ever added to; the actor's name is copied so that it outlives the person."""

    at = models.DateTimeField(auto_now_add=True)
    actor = models.ForeignKey(User, null=True, on_delete=models.SET_NULL)
    actor_name = models.CharField(max_length=150)
    verb = models.CharField(max_length=50)
    target = models.CharField(max_length=200)
    project = models.ForeignKey(Project, null=True, on_delete=models.SET_NULL)
    detail = models.JSONField(default=dict)

    class Meta:
        # The audit page reads the newest first, of a project or of the site.
        indexes = [models.Index(fields=["project", "-id"], name="audit_by_project")]
