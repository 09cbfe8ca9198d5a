"""Writes that a person or a worker asks for: rename, tag, remember a vocabulary."""

import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import transaction

from rlviewer.accounts.models import User
from rlviewer.accounts.services import record
from rlviewer.outbox.services import announce_run
from rlviewer.runs.models import Run, Vocabulary
from training import vocabulary

log = logging.getLogger(__name__)

NAME_LIMIT = 200
TAG_LIMIT = 60
TAGS_LIMIT = 20


class RunTextError(ValueError):
    """A name or tag that cannot be stored; the message is for the person who typed it."""


def rename_run(user: User, run: Run, name: str) -> Run:
    """Give the run another name.

    Raises:
        RunTextError: empty or too long.
    """
    name = _one_line(name)
    if not name:
        raise RunTextError("A run needs a name.")
    if len(name) > NAME_LIMIT:
        raise RunTextError(f"A name has at most {NAME_LIMIT} characters; this one has {len(name)}.")
    return _change(user, "rename", run, name=name)


def tag_run(user: User, run: Run, tags: Iterable[str]) -> Run:
    """Replace the run's tags; repeated and empty ones are dropped.

    Raises:
        RunTextError: a tag is too long, or there are too many.
    """
    wanted = list(dict.fromkeys(tag for tag in map(_one_line, tags) if tag))
    if long := next((tag for tag in wanted if len(tag) > TAG_LIMIT), None):
        raise RunTextError(f"A tag has at most {TAG_LIMIT} characters; “{long[:20]}…” has {len(long)}.")
    if len(wanted) > TAGS_LIMIT:
        raise RunTextError(f"A run has at most {TAGS_LIMIT} tags; these are {len(wanted)}.")
    return _change(user, "tag", run, tags=wanted)


@transaction.atomic
def _change(user: User, verb: str, run: Run, **change: Any) -> Run:
    """Give one column another value, if it has not got it yet."""
    run = Run.objects.select_for_update(of=("self",)).get(pk=run.pk)
    ((column, value),) = change.items()
    before = getattr(run, column)
    if before != value:
        setattr(run, column, value)
        run.save(update_fields=[column])
        record(user, verb, f"run:{run.pk}", run.project, before=before, **change)
        announce_run(run.pk, run.project_id, "run-changed", **change)
    return run


def _one_line(text: str) -> str:
    return " ".join(text.replace("\x00", "").split())


def uid_of(run_dir: Path) -> UUID | None:
    """Whose run folder it is; None when it is not named as one."""
    try:
        return UUID(run_dir.name)
    except ValueError:
        return None


def remember_vocabulary(run_dir: Path) -> None:
    """Store the vocabulary that the trainer wrote into its run folder, named by the run's uid; one row per tokenizer.

    One query when the run has it or is not known here. Without the file, or with a damaged one, pages show token ids.
    """
    path, uid = run_dir / vocabulary.FILE_NAME, uid_of(run_dir)
    if uid is None or not path.exists() or not Run.objects.filter(uid=uid, vocabulary=None).exists():
        return
    try:
        payload = path.read_bytes()
        size = len(vocabulary.unpack(payload))
    except (OSError, vocabulary.VocabularyError) as error:
        log.warning("%s: %s; tokens are shown by their ids", path, error)
        return
    with transaction.atomic():
        digest = hashlib.sha256(payload).digest()
        stored, _ = Vocabulary.objects.get_or_create(sha256=digest, defaults={"size": size, "payload": payload})
        Run.objects.filter(uid=uid, vocabulary=None).update(vocabulary=stored)
