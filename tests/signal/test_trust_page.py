"""The page of the trust region, on steps whose ratios are known."""

import numpy as np
import pytest
from pytest_django.fixtures import DjangoAssertNumQueries

from rlviewer.accounts.models import Project
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Run
from rlviewer.signal.queries.trust_region import TrustRegion, trust_region
from rlviewer.signal.services import compute_pending
from rlviewer.signal.steps import StepRange
from tests.factories import make_batch, make_run

pytestmark = pytest.mark.django_db


def stored(project: Project, steps: int = 2, **columns: list[object]) -> Run:
    """Steps of one group of two rollouts of two tokens each."""
    run = make_run(project)
    two = {
        "token_ids": [[1, 2]] * 2,
        "sampler_logprobs": [[-1.0, -1.0]] * 2,
        "policy_logprobs": [[-1.0, -1.0]] * 2,
        "recomputed_logprobs": [None] * 2,
        "ref_logprobs": [None] * 2,
        "entropy": [None] * 2,
        "token_advantages": [[1.0, 1.0], [-1.0, -1.0]],
        "token_weights": [None] * 2,
        "loss_mask": [[1, 1]] * 2,
        "clip_flag": [[0, 0]] * 2,
        "origin": [None] * 2,
        "token_policy_version": [None] * 2,
        "step_boundaries": [None] * 2,
        **columns,
    }
    for step in range(steps):
        store_batch(make_batch(run, step=step, groups=1, group_size=2, tokens=2, **two), source="test")
    compute_pending()
    return run


def page(run: Run, **query: str) -> TrustRegion:
    return trust_region(run, StepRange(), query)


def test_one_update_of_fresh_rollouts_is_a_finding(project: Project) -> None:
    found = page(stored(project))
    assert found.is_on_policy
    assert found.largest_distance == 0
    assert not page(stored(project, policy_logprobs=[[-1.0, -0.9]] * 2)).is_on_policy


def test_ledger_by_age_and_version(project: Project) -> None:
    run = stored(
        project, steps=3, token_policy_version=[[0, 0], [0, 1]], clip_flag=[[1, 0], [3, 0]], loss_mask=[[1, 1], [0, 1]]
    )
    found = page(run)
    # Versions 0 and 1, sampled for steps 0, 1 and 2: ages -1, 0, 1 and 2.
    assert [(row.value, row.tokens) for row in found.ages] == [(-1, 1), (0, 4), (1, 4), (2, 3)]
    new, old = found.versions
    assert (new.value, new.rollouts, new.mixing, new.tokens, new.kept) == (1, 3, 3, 3, 3)
    assert (old.tokens, old.kept, old.clipped, old.dropped) == (9, 3, 3, 3)
    assert found.older is None


def test_versions_are_paged(project: Project) -> None:
    found = page(stored(project, steps=25))
    assert (len(found.versions), found.older) == (20, 5)
    rest = page(Run.objects.get(), below=str(found.older))
    assert [row.value for row in rest.versions] == [4, 3, 2, 1, 0]


def test_rollouts_that_never_counted_are_told_with_their_reason(project: Project) -> None:
    run = stored(project, steps=2, loss_mask=[[0, 0], [1, 1]], kept=[False, True], drop_reason=["not_mixed", None])
    assert [(row.reason, row.rollouts) for row in page(run).uncounted] == [("not_mixed", 2)]


def test_what_the_source_lacks_is_said_and_not_drawn(project: Project) -> None:
    charts = {chart.key: chart for chart in page(stored(project, policy_logprobs=[None] * 2)).charts}
    assert charts["ratio"].figure is None and "Not recorded" in charts["ratio"].nothing
    assert charts["reference"].figure is None
    assert charts["clip"].figure is not None


def test_the_clip_is_told_by_the_sign_of_the_advantage(project: Project) -> None:
    run = stored(project, clip_flag=[[1, 0], [0, 0]], token_ids=np.array([[1, 2]] * 2).tolist())
    (clip,) = [chart for chart in page(run).charts if chart.key == "clip"]
    assert clip.figure is not None
    assert {line["name"]: line["y"] for line in clip.figure["data"]} == {
        "positive advantage": [0.5, 0.5],
        "negative advantage": [0.0, 0.0],
    }


def test_number_of_queries(project: Project, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    run = stored(project, steps=4)
    with django_assert_num_queries(5):
        page(run)
