from pathlib import Path

import pytest

from rlviewer.accounts.models import AuditEvent, Project, User
from rlviewer.outbox.models import Announcement
from rlviewer.runs import services
from rlviewer.runs.models import Vocabulary
from rlviewer.runs.services import RunTextError, remember_vocabulary, rename_run, tag_run
from tests.factories import make_run
from training import vocabulary


def test_rename_is_audited_and_announced(alice: User, project: Project) -> None:
    run = rename_run(alice, make_run(project, "old"), "  new \x00\n name ")
    run.refresh_from_db()
    assert run.name == "new name"
    event = AuditEvent.objects.get()
    assert (event.verb, event.actor_name, event.detail) == ("rename", "alice", {"before": "old", "name": "new name"})
    assert set(Announcement.objects.values_list("topic", "event")) == {
        (f"run:{run.pk}", "run-changed"),
        (f"project:{project.pk}", "run-changed"),
    }
    rename_run(alice, run, "new name")
    assert AuditEvent.objects.count() == 1


@pytest.mark.parametrize("name", ["", " \n\x00", "x" * 201])
def test_a_name_that_cannot_be_is_refused(alice: User, project: Project, name: str) -> None:
    run = make_run(project, "old")
    with pytest.raises(RunTextError):
        rename_run(alice, run, name)
    run.refresh_from_db()
    assert run.name == "old"


def test_tags_are_replaced_without_repeats(alice: User, project: Project) -> None:
    run = tag_run(alice, make_run(project), [" baseline ", "", "baseline", "two  words"])
    run.refresh_from_db()
    assert run.tags == ["baseline", "two words"]
    for wrong in (["x" * 61], [str(n) for n in range(services.TAGS_LIMIT + 1)]):
        with pytest.raises(RunTextError):
            tag_run(alice, run, wrong)


def test_runs_of_one_tokenizer_share_a_vocabulary(project: Project, tmp_path: Path) -> None:
    runs = [make_run(project), make_run(project)]
    for run in runs:
        folder = tmp_path / str(run.uid)
        folder.mkdir()
        vocabulary.write(folder / vocabulary.FILE_NAME, [b"<eos>", b"\xf0\x9f"])
        remember_vocabulary(folder)
        remember_vocabulary(folder)
        run.refresh_from_db()
    stored = Vocabulary.objects.get()
    assert runs[0].vocabulary_id == runs[1].vocabulary_id == stored.pk
    assert stored.size == 2 and vocabulary.unpack(bytes(stored.payload)) == [b"<eos>", b"\xf0\x9f"]


def test_a_missing_or_damaged_vocabulary_stops_nothing(project: Project, tmp_path: Path) -> None:
    run = make_run(project)
    folder = tmp_path / str(run.uid)
    folder.mkdir()
    remember_vocabulary(folder)
    (folder / vocabulary.FILE_NAME).write_bytes(b"RLVVOC1\n damaged")
    remember_vocabulary(folder)
    remember_vocabulary(tmp_path)
    run.refresh_from_db()
    assert run.vocabulary_id is None
