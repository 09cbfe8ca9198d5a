"""What the command palette finds: pages of the run and the project a person is in, a step or a rollout by number, runs and projects
by name. At most eight queries.
"""

import re
from dataclasses import dataclass

from django.db.models import Q
from django.urls import Resolver404, resolve, reverse

from rlviewer.accounts.access import RANK, shown_role
from rlviewer.accounts.models import Project, Role, User
from rlviewer.runs.models import Group, Prompt, Rollout, Run, Step
from rlviewer.runs.queries.step import TRAIN
from rlviewer.runs.views import TABS
from rlviewer.signal.views import page_tabs
from rlviewer.watch.models import SavedSearch

LIMIT = 8
NUMBERED = re.compile(r"(?:(step|rollout|run|prompt)\s*)?#?(\d{1,18})", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    label: str
    where: str
    href: str
    icon: str


def find_places(user: User, query: str, at: str = "") -> list[Place]:
    """Places that match `query`, newest runs first; without a query the newest of everything. `at` is the page the person is on."""
    query = query.replace("\0", "").strip()[:100]
    run, project = _surroundings(user, at)
    words = query.lower().split()
    near = [place for place in [*_run_pages(run), *_project_pages(user, project)] if _fits(place, words)]
    return [
        *_numbered(user, query, run),
        *near[: LIMIT if not words else None],
        *_runs(user, query),
        *_projects(user, query),
        *(near[LIMIT:] if not words else []),
        *(place for place in _site_pages(user) if _fits(place, words)),
    ]


def _fits(place: Place, words: list[str]) -> bool:
    text = f"{place.label} {place.where}".lower()
    return all(word in text for word in words)


def _surroundings(user: User, at: str) -> tuple[Run | None, Project | None]:
    """The run and the project that an address is of, where the person may see them."""
    try:
        kwargs = resolve(at.partition("?")[0]).kwargs
    except Resolver404:
        return None, None
    runs, projects = Run.objects.visible_to(user).select_related("project"), Project.objects.visible_to(user)
    asked = {
        "run_id": lambda pk: Q(pk=pk),
        "group_id": lambda pk: Q(pk__in=Group.objects.filter(pk=pk).values("run")),
        "rollout_id": lambda pk: Q(pk__in=Rollout.objects.filter(pk=pk).values("run_id")),
    }
    for name, condition in asked.items():
        if name in kwargs:
            run = runs.filter(condition(int(kwargs[name]))).first()
            return run, run.project if run else None
    owners = {"prompt_id": Prompt.objects.all(), "search_id": SavedSearch.objects.all()}
    for name, owned in owners.items():
        if name in kwargs:
            return None, projects.filter(pk__in=owned.filter(pk=kwargs[name]).values("project")).first()
    return None, projects.filter(pk=kwargs["project_id"]).first() if "project_id" in kwargs else None


def _numbered(user: User, query: str, near: Run | None) -> list[Place]:
    """`step 12` of the run a person is in, else of their newest that has it; `rollout 345`, `run 3`, `prompt 27`; a number alone may
    be any of them.
    """
    if not (found := NUMBERED.fullmatch(query)):
        return []
    kind, number = (found[1] or "").lower(), int(found[2])
    runs, places = Run.objects.visible_to(user), []
    if kind in {"", "step"} and number < 2**31:
        steps = Step.objects.filter(split=TRAIN, is_current=True, index=number, run__in=[near] if near else runs)
        for pk, name in steps.order_by("-run_id").values_list("run_id", "run__name")[:1]:
            places.append(Place(f"Step {number}", name, reverse("step-detail", args=[pk, TRAIN, number]), "right"))
    if kind in {"", "rollout"} and Rollout.objects.filter(pk=number, run_id__in=runs.values("id")).exists():
        places.append(Place(f"Rollout {number}", "", reverse("rollout-detail", args=[number]), "right"))
    if (
        kind in {"", "prompt"}
        and Prompt.objects.filter(pk=number, project__in=Project.objects.visible_to(user)).exists()
    ):
        places.append(Place(f"Prompt {number}", "", reverse("prompt-detail", args=[number]), "right"))
    if kind in {"", "run"}:
        places += [Place(f"Run {number}", name, reverse("run-detail", args=[number]), "runs")
                   for name in runs.filter(pk=number).values_list("name", flat=True)]  # fmt: skip
    return places


def _runs(user: User, query: str) -> list[Place]:
    found = Run.objects.visible_to(user).filter(name__icontains=query).order_by("-id")
    return [
        Place(name, f"{project}, {state}", reverse("run-detail", args=[pk]), "runs")
        for pk, name, state, project in found.values_list("id", "name", "state", "project__name")[:LIMIT]
    ]


def _projects(user: User, query: str) -> list[Place]:
    found = Project.objects.visible_to(user).filter(name__icontains=query).order_by("-id")
    return [
        Place(name, "project", reverse("run-list", args=[pk]), "folder")
        for pk, name in found.values_list("id", "name")[:LIMIT]
    ]


def _run_pages(run: Run | None) -> list[Place]:
    if run is None:
        return []
    here = reverse("run-detail", args=[run.pk])
    pages = [(label, here if key == "overview" else f"{here}?tab={key}") for key, label in TABS.items()]
    pages[1:1] = [
        ("Rollouts", reverse("rollout-list", args=[run.pk])),
        ("Prompts", reverse("run-prompts", args=[run.pk])),
    ]
    pages += [(f"Signal: {tab['label']}", tab["href"]) for tab in page_tabs(run, "")]
    pages += [("Clusters", reverse("run-clusters", args=[run.pk]))]
    return [Place(label, run.name, href, "chart") for label, href in pages]


def _project_pages(user: User, project: Project | None) -> list[Place]:
    if project is None:
        return []
    pages = [
        ("Runs", "run-list", "runs"),
        ("Rollouts", "project-rollouts", "table"),
        ("Searches", "project-searches", "search"),
        ("Labels", "project-labels", "tag"),
        ("Clusters", "project-clusters", "table"),
        ("Sweeps", "sweep-list", "chart"),
        ("Algorithms", "algorithms", "algorithms"),
        ("Rewards", "project-rewards", "tag"),
        ("Members", "project-members", "people"),
        ("Audit", "project-audit", "audit"),
    ]
    role = shown_role(user, project)
    if role is not None and RANK[role] >= RANK[Role.MEMBER]:
        pages.insert(1, ("Launch a run", "run-launch", "launch"))
    return [Place(label, project.name, reverse(url, args=[project.pk]), icon) for label, url, icon in pages]


def _site_pages(user: User) -> list[Place]:
    pages = [
        ("Projects", "home", "folder"),
        ("New project", "project-create", "plus"),
        ("Workers", "workers", "workers"),
        ("Account and tokens", "account", "key"),
    ]
    if user.is_superuser:
        pages += [("People", "people", "people"), ("Audit trail", "audit", "audit")]
    return [Place(label, "page", reverse(url), icon) for label, url, icon in pages]
