"""What a person may do, for templates that show or leave out a control. The view decides; this only avoids dead ends."""

from django import template

from rlviewer.accounts.access import shown_role
from rlviewer.accounts.models import Project, Role, User

register = template.Library()


@register.simple_tag
def role_in(project: Project | None, user: User) -> Role | None:
    """The person's role in the project."""
    # Where a page has no project, the template's variable is an empty text.
    return shown_role(user, project) if project and user.is_authenticated else None
