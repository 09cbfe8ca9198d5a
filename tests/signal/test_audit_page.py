"""The page of the data audit: verdicts, steps, and the rollouts that fail, at their token."""

import pytest

from rlviewer.accounts.models import Project
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Rollout, Run
from rlviewer.signal.queries.data_audit import CheckRow, DataAudit, data_audit
from rlviewer.signal.services import compute_pending
from rlviewer.signal.steps import StepRange
from tests.factories import make_batch, make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(project: Project) -> Run:
    """Three steps of two rollouts of three tokens; in steps 1 and 2 the second one's end token is masked."""
    run = make_run(project)
    columns: dict[str, list[object]] = {
        "token_ids": [[1, 2, 9], [3, 4, 9]],
        "stop_reason": ["stop", "stop"],
        "reward": [1.0, 0.0],
        "kept": [True, True],
        "drop_reason": [None, None],
        "step_boundaries": [None, None],
        "origin": [[2] * 3] * 2,
    }
    for name in ("sampler_logprobs", "policy_logprobs", "entropy", "token_advantages", "token_weights"):
        columns[name] = [[-0.5] * 3] * 2
    for name in ("ref_logprobs", "clip_flag", "token_policy_version"):
        columns[name] = [None, None]
    for step in range(3):
        mask = [[1, 1, 1], [1, 1, int(step == 0)]]
        batch = make_batch(run, step=step, groups=1, group_size=2, tokens=3, loss_mask=mask, **columns)
        store_batch(batch, source="test")
    compute_pending()
    return run


def row(page: DataAudit, key: str) -> CheckRow:
    return next(row for row in page.rows if row.check.key == key)


def test_a_failing_check_names_its_rate_and_steps(run: Run) -> None:
    page = data_audit(run, StepRange(), {})
    end = row(page, "end")
    assert (end.state, end.failed, end.checked, end.first_step, end.last_step) == ("failed", 2, 6, 1, 2)
    assert end.rate == pytest.approx(1 / 3)
    assert page.rows[0] is end
    (chart,) = page.charts
    assert chart.figure is not None
    assert chart.figure["data"][0]["y"] == [0.0, 0.5, 0.5]
    assert (page.rollouts, page.all_pass, page.failing) == (6, False, None)


def test_checks_that_lack_a_column_did_not_run(run: Run) -> None:
    page = data_audit(run, StepRange(), {})
    assert {one.check.key for one in page.rows if one.state == "not run"} == {"boundary", "stale", "text"}
    assert row(page, "dead").state == "not applicable"
    assert row(page, "environment").state == "passed"


def test_failing_rollouts_open_at_the_token_with_its_neighbours(run: Run) -> None:
    failing = data_audit(run, StepRange(), {"check": "end", "step": "1"}).failing
    assert failing is not None
    assert (failing.step, failing.count, failing.earlier, failing.later) == (1, 1, None, 2)
    (one,) = failing.rollouts
    rollout = Rollout.objects.get(group__step__run=run, group__step__index=1, number=1)
    assert one.href == f"/rollouts/{rollout.pk}/?token=2"
    assert [(token.text, token.counts, token.at_fault) for token in one.neighbours] == [
        ("id 3", True, False),
        ("id 4", True, False),
        ("id 9", False, True),
    ]


def test_without_a_step_the_newest_that_fails_is_shown(run: Run) -> None:
    newest = data_audit(run, StepRange(), {"check": "end"}).failing
    assert newest is not None and newest.step == 2
    assert data_audit(run, StepRange(), {"check": "end", "step": "0"}).failing == newest
    assert data_audit(run, StepRange(), {"check": "prompt"}).failing is None
    assert data_audit(run, StepRange(0, 0), {}).all_pass
