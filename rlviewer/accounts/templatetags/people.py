"""What a person may do, for templates that show or leave out a control (the view decides; this only avoids dead ends), and where things are."""

from django import template
from django.urls import reverse

from rlviewer.accounts.access import shown_role
from rlviewer.accounts.models import Project, Role, User

register = template.Library()

ADDRESSES = {"run": "run-detail", "project": "run-list", "rollout": "rollout-detail", "search": "search-detail"}


@register.filter
def target_address(target: str) -> str:
    """The page of what an entry of the audit trail names, `run:12`; empty where it has none."""
    kind, _, number = target.partition(":")
    return reverse(ADDRESSES[kind], args=[number]) if kind in ADDRESSES and number.isdecimal() else ""


@register.filter
def audit_words(name: str) -> str:
    """A verb or target of the audit trail as a person reads it: `set-member` and `run:12` as `set member` and `run 12`."""
    return name.replace("-", " ").replace(":", " ")


@register.simple_tag
def role_in(project: Project | None, user: User) -> Role | None:
    """The person's role in the project."""
    # Where a page has no project, the template's variable is an empty text.
    return shown_role(user, project) if project and user.is_authenticated else None
