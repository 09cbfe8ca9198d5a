"""store_batch: what is stored is what was written."""

import pytest

from rlviewer.accounts.models import Project
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Rollout, Run
from tests.factories import fill_run, make_batch, make_run


@pytest.fixture
def run(project: Project) -> Run:
    return make_run(project)


def test_store(run: Run) -> None:
    batch = make_batch(run)
    outcome = store_batch(batch, source="test")
    assert (outcome.received, outcome.stored, outcome.refused, outcome.was_known) == (16, 16, 0, False)
    assert store_batch(batch, source="test").was_known
    assert Rollout.objects.filter(run_id=run.pk).count() == 16
    fill_run(make_run(run.project, "b"))
