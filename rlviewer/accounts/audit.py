"""The audit trail, newest first, page by key."""

from dataclasses import dataclass

from django.http import QueryDict

from rlviewer.accounts.models import AuditEvent, Project

PAGE = 100


@dataclass(frozen=True, slots=True)
class AuditPage:
    events: list[AuditEvent]
    after: int | None  # key of the next, older page


def audit_page(query: QueryDict, *, project: Project | None = None) -> AuditPage:
    """Up to a hundred entries before `after`; one query."""
    events = AuditEvent.objects.select_related("project")
    if project is not None:
        events = events.filter(project=project)
    after = query.get("after", "")
    if after.isdecimal() and len(after) < 19:
        events = events.filter(id__lt=int(after))
    found = list(events.order_by("-id")[: PAGE + 1])
    return AuditPage(found[:PAGE], found[PAGE - 1].id if len(found) > PAGE else None)
