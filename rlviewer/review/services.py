"""Labels and their vocabulary as people write them; each leaves an entry in the audit trail. Views ask for the role first."""

from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.utils import timezone

from rlviewer.accounts.access import shown_role
from rlviewer.accounts.models import Project, Role, User
from rlviewer.accounts.services import record
from rlviewer.outbox.services import announce, announce_run
from rlviewer.review.models import DEFAULT_NAMES, Label, LabelName, Thumb
from rlviewer.runs.models import Rollout

NAME_LIMIT = 40
NOTE_LIMIT = 2000
NAMES_LIMIT = 50  # of a project, archived ones left out


class LabelError(ValueError):
    """What cannot be stored; the message is for the person who asked."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a person wants to say of a rollout, as the form sends it."""

    thumb: Thumb | None = None
    name: str = ""
    note: str = ""
    tokens: tuple[int, int] | None = None  # first, and one past the last

    def checked(self, rollout: Rollout) -> "Said":
        """Raises LabelError where it says nothing, too much, or speaks of tokens that are not there."""
        note = self.note.replace("\x00", "").strip()
        if self.thumb is None and not self.name and not note:
            raise LabelError("Choose a thumb or a label, or write a note.")
        if len(note) > NOTE_LIMIT:
            raise LabelError(f"A note has at most {NOTE_LIMIT:,} characters; this one has {len(note):,}.")
        if self.tokens is not None and not 0 <= self.tokens[0] < self.tokens[1] <= rollout.length_tokens:
            raise LabelError(f"Tokens {self.tokens[0]} to {self.tokens[1] - 1} are not of this rollout.")
        return Said(self.thumb, self.name, note, self.tokens)


@transaction.atomic
def add_label(user: User, rollout: Rollout, said: Said) -> Label:
    """Say it. A thumb replaces the person's other one of the same tokens; what was said before only takes the new note.

    Raises:
        LabelError: nothing is said, the note is too long, no such tokens or no such label.
    """
    said = said.checked(rollout)
    # Two presses at the same moment must not both find nothing to change.
    Rollout.objects.select_for_update().get(pk=rollout.pk)
    start, end = said.tokens or (None, None)
    place = {"rollout": rollout, "author": user, "token_start": start, "token_end": end}
    name = None if said.thumb is not None or not said.name else name_in(user, rollout.step.run.project, said.name)
    before = None
    if said.thumb is not None or name is not None:
        before = Label.objects.filter(**place, name=name).exclude(thumb=None, name=None).first()
    if before is None:
        label = Label.objects.create(**place, thumb=said.thumb, name=name, note=said.note)
        _note_down(user, "label", label)
        return label
    if before.thumb == said.thumb and said.note in {"", before.note}:
        return before
    return _change(user, before, thumb=said.thumb, note=said.note or before.note)


@transaction.atomic
def edit_label(user: User, label: Label, said: Said) -> Label:
    """Say something else in its place; the tokens stay.

    Raises:
        LabelError: as `add_label`, or the person has said the same of it already.
        PermissionDenied: neither its author nor an admin of the project.
    """
    require_own(user, label)
    said = said.checked(label.rollout)
    name = None if said.thumb is not None or not said.name else name_in(user, label.rollout.step.run.project, said.name)
    try:
        with transaction.atomic():
            return _change(user, label, thumb=said.thumb, name=name, note=said.note)
    except IntegrityError:
        raise LabelError("This has been said of it already. Remove one of the two.") from None


@transaction.atomic
def remove_label(user: User, label: Label) -> None:
    """Take it back; the audit trail keeps what it said. Raises PermissionDenied as `edit_label`."""
    require_own(user, label)
    _note_down(user, "remove-label", label)
    label.delete()


def require_own(user: User, label: Label) -> None:
    if label.author_id != user.pk and shown_role(user, label.rollout.step.run.project) != Role.ADMIN:
        raise PermissionDenied("Only who wrote a label, or an admin of the project, may change it.")


def _change(user: User, label: Label, **change: Any) -> Label:
    before = {"said": label.words, "note": label.note}
    for column, value in change.items():
        setattr(label, column, value)
    label.edited_at = timezone.now()
    label.save(update_fields=[*change, "edited_at"])
    _note_down(user, "edit-label", label, before=before)
    return label


