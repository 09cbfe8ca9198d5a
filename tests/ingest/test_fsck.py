"""fsck finds every kind of damage, and nothing in a healthy store."""

import pytest
from django.core.management import call_command
from django.db import connection

from rlviewer.ingest.consistency import problems
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Attempt, Run
from tests.factories import fill_run, make_batch


@pytest.fixture
def filled(run: Run) -> Run:
    fill_run(run, 2)
    Attempt.objects.create(run=run, number=2)
    store_batch(make_batch(run, attempt=2, step=1, number=[0, 0, *range(2, 4), *[0, 1, 2, 3] * 3]), source="test")
    return run


def test_a_healthy_store_has_no_problems(filled: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(problems()) == []
    call_command("fsck")
    assert "5 batches, 79 rollouts: all consistent" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("DELETE FROM runs_rollout WHERE id = {rollout}", "the ledger says 16 rollouts were stored, 15 are"),
        ("DELETE FROM runs_rollout WHERE id = {rollout}", "says it holds 4 rollouts, 3 rows point at it"),
        ("DELETE FROM runs_rollout WHERE id = {rollout}", "reward parts of rollout"),
        ("DELETE FROM runs_rollout WHERE id = {rollout}", "rollout_count is 16, its rollouts give 15"),
        ("DELETE FROM runs_tokenchunk WHERE id = {chunk}", "points at no chunk"),
        ("UPDATE runs_tokenchunk SET payload = set_byte(payload, 60, 255 - get_byte(payload, 60)) WHERE id = {chunk}", "SHA-256 differs"),
        ("UPDATE runs_tokenchunk SET payload = '\\x00', sha256 = sha256('\\x00'::bytea) WHERE id = {chunk}", "damaged chunk"),
        ("UPDATE runs_tokenchunk SET rollout_count = 5 WHERE id = {chunk}", "holds 4 rollouts, its row says 5"),
        ("UPDATE runs_rollout SET position = 0 WHERE id = {rollout}", "two rollouts share a position"),
        ("UPDATE runs_rollout SET run_id = 999 WHERE id = {rollout}", "its run or step differs"),
        ("UPDATE runs_rollout SET length_tokens = 999 WHERE id = {rollout}", "tokens in its chunk, 999 in its row"),
        ("UPDATE runs_rollout SET reward = 5 WHERE id = {rollout}", "reward_mean is"),
        ("UPDATE runs_rewardpart SET token_end = 999 WHERE rollout_id = {rollout}", "a reward part lies outside its tokens"),
        ("UPDATE runs_step SET is_current = false WHERE attempt_id = (SELECT max(id) FROM runs_attempt);"
         " UPDATE runs_step SET is_current = true WHERE index = 1 AND split = 'train' AND attempt_id = (SELECT min(id) FROM runs_attempt)", "is not the current one"),
        ("UPDATE runs_step SET is_current = false WHERE index = 0", "is not the current one"),
        ("UPDATE runs_step SET dead_groups = 3 WHERE index = 0 AND split = 'train'", "dead_groups is 3"),
        ("UPDATE runs_run SET rollout_count = 1", "rollout_count is 1, its steps give 79"),
        ("UPDATE runs_run SET latest_pass = 0.123", "latest_pass is 0.123"),
        ("UPDATE runs_run SET last_step = 77", "last_step is 77"),
        ("DELETE FROM ingest_refusedrow", "the ledger says 1 rows were refused, 0 are kept"),
        ("DELETE FROM ingest_refusedrow; DELETE FROM ingest_batch", "the ledger says 0 rollouts were stored, 16 are"),
        ("UPDATE runs_metricchunk SET values = values[1:1] WHERE name = 'loss'", "metric loss: its parts have gaps"),
        ("INSERT INTO ingest_parkedbatch SELECT id, NULL, 1, '', '', now() FROM ingest_batch LIMIT 1", "both stored and parked"),
    ],
)  # fmt: skip
def test_damage_is_found(filled: Run, damage: str, found: str, capsys: pytest.CaptureFixture[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(
            "SELECT r.id, r.chunk_id FROM runs_rollout r JOIN runs_step s ON s.id = r.step_id"
            " WHERE s.split = 'train' AND s.index = 0 AND r.number = 1 ORDER BY r.id LIMIT 1"
        )
        rollout, chunk = cursor.fetchone()
        cursor.execute(damage.format(rollout=rollout, chunk=chunk))
    with pytest.raises(SystemExit) as end:
        call_command("fsck")
    assert end.value.code == 1
    assert found in capsys.readouterr().out
