"""What the command palette finds: a few projects and runs by name, a run or a rollout by number. Three queries."""

from dataclasses import dataclass

from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.runs.models import Rollout, Run

LIMIT = 8


@dataclass(frozen=True, slots=True)
class Place:
    label: str
    where: str
    href: str
    icon: str


def find_places(user: User, query: str) -> list[Place]:
    """Places that match `query`, newest runs first; without a query the newest of everything."""
    query = query.replace("\0", "").strip()[:100]
    number = int(query.removeprefix("#")) if query.removeprefix("#").isdecimal() and len(query) < 19 else None
    return [*_numbered(user, number), *_runs(user, query, number), *_projects(user, query), *_pages(user, query)]


def _numbered(user: User, number: int | None) -> list[Place]:
    if number is None:
        return []
    seen = Run.objects.visible_to(user).values("id")
    rollout = Rollout.objects.filter(pk=number, run_id__in=seen).first()
    return [Place(f"Rollout {number}", "", reverse("rollout-detail", args=[number]), "right")] if rollout else []


def _runs(user: User, query: str, number: int | None) -> list[Place]:
    runs = Run.objects.visible_to(user)
    runs = (
        runs.filter(name__icontains=query) | runs.filter(pk=number)
        if number is not None
        else runs.filter(name__icontains=query)
    )
    found = runs.order_by("-id").values_list("id", "name", "state", "project__name")[:LIMIT]
    return [
        Place(name, f"{project}, {state}", reverse("run-detail", args=[pk]), "runs")
        for pk, name, state, project in found
    ]


def _projects(user: User, query: str) -> list[Place]:
    found = (
        Project.objects.visible_to(user).filter(name__icontains=query).order_by("-id").values_list("id", "name")[:LIMIT]
    )
    return [Place(name, "project", reverse("run-list", args=[pk]), "folder") for pk, name in found]


def _pages(user: User, query: str) -> list[Place]:
    pages = [
        ("Projects", "home", "folder"),
        ("New project", "project-create", "plus"),
        ("Workers", "workers", "workers"),
    ]
    pages += [("Account and tokens", "account", "key")]
    if user.is_superuser:
        pages += [("People", "people", "people"), ("Audit trail", "audit", "audit")]
    return [Place(label, "page", reverse(url), icon) for label, url, icon in pages if query.lower() in label.lower()]
