"""The rewards of a project: those that exist, what of them is known, and who may be asked to judge anew."""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from rlviewer.accounts.models import Project, User
from rlviewer.counterfactual.models import RewardDefinition, RewardNote
from rlviewer.runs.models import Run
from training import own
from training.rewards import REWARDS

NOTE_CHARS = 2000
RUNS_LISTED = 12


@dataclass(frozen=True, slots=True)
class Known:
    """A reward, its newest version first."""

    name: str
    is_own: bool
    summary: str
    version: str  # of the code here; "" for one's own, which only a worker reads
    source: str
    versions: Sequence[RewardDefinition]
    notes: Sequence[RewardNote]
    runs: Sequence[Run]
    run_count: int


def rewards_of(run: Run) -> list[str]:
    """Entries of H4 that the run names."""
    entries = run.plugins.get("H4", []) if isinstance(run.plugins, dict) else []
    return [entries] if isinstance(entries, str) else [str(entry) for entry in entries]


def judges(project: Project) -> list[str]:
    """Names that may be asked for: the built-in ones, those that the worker's owner lists, and those of the project's runs.

    A page never names code that nobody with access to the machine named before.
    """
    named = [name for entries in _entries(project).values() for name in entries if own.is_own(name)]
    return [*REWARDS, *dict.fromkeys([*settings.REWARDS, *named])]


def registry(project: Project) -> list[Known]:
    """Four queries."""
    entries = _entries(project)
    names = list(dict.fromkeys([*judges(project), *(name for of_run in entries.values() for name in of_run)]))
    versions, notes = (
        _by_name(RewardDefinition.objects.filter(project=project)),
        _by_name(RewardNote.objects.filter(project=project).select_related("author")),
    )
    used = {name: [pk for pk, of_run in entries.items() if name in of_run] for name in names}
    shown = {pk for pks in used.values() for pk in pks[:RUNS_LISTED]}
    runs = Run.objects.in_bulk(shown)
    return [
        Known(
            name,
            own.is_own(name),
            _summary(name),
            own.version_of(REWARDS[name]) if name in REWARDS else "",
            inspect.getsource(REWARDS[name]) if name in REWARDS else "",
            versions.get(name, []),
            notes.get(name, []),
            [runs[pk] for pk in used[name][:RUNS_LISTED]],
            len(used[name]),
        )
        for name in names
    ]


def _entries(project: Project) -> dict[int, list[str]]:
    """Per run, the newest first: the rewards it names."""
    found = Run.objects.filter(project=project).order_by("-pk").only("plugins")
    return {run.pk: rewards_of(run) for run in found}


def _by_name(rows: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in sorted(rows, key=lambda row: -row.pk):
        found.setdefault(row.name, []).append(row)
    return found


def _summary(name: str) -> str:
    if name not in REWARDS:
        return "Code of one's own on the worker."
    return (inspect.getdoc(REWARDS[name]) or "Ways to add to, or take from, what the task's checker says.").split(
        "\n\n"
    )[0]


def keep_definitions(project_id: int, found: Iterable[dict[str, str]]) -> None:
    """What a worker read of the rewards it judged by; a version that is known stays as it is."""
    rows = [
        RewardDefinition(project_id=project_id, name=one["name"], version=one["version"], source=one["source"].replace("\0", ""))
        for one in found
    ]  # fmt: skip
    RewardDefinition.objects.bulk_create(rows, ignore_conflicts=True)


def add_note(user: User, project: Project, name: str, text: str) -> None:
    RewardNote.objects.create(project=project, name=name, text=text[:NOTE_CHARS], author=user)