def _note_down(user: User, verb: str, label: Label, **detail: Any) -> None:
    run = label.rollout.step.run
    tokens = None if label.token_start is None else [label.token_start, label.token_end]
    detail |= {"said": label.words, "note": label.note, "tokens": tokens, "by": label.author.get_username()}
    record(user, verb, f"rollout:{label.rollout_id}", run.project, **detail)
    announce_run(run.pk, run.project_id, "rollout-labelled", rollout=label.rollout_id)


def name_in(user: User, project: Project, name: str) -> LabelName:
    """The label of this name that is offered in the project."""
    keep_defaults(user, project)
    found = LabelName.objects.filter(project=project, name=tidy(name), is_archived=False).first()
    if found is None:
        raise LabelError(f"The project has no label “{name[:NAME_LIMIT]}”. Members add one on its page of labels.")
    return found


def keep_defaults(user: User, project: Project) -> None:
    """Store the names that everybody starts with, once somebody uses or changes them."""
    if not LabelName.objects.filter(project=project).exists():
        names = [LabelName(project=project, name=name, made_by=user) for name in DEFAULT_NAMES]
        LabelName.objects.bulk_create(names, ignore_conflicts=True)


def tidy(name: str) -> str:
    return " ".join(name.replace("\x00", "").lower().split())


def _checked_name(project: Project, name: str) -> str:
    name = tidy(name)
    if not name or len(name) > NAME_LIMIT:
        raise LabelError(f"A label has 1 to {NAME_LIMIT} characters.")
    if "'" in name or '"' in name:
        raise LabelError("A label has no quotes: filters put them around it.")
    if name in {"none", "note"}:
        raise LabelError(f"“{name}” means something else in filters. Choose another word.")
    if LabelName.objects.filter(project=project, name=name).exists():
        raise LabelError(f"The project has a label “{name}” already; perhaps it is archived.")
    return name


@transaction.atomic
def add_name(user: User, project: Project, name: str) -> LabelName:
    """Raises LabelError: the name is unfit or taken, or there are too many."""
    Project.objects.select_for_update().get(pk=project.pk)
    keep_defaults(user, project)
    name = _checked_name(project, name)
    if LabelName.objects.filter(project=project, is_archived=False).count() >= NAMES_LIMIT:
        raise LabelError(f"A project has at most {NAMES_LIMIT} labels. Archive one first.")
    made = LabelName.objects.create(project=project, name=name, made_by=user)
    _say_changed(user, "add-label-name", made)
    return made


@transaction.atomic
def rename_name(user: User, project: Project, old: str, name: str) -> LabelName:
    """What was labelled goes along. Raises LabelError: no such label, or the new name is unfit or taken."""
    label_name = _name_to_change(user, project, old)
    if tidy(name) == label_name.name:
        return label_name
    before, label_name.name = label_name.name, _checked_name(project, name)
    label_name.save(update_fields=["name"])
    _say_changed(user, "rename-label-name", label_name, before=before)
    return label_name


@transaction.atomic
def archive_name(user: User, project: Project, name: str, *, is_archived: bool) -> None:
    """No longer offer it, or offer it again. Raises LabelError: no such label."""
    label_name = _name_to_change(user, project, name)
    if label_name.is_archived != is_archived:
        label_name.is_archived = is_archived
        label_name.save(update_fields=["is_archived"])
        _say_changed(user, "archive-label-name" if is_archived else "restore-label-name", label_name)


def _name_to_change(user: User, project: Project, name: str) -> LabelName:
    keep_defaults(user, project)
    found = LabelName.objects.select_for_update().filter(project=project, name=tidy(name)).first()
    if found is None:
        raise LabelError(f"The project has no label “{name[:NAME_LIMIT]}”.")
    return found


def _say_changed(user: User, verb: str, label_name: LabelName, **detail: Any) -> None:
    record(user, verb, f"project:{label_name.project_id}", label_name.project, name=label_name.name, **detail)
    announce(f"project:{label_name.project_id}", "labels-changed")
