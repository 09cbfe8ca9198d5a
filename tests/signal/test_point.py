"""What made a point, against the numbers that are stored of the step and its rollouts."""

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.runs.measures import MADE_OF_ROLLOUTS
from rlviewer.runs.models import Rollout, Run, Step
from rlviewer.runs.queries.rollout import packed_rollout
from rlviewer.signal.queries.point import Point, point
from rlviewer.signal.services import compute_pending
from rlviewer.signal.steps import StepRange
from tests.factories import fill_run, make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(project: Project) -> Run:
    run = make_run(project)
    fill_run(run, 3, groups=4, group_size=4)
    compute_pending()
    return run


def made(run: Run, **query: str) -> Point:
    return point(run, StepRange(), query)


def test_the_value_is_the_steps_own(run: Run) -> None:
    step = Step.objects.get(run=run, split="train", index=2)
    assert made(run, metric="reward_mean", step="2", against="").value == pytest.approx(step.reward_mean)
    assert made(run, metric="length_mean", step="2", against="").value == pytest.approx(step.length_mean)
    assert made(run, metric="truncated_share", step="2", against="").value == pytest.approx(step.truncated_share)
    entropy = np.concatenate([packed_rollout(one)[0].columns["entropy"] for one in _rollouts(step)])
    assert made(run, metric="entropy", step="2", against="").value == pytest.approx(entropy.mean(), rel=1e-5)
    flags = np.concatenate([packed_rollout(one)[0].columns["clip_flag"] for one in _rollouts(step)])
    found = made(run, metric="clip_fraction", step="2", against="")
    assert found.value == pytest.approx(np.isin(flags, [1, 2]).mean())


def _rollouts(step: Step) -> list[Rollout]:
    return list(Rollout.objects.filter(group__step=step).order_by("pk"))


@pytest.mark.parametrize("metric", [name for name in MADE_OF_ROLLOUTS if name != "truncated_share"])
def test_keys_and_rollouts_add_up_to_the_change(run: Run, metric: str) -> None:
    found = made(run, metric=metric, step="2", against="0")
    assert found.change is not None
    for keys in found.keys:
        assert keys.mix + keys.within == pytest.approx(found.change, abs=1e-9)
    assert len(found.rows) > 1
    if len(found.rows) < 16:
        assert sum(row.part for row in found.rows) == pytest.approx(found.change, abs=1e-9)
    assert [abs(row.part) for row in found.rows] == sorted((abs(row.part) for row in found.rows), reverse=True)


def test_without_an_earlier_step_the_value_itself_is_split(run: Run) -> None:
    found = made(run, metric="kl_k3", step="1", against="")
    assert found.change is None
    assert sum(row.part for row in found.rows) == pytest.approx(found.value)
    assert found.rows[-1].reached == pytest.approx(1)
    assert made(run, metric="kl_k3", step="1").against == 0  # the step before, when none is named


def test_rows_open_at_the_heaviest_token(run: Run) -> None:
    found = made(run, metric="entropy", step="1", against="")
    top = found.rows[0]
    entropy = packed_rollout(Rollout.objects.get(pk=top.rollout))[0].columns["entropy"]
    assert top.href == f"/rollouts/{top.rollout}/?token={entropy.argmax()}"
    heaviest = found.tokens[0]
    assert heaviest.value == pytest.approx(
        max(packed_rollout(Rollout.objects.get(pk=row.rollout))[0].columns["entropy"].max() for row in found.rows[:5])
    )
    assert [token.value for token in found.tokens] == sorted((token.value for token in found.tokens), reverse=True)


def test_each_kind_of_nothing(run: Run, project: Project) -> None:
    assert made(make_run(project, "empty")).problem == "no step"
    assert made(run, step="77").problem == "no such step"
    assert made(run, step="1", against="99").problem == "no earlier step"
    later = make_run(project, "later")
    fill_run(later, 1)
    assert made(later).problem == "waiting"
    bare = make_run(project, "bare")
    fill_run(bare, 1, groups=2, group_size=2, ref_logprobs=[None] * 4)
    compute_pending()
    assert made(bare, metric="ref_kl_k3").problem == "not recorded"
    assert made(bare, metric="no such metric").metric == "reward_mean"


def test_points_of_the_overviews_curves_lead_here(run: Run, client: Client, alice: User) -> None:
    client.force_login(alice)
    page = client.get(reverse("run-detail", args=[run.pk])).content.decode()
    for metric in ("reward_mean", "kl_k3", "entropy", "grad_norm"):
        assert f"/runs/{run.pk}/signal/point/?metric={metric}\\u0026step={{x}}" in page
    assert "metric=loss" not in page
