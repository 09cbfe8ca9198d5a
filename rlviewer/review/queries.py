"""What pages show of labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count
from django.http import Http404

from rlviewer.accounts.models import Project, User
from rlviewer.review.models import DEFAULT_NAMES, Label, Thumb
from rlviewer.runs.models import Rollout, Run


@dataclass(frozen=True, slots=True)
class Panel:
    """The labels of one rollout as one person sees them."""

    labels: Sequence[Label]
    names: Sequence[str]  # what is offered
    own: dict[str, int]  # what the person says of the whole rollout already, by its words: the label's number

    @property
    def thumb_up(self) -> int | None:
        return self.own.get("thumb up")

    @property
    def thumb_down(self) -> int | None:
        return self.own.get("thumb down")

    @property
    def choices(self) -> list[tuple[str, int | None]]:
        """Each name that is offered, with the person's own label of it."""
        return [(name, self.own.get(name)) for name in self.names]

    @property
    def ranges(self) -> list[dict[str, object]]:
        """For the marks on tokens."""
        return [
            {"start": label.token_start, "end": label.token_end, "words": f"{label.words}, {label.author.username}"}
            for label in self.labels
            if label.token_start is not None
        ]


def label_panel(user: User, rollout: Rollout) -> Panel:
    """Two queries."""
    labels = list(rollout.labels.select_related("author", "name").order_by("token_start", "pk"))
    own = {
        label.words: label.pk
        for label in labels
        if label.author_id == user.pk and label.token_start is None and label.words != "note"
    }
    # An own label that is no longer offered can still be taken back from the list.
    return Panel(labels, offered_names(rollout.step.run.project), own)


def labels_of(rollout_ids: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """What was said of each rollout that somebody labelled, for files. One query."""
    labels = Label.objects.filter(rollout__in=rollout_ids).select_related("author", "name").order_by("pk")
    found: dict[int, list[dict[str, Any]]] = {}
    for label in labels:
        found.setdefault(label.rollout_id, []).append(
            {
                "said": label.words,
                "note": label.note,
                "token_start": label.token_start,
                "token_end": label.token_end,
                "by": label.author.username,
                "at": label.made_at.isoformat(),
            }
        )
    return found


def labelled_rollouts(project: Project) -> list[int]:
    """Those with a thumb or a label, the newest last. One query."""
    given = Label.objects.filter(rollout__step__run__project=project).exclude(thumb=None, name=None)
    return list(given.order_by("rollout_id").values_list("rollout_id", flat=True).distinct())


def offered_names(project: Project) -> list[str]:
    """In the order in which they were added. One query."""
    stored = list(project.label_names.order_by("pk").values_list("name", "is_archived"))
    return [name for name, is_archived in stored if not is_archived] if stored else list(DEFAULT_NAMES)


def visible_label(user: User, label_id: int) -> Label:
    """The label with its rollout, run and project, or 404. One query."""
    rows = Label.objects.filter(rollout__step__run__in=Run.objects.visible_to(user))
    found = rows.select_related("rollout__step__run__project", "author", "name").filter(pk=label_id).first()
    if found is None:
        raise Http404(f"no label {label_id}")
    return found


@dataclass(frozen=True, slots=True)
class NameRow:
    """A label of the vocabulary."""

    name: str
    is_archived: bool
    rollouts: int  # that carry it

    @property
    def filter(self) -> str:
        return f"label:'{self.name}'" if " " in self.name else f"label:{self.name}"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    names: Sequence[NameRow]
    thumbs: Sequence[tuple[str, int]]  # `up` and `down`, with the rollouts that carry one
    labelled: int  # rollouts with a thumb or a label


def vocabulary(project: Project) -> Vocabulary:
    """Three queries."""
    names = project.label_names.annotate(rollouts=Count("labels__rollout", distinct=True)).order_by("is_archived", "pk")
    rows = [NameRow(row.name, row.is_archived, row.rollouts) for row in names]
    given = Label.objects.filter(rollout__step__run__project=project).exclude(thumb=None, name=None)
    counted = given.order_by().values_list("thumb").annotate(rollouts=Count("rollout", distinct=True))
    thumbs = dict(counted)
    return Vocabulary(
        rows or [NameRow(name, False, 0) for name in DEFAULT_NAMES],
        [(thumb.label, thumbs.get(thumb.value, 0)) for thumb in Thumb],
        given.values("rollout").distinct().count(),
    )
