"""Saved searches as people write them; each change leaves an entry in the audit trail. Views ask for the role first."""

from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction

from rlviewer.accounts.models import Project, User
from rlviewer.accounts.services import record
from rlviewer.outbox.services import announce
from rlviewer.review.models import LabelName
from rlviewer.review.services import LabelError, name_in
from rlviewer.search.compile import compile_filter
from rlviewer.search.language import FilterError, parse
from rlviewer.search.tree import All, Comparison, Node, Not
from rlviewer.search.tree import Any as Either
from rlviewer.watch.counting import find_onsets
from rlviewer.watch.models import SavedSearch
from rlviewer.watch.suspects import SUSPECTS

SEARCHES_LIMIT = 100  # of a project: every step is asked each of them
# Worked out some seconds after a step is stored, so that a count at once could miss it.
LATER = {"why"}


class SearchError(ValueError):
    """What cannot be saved; the message is for the person who asked. `field` names the form's field."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Wanted:
    """A search as a person wrote it."""

    name: str
    query: str
    about: str = ""
    limit_rate: float | None = None
    true_label: str = ""  # its name; empty for a thumb up

    def columns(self, user: User, project: Project) -> dict[str, Any]:
        """What is stored of it. Raises SearchError: the query cannot be counted, or there is no such label."""
        check_query(self.query)
        try:
            label: LabelName | None = name_in(user, project, self.true_label) if self.true_label else None
        except LabelError as error:
            raise SearchError(str(error), "true_label") from None
        return {
            "name": self.name,
            "query": self.query,
            "about": self.about,
            "limit_rate": self.limit_rate,
            "true_label": label,
        }


def check_query(query: str) -> None:
    """Raises SearchError: it cannot be read, asks for nothing, or asks for what changes after a step is stored."""
    try:
        tree = parse(query)
        compile_filter(tree)
    except FilterError as error:
        raise SearchError(f"At character {error.start + 1}: {error}", "query") from None
    if not tree.parts:
        raise SearchError("Write what the search looks for.", "query")
    if later := changing_field(tree):
        raise SearchError(
            f"“{later}” changes after a step is stored, and a saved search counts each step once. Ask for it in the list.",
            "query",
        )


def changing_field(node: Node) -> str | None:
    """The first field of a filter whose values may change after storing."""
    if isinstance(node, Comparison):
        return node.field.name if node.field.is_label or node.field.name in LATER else None
    parts = node.parts if isinstance(node, All | Either) else (node.part,) if isinstance(node, Not) else ()
    return next((found for part in parts if (found := changing_field(part))), None)


@transaction.atomic
def create_search(user: User, project: Project, wanted: Wanted) -> SavedSearch:
    """Save it; a worker counts its hits in every stored step.

    Raises:
        SearchError: the name is taken, the query cannot be counted, or there are too many searches.
    """
    Project.objects.select_for_update().get(pk=project.pk)
    if project.searches.filter(is_archived=False).count() >= SEARCHES_LIMIT:
        raise SearchError(f"A project has at most {SEARCHES_LIMIT} searches. Archive one first.")
    search = SavedSearch(project=project, made_by=user, **wanted.columns(user, project))
    _save(search)
    _say(user, "create-search", search, query=search.query, limit_rate=search.limit_rate)
    return search


@transaction.atomic
def edit_search(user: User, search: SavedSearch, wanted: Wanted) -> SavedSearch:
    """Change it. Another query is counted anew in every step; another query or limit forgets the onsets found before.

    Raises:
        SearchError: as `create_search`.
    """
    search = SavedSearch.objects.select_for_update(of=("self",)).select_related("project").get(pk=search.pk)
    columns = wanted.columns(user, search.project)
    before = {name: getattr(search, name) for name in columns}
    changed = {name: value for name, value in columns.items() if before[name] != value}
    if not changed:
        return search
    for name, value in changed.items():
        setattr(search, name, value)
    if "query" in changed:
        search.query_version += 1
    _save(search)
    if changed.keys() & {"query", "limit_rate"}:
        search.onsets.all().delete()
        find_onsets(search)  # under another limit; the counts of another query are still to come
    said = {name: str(value) for name, value in changed.items()}
    _say(user, "edit-search", search, before={name: str(before[name]) for name in changed}, **said)
    return search


@transaction.atomic
def archive_search(user: User, search: SavedSearch, *, is_archived: bool) -> None:
    """No longer list and count it, or do so again. Raises SearchError: another search has its name by now."""
    search = SavedSearch.objects.select_for_update(of=("self",)).select_related("project").get(pk=search.pk)
    if search.is_archived != is_archived:
        search.is_archived = is_archived
        _save(search)
        _say(user, "archive-search" if is_archived else "restore-search", search)


def save_suspect(user: User, project: Project, name: str) -> SavedSearch:
    """Watch for one of the ready-made suspects; one that is watched already comes back as it is.

    Raises:
        SearchError: no such suspect, or as `create_search`.
    """
    suspect = SUSPECTS.get(name)
    if suspect is None:
        raise SearchError(f"There is no suspect “{name[:100]}”.")
    known = project.searches.filter(name__iexact=name, is_archived=False).first()
    return known or create_search(user, project, Wanted(name, suspect.query, suspect.about))


def _save(search: SavedSearch) -> None:
    try:
        with transaction.atomic():
            search.save()
    except IntegrityError:
        raise SearchError("The project has a search of this name. Choose another one.", "name") from None


def _say(user: User, verb: str, search: SavedSearch, **detail: Any) -> None:
    record(user, verb, f"search:{search.pk}", search.project, **({"name": search.name} | detail))
    announce(f"project:{search.project_id}", "searches-changed", search=search.pk)
