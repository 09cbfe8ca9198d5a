"""What a source records: counts, examples, the badge and other sources of the project."""

import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Rollout, Run
from rlviewer.signal.measures.coverage import RECORDED
from rlviewer.signal.queries.coverage import Coverage, FieldRow, badge, coverage_page
from rlviewer.signal.services import compute_pending
from rlviewer.signal.steps import StepRange
from tests.factories import make_batch, make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(project: Project) -> Run:
    """Two steps of four rollouts: no reference, and the entropy of one rollout of step 1 is missing."""
    run = make_run(project)
    store_batch(make_batch(run, step=0, groups=2, group_size=2, ref_logprobs=[None] * 4), source="test")
    batch = make_batch(run, step=1, groups=2, group_size=2, ref_logprobs=[None] * 4)
    entropy = batch.rollouts.column("entropy").to_pylist()
    entropy[2] = None
    holed = make_batch(run, step=1, groups=2, group_size=2, ref_logprobs=[None] * 4, entropy=entropy)
    store_batch(holed, source="test")
    compute_pending()
    return run


def row(page: Coverage, key: str) -> FieldRow:
    return next(row for row in page.rows if row.field.key == key)


def test_full_part_and_none(run: Run) -> None:
    page = coverage_page(run, StepRange(), {})
    assert row(page, "token_ids").own.state == "full"
    assert row(page, "entropy").own.state == "part"
    assert row(page, "entropy").own.share == pytest.approx(7 / 8)
    assert row(page, "ref_logprobs").own.state == "none"
    assert row(page, "ref_logprobs").how.startswith("Set algorithm_params.kl_coefficient")
    assert row(page, "reward_spans").own.state == "full"
    assert (page.timed.held, page.has_vocabulary) == (2, False)


def test_an_example_with_and_without(run: Run) -> None:
    example = coverage_page(run, StepRange(), {"field": "entropy"}).example
    assert example is not None
    ids = list(
        Rollout.objects.filter(group__step__run=run, group__step__index=1).order_by("pk").values_list("pk", flat=True)
    )
    assert (example.step, example.having, example.lacking) == (1, ids[0], ids[2])
    nobody = coverage_page(run, StepRange(), {"field": "ref_logprobs"}).example
    assert nobody is not None and nobody.having is None
    assert coverage_page(run, StepRange(), {"field": "no"}).example is None


def test_other_sources_of_the_project_stand_beside(run: Run, project: Project) -> None:
    other = make_run(project, "other", source="trl")
    store_batch(make_batch(other, groups=2, group_size=2, entropy=[None] * 4), source="test")
    compute_pending()
    page = coverage_page(run, StepRange(), {})
    assert list(page.sources) == ["trl"]
    assert [cell.state for cell in row(page, "entropy").others] == ["none"]
    assert [cell.state for cell in row(page, "token_ids").others] == ["full"]
    assert row(coverage_page(other, StepRange(), {}), "entropy").how == "Write “entropy” with every rollout."


def test_the_badge_counts_the_newest_step(run: Run, client: Client, alice: User, charlie: User) -> None:
    found = badge(run, StepRange(), {})
    assert found is not None
    # No reference, no recomputed log-probabilities; entropy only in part; this run's prompts have what the factory gives.
    assert (found.part, found.missing, found.count) == (1, 2, len(RECORDED))
    address = reverse("signal-page", args=[run.pk, "coverage"])
    client.force_login(alice)
    assert f"{found.full} of {found.count} fields" in client.get(address, {"part": "badge"}).content.decode()
    assert f"{address}?part=badge" in client.get(reverse("run-detail", args=[run.pk])).content.decode()
    client.force_login(charlie)
    assert client.get(address, {"part": "badge"}).status_code == 404
