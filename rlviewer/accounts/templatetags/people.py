"""What a person may do, for templates that show or leave out a control. The view decides; this only avoids dead ends."""

from django import template

from rlviewer.accounts.models import Project, Role, User

register = template.Library()


@register.simple_tag
def role_in(project: Project | None, user: User) -> Role | None:
    """The person's role in the project; one query for the project's object, then remembered on it."""
    # Where a page has no project, the template's variable is an empty text.
    if not project or not user.is_authenticated:
        return None
    if not hasattr(project, "_role_shown"):
        project._role_shown = project.role_of(user)  # type: ignore[attr-defined]
    return project._role_shown  # type: ignore[attr-defined]
