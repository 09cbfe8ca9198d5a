"""Batches that could not be stored when they came: found by people, tried again, thrown away."""

import uuid
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import DataError, OperationalError
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import AuditEvent, Project, User
from rlviewer.ingest import parked
from rlviewer.ingest.drain import drain_spool
from rlviewer.ingest.models import Batch, ParkedBatch
from rlviewer.ingest.parked import adopt_parked
from rlviewer.ingest.services import store_batch
from rlviewer.launch import sweeper
from rlviewer.runs.models import Attempt, Run, Step
from tests.factories import make_batch, make_user
from training.records import RolloutBatch


def park(data: bytes, *, run: Run | None = None, attempt: int | None = None, reason: str = "odd") -> ParkedBatch:
    return ParkedBatch.objects.create(
        id=uuid.uuid4(), run_uid=run.uid if run else None, attempt=attempt, reason=reason, payload=data
    )


def retry(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    call_command("retry_parked", *options)
    return capsys.readouterr().out.splitlines()


def test_a_batch_of_an_unknown_attempt_waits_for_it(run: Run) -> None:
    outcome = store_batch(make_batch(run, attempt=2), source="test")
    assert (outcome.received, outcome.stored, outcome.parked) == (16, 0, 16)
    assert adopt_parked() == 0
    assert "attempt 2" in ParkedBatch.objects.get().reason
    Attempt.objects.create(run=run, number=2)
    assert adopt_parked() == 1
    assert not ParkedBatch.objects.exists()
    assert Step.objects.get().attempt.number == 2


def test_a_batch_without_rollouts_waits_like_any_other(run: Run) -> None:
    batch = make_batch(run, attempt=2)
    rollouts, groups, spans = (table.slice(0, 0) for table in (batch.rollouts, batch.groups, batch.reward_spans))
    store_batch(RolloutBatch(batch.header, rollouts, groups, batch.metrics, spans), source="test")
    parked.retry_parked(ParkedBatch.objects.get().pk)
    assert ParkedBatch.objects.count() == 1
    Attempt.objects.create(run=run, number=2)
    assert adopt_parked() == 1


def test_the_sweeper_reads_no_batch_before_its_attempt_is_there(run: Run) -> None:
    waiting = park(b"damaged", run=run, attempt=2)
    sweeper.adopt_orphans()
    waiting.refresh_from_db()
    assert waiting.reason == "odd"
    Attempt.objects.create(run=run, number=2)
    sweeper.adopt_orphans()
    waiting.refresh_from_db()
    # Read once, and never again by itself.
    assert waiting.reason.startswith("its file: not a batch file")
    assert (waiting.run_uid, waiting.attempt) == (run.uid, None)


@pytest.mark.parametrize("error", [DataError("value out of range"), KeyError("nothing")])
def test_a_batch_that_cannot_be_stored_stops_no_other(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    for step in range(2):
        store_batch(make_batch(run, attempt=2, step=step), source="test")
    Attempt.objects.create(run=run, number=2)
    real = parked.store_batch

    def picky(batch: RolloutBatch, **rest: str) -> object:
        if batch.header.step == 0:
            raise error
        return real(batch, **rest)

    monkeypatch.setattr(parked, "store_batch", picky)
    assert adopt_parked() == 1
    left = ParkedBatch.objects.get()
    assert (left.run_uid, left.attempt, left.reason) == (run.uid, None, str(error))
    assert Step.objects.get().index == 1


def test_a_database_that_is_away_changes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    store_batch(make_batch(run, attempt=2), source="test")
    Attempt.objects.create(run=run, number=2)

    def away(*_: object, **__: object) -> None:
        raise OperationalError("the database system is shutting down")

    with monkeypatch.context() as patch:
        patch.setattr(parked, "store_batch", away)
        with pytest.raises(OperationalError):
            adopt_parked()
    assert adopt_parked() == 1


def test_retry_says_of_each_batch_what_became_of_it(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    good, twice = make_batch(run), make_batch(run, step=1)
    store_batch(twice, source="test")
    waiting = make_batch(run, attempt=7)
    store_batch(waiting, source="test")
    rows = [park(batch.to_bytes()) for batch in (good, twice)] + [park(good.to_bytes()[:-9]), park(b"")]
    lines = retry(capsys)
    assert lines[0] == f"{waiting.header.batch_id}: still parked: attempt 7 of run {run.uid} is not known here yet"
    assert lines[1] == f"{rows[0].pk}: 16 of 16 rollouts stored, 0 refused"
    assert lines[2] == f"{rows[1].pk}: was stored before"
    assert lines[3].startswith(f"{rows[2].pk}: still parked: its file: damaged or cut short")
    assert lines[4] == f"{rows[3].pk}: still parked: odd"
    assert lines[5:] == ["5 tried, 3 parked"]
    assert Batch.objects.get(source="parked").stored == 16
    # Again: nothing is stored twice, and what waits for its attempt still does.
    assert retry(capsys) == [lines[0], *lines[3:5], "3 tried, 3 parked"]
    assert Step.objects.count() == 2
    Attempt.objects.create(run=run, number=7)
    assert adopt_parked() == 1


def test_what_only_now_can_be_read_waits_under_its_own_number(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    batch = make_batch(run, attempt=2)
    row = park(batch.to_bytes())
    assert "still parked: attempt 2" in retry(capsys)[0]
    left = ParkedBatch.objects.get()
    assert left.pk != row.pk
    assert (str(left.pk), left.run_uid, left.attempt) == (batch.header.batch_id, run.uid, 2)


def test_one_batch_is_tried_or_thrown_away(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (park(make_batch(run, step=step).to_bytes(), run=run) for step in range(2))
    assert retry(capsys, "--batch", str(second.pk))[-1] == "1 tried, 1 parked"
    assert Step.objects.get().index == 1
    assert retry(capsys, "--discard", str(first.pk)) == [f"{first.pk}: thrown away"]
    assert not ParkedBatch.objects.exists()
    event = AuditEvent.objects.get(verb="discard-parked")
    assert (event.target, event.project, event.detail["reason"]) == (f"batch:{first.pk}", run.project, "odd")
    for option in ("--batch", "--discard"):
        with pytest.raises(CommandError, match=f"no batch {first.pk} is parked"):
            retry(capsys, option, str(first.pk))


def test_the_ledger_of_a_run_names_its_parked_batches(client: Client, alice: User, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / str(run.uid) / "spool"
    folder.mkdir(parents=True)
    (folder / "0001-00000000-1-x.batch").write_bytes(b"<b>no batch</b>")
    drain_spool(folder.parent)
    store_batch(make_batch(run), source="test")
    store_batch(make_batch(run, attempt=2), source="test")
    client.force_login(alice)
    page = " ".join(client.get(reverse("run-detail", args=[run.pk]) + "?tab=steps").content.decode().split())
    assert "32 received in 3 batches of all attempts and splits: 16 stored, 0 refused, 16 parked." in page
    for row in ParkedBatch.objects.all():
        assert str(row.pk) in page
    assert "0001-00000000-1-x.batch" in page and "attempt 2 of run" in page


def test_only_site_admins_see_parked_batches_of_no_run(client: Client, alice: User, project: Project, run: Run) -> None:
    store_batch(make_batch(Run(pk=0, uid=uuid.uuid4())), source="test")
    park(b"", run=run, reason="of a run")
    for number in range(20):
        park(b"", reason=f"nobody's {number}.")
    client.force_login(alice)
    assert "Parked batches" not in client.get("/workers/").content.decode()
    client.force_login(make_user("root", is_superuser=True))
    page = " ".join(client.get("/workers/").content.decode().split())
    assert "the newest 20 of 21 are shown" in page
    assert "nobody's 19." in page.replace("&#x27;", "'")
    assert "of a run" not in page and "is not known here yet" not in page
