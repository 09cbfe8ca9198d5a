"""The family of algorithms and the matrix of its runs."""

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.compare.queries.ladder import changes, ladder
from rlviewer.compare.queries.matrix import Curves, at, cell, evaluated, matrix
from rlviewer.ingest.services import store_batch
from rlviewer.runs.queries.series import Points
from tests.factories import make_batch, make_run
from training.hooks import HOOKS
from training.recipes import RECIPES

pytestmark = pytest.mark.django_db


def test_every_recipe_stands_once_and_below_its_parent(project: Project) -> None:
    nodes = ladder(project)
    names = [node.recipe.name for node in nodes]
    assert sorted(names) == sorted(RECIPES)
    assert (names[0], nodes[0].depth) == ("vpg", 0)
    depth = {node.recipe.name: node.depth for node in nodes}
    for node in nodes:
        parent = node.recipe.parent
        assert node.depth == (depth[parent] + 1 if parent else 0)
        assert not parent or names.index(parent) < names.index(node.recipe.name)


def test_what_dapo_changes_from_grpo() -> None:
    found = {change.what: (change.before, change.after) for change in changes(RECIPES["dapo"])}
    assert found["clip_high"] == ("0.2", "0.28")
    assert found["aggregation"] == ("rollout_mean", "token_mean")
    assert found[HOOKS["H9"].title][1] == "mixed_only"


def test_presets_count_among_the_runs_of_their_recipe(project: Project) -> None:
    make_run(project, "one", algorithm="grpo")
    make_run(project, "two", algorithm="grpo@trl")
    counts = {node.recipe.name: node.runs for node in ladder(project)}
    assert counts["grpo"] == 2
    assert counts["rloo"] == 0


def curves(reward: list[float], tokens: int = 10) -> Curves:
    n = len(reward)
    sums = np.cumsum(np.full(n, float(tokens)))
    flat = np.zeros(n)
    return Curves(
        1, "grpo", np.arange(n, dtype=float), np.array(reward), flat, flat, sums, sums, sums, Points(), Points()
    )


def test_a_value_is_the_mean_of_the_last_steps_up_to_the_point() -> None:
    run = curves([0.0] * 5 + [1.0] * 10 + [9.0])
    assert at(run, "step", 14, run.reward) == 1.0
    assert at(run, "step", 9, run.reward) == 0.5
    assert at(run, "tokens", 150.0, run.reward) == 1.0
    assert at(run, "step", 16, run.reward) is None


def test_an_evaluation_after_more_steps_than_others_took_does_not_count() -> None:
    run, points = curves([0.0] * 100), Points([0, 50, 100], [0.2, 0.5, 0.9])
    assert evaluated(run, 49, points) == 0.5  # step 49 is the fiftieth
    assert evaluated(run, 48, points) == 0.2 and evaluated(run, 99, points) == 0.9
    assert evaluated(run, 100, points) is None and evaluated(run, 49, Points()) is None


def test_the_interval_of_three_runs() -> None:
    # Mean 2, deviation 1, t(0.975, 2) = 4.302653: half-width 4.302653 / sqrt(3).
    found = cell([1.0, 2.0, 3.0, None])
    assert (found.mean, found.runs) == (2.0, 3)
    assert found.high == pytest.approx(2 + 2.484138, abs=1e-5)
    assert found.low == pytest.approx(2 - 2.484138, abs=1e-5)
    share = cell([0.4, 0.8], is_share=True)
    assert (share.low, share.high) == (0.0, 1.0)
    assert cell([4.0]).low is None
    assert cell([None]).mean is None


def test_the_matrix_compares_at_what_every_algorithm_reached(project: Project) -> None:
    for algorithm, steps in (("grpo", 3), ("rloo", 2)):
        run = make_run(project, algorithm, algorithm=algorithm)
        for step in range(steps):
            reward = [float(step)] * 4
            store_batch(make_batch(run, step=step, groups=2, group_size=2, tokens=8, reward=reward), source="test")
    make_run(project, "another task", task="sorting")
    found = matrix(project, "no such task")
    assert (found.task, found.step) == ("addition", 1)
    assert {row.algorithm: row.cells["steps"].mean for row in found.rows} == {"grpo": 0.5, "rloo": 0.5}
    assert found.rows[0].cells["steps"].runs == 1


def test_pages(client: Client, alice: User, charlie: User, project: Project) -> None:
    client.force_login(alice)
    page = client.get(reverse("algorithms", args=[project.pk]))
    assert "No run to compare yet" in page.content.decode()
    make_run(project, "a run <b>", algorithm="dapo")
    for name in RECIPES:
        detail = client.get(reverse("algorithm-detail", args=[project.pk, name]))
        assert detail.status_code == 200 and RECIPES[name].title in detail.content.decode().replace("&#x27;", "'")
    text = client.get(reverse("algorithm-detail", args=[project.pk, "dapo"])).content.decode()
    assert "a run &lt;b&gt;" in text and "What changes from" in text
    assert client.get(reverse("algorithm-detail", args=[project.pk, "nope"])).status_code == 404
    client.force_login(charlie)
    assert client.get(reverse("algorithms", args=[project.pk])).status_code == 404
