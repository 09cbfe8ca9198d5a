"""The page that compares sets of runs: who is in a set, what is equal, and the verdict."""

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse
from scipy import stats

from rlviewer.accounts.models import Project, User
from rlviewer.compare.queries.arms import choice_of
from rlviewer.compare.queries.evidence import evidence
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Rollout, Run
from tests.factories import make_batch, make_run, make_user

pytestmark = pytest.mark.django_db


def trained(
    project: Project, name: str, seed: int, right: float, *, group: str = "", prompts: int = 12, **extra: object
) -> Run:
    """A run with two training steps and an evaluation after the second, of which the share `right` is correct."""
    run = make_run(project, name, seed=seed, repeat_group=group or name, **extra)
    for step in range(2):
        store_batch(make_batch(run, step=step, groups=2), source="test")
    rng = np.random.default_rng([seed, int(1000 * right)])
    correct = (rng.random(4 * prompts) < right).tolist()
    batch = make_batch(
        run, split="heldout", step=2, groups=prompts, correct=correct, reward=[float(c) for c in correct]
    )
    store_batch(batch, source="test")
    return run


@pytest.fixture
def two_sets(project: Project) -> list[Run]:
    low = [
        trained(
            project, f"low {seed}", seed, 0.2, group="low", algorithm="rloo", config={"algorithm": "rloo", "lr": 1e-4}
        )
        for seed in range(3)
    ]
    high = [
        trained(project, f"high {seed}", seed, 0.8, group="high", config={"algorithm": "grpo", "lr": 1e-3})
        for seed in range(3)
    ]
    return [*low, *high]  # fmt: skip


def ids(runs: list[Run]) -> dict[str, str]:
    return {"runs": ",".join(str(run.pk) for run in runs)}


def test_seeds_form_sets_and_what_differs_names_them(project: Project, alice: User, two_sets: list[Run]) -> None:
    choice = choice_of(alice, project.pk, ids(two_sets))
    assert [(arm.title, len(arm.runs)) for arm in choice.arms] == [("rloo, lr 0.0001", 3), ("grpo, lr 0.001", 3)]
    assert choice.baseline is choice.arms[0]
    assert {setting.key for setting in choice.settings} == {"algorithm", "lr"}
    by_run = choice_of(alice, project.pk, ids(two_sets) | {"by": "run", "baseline": str(two_sets[4].pk)})
    assert len(by_run.arms) == 6
    assert by_run.baseline is by_run.arms[4]


def test_the_same_seed_twice_is_no_second_repeat(project: Project, alice: User) -> None:
    runs = [trained(project, "again", 0, 0.5, group="one") for _ in range(2)]
    (arm,) = choice_of(alice, project.pk, ids(runs)).arms
    assert (list(arm.runs), list(arm.repeats)) == ([runs[1]], [runs[0]])


def test_the_verdict_is_what_scipy_makes_of_the_stored_rollouts(
    project: Project, alice: User, two_sets: list[Run]
) -> None:
    (pair,) = evidence(choice_of(alice, project.pk, ids(two_sets)), {}).pairs
    means = [
        np.mean(Rollout.objects.filter(run_id=run.pk, group__step__split="heldout").values_list("correct", flat=True))
        for run in two_sets
    ]
    assert pair.difference is not None
    assert pair.difference.gain == pytest.approx(np.mean(means[3:]) - np.mean(means[:3]))
    assert pair.improvement == stats.mannwhitneyu(means[3:], means[:3]).statistic / 9
    # The prompts' part makes it more careful than a test of the seeds' means alone.
    assert pair.difference.spread.runs_a == pytest.approx(np.var(means[:3], ddof=1) / 3)
    assert pair.verdict == "difference"
    assert pair.sentence.startswith("grpo, lr 0.001 over rloo, lr 0.0001: +0.")
    assert "over 3 seeds and 12 prompts" in pair.sentence


def test_one_repeat_is_too_little_data_however_large_the_gain(
    project: Project, alice: User, two_sets: list[Run]
) -> None:
    (pair,) = evidence(choice_of(alice, project.pk, ids([two_sets[0], two_sets[3]])), {}).pairs
    assert pair.verdict == "too little data"
    assert pair.reasons[0].startswith("Variation between repeats is unknown")
    assert pair.planned == []


def test_evaluations_are_taken_where_all_runs_came(project: Project, alice: User) -> None:
    short, long = trained(project, "short", 0, 0.5), trained(project, "long", 1, 0.5)
    store_batch(make_batch(long, step=2, groups=2), source="test")
    store_batch(make_batch(long, split="heldout", step=3, groups=12), source="test")
    found = evidence(choice_of(alice, project.pk, ids([short, long])), {})
    assert found.steps == {short.pk: 2, long.pk: 2}
    assert found.end == 2
    tokens = evidence(choice_of(alice, project.pk, ids([short, long])), {"axis": "tokens"})
    assert tokens.end is not None
    assert tokens.end > 2
    # Of the run that sampled more tokens by then no evaluation lies below: it is named, not guessed.
    assert len(tokens.steps) + len(tokens.missing) == 2


def test_pages(client: Client, project: Project, alice: User, charlie: User, two_sets: list[Run]) -> None:
    address = reverse("runs-compared", args=[project.pk])
    client.force_login(alice)
    assert "No runs chosen" in client.get(address).content.decode()
    page = client.get(address, ids(two_sets)).content.decode()
    for words in ("rloo, lr 0.0001", "What differs", "chart-reward", "baseline", "95 % over 3 seeds"):
        assert words in page, words
    for extra in (
        {},
        {"by": "run"},
        {"measure": "pass_at_k"},
        {"measure": "reward", "axis": "seconds"},
        {"axis": "rollouts"},
    ):
        part = client.get(address, ids(two_sets) | {"part": "evidence"} | extra)
        assert part.status_code == 200
        assert "over 3 seeds" in part.content.decode() or "by" in extra
    assert client.get(address, ids(two_sets) | {"baseline": "x", "by": "nobody", "axis": "\0"}).status_code == 200
    client.force_login(charlie)
    assert client.get(address, ids(two_sets)).status_code == 404


def test_runs_of_other_projects_are_not_here(client: Client, project: Project, alice: User) -> None:
    from tests.factories import make_project

    hidden = make_run(make_project("elsewhere", admin=make_user("dora")), "secret")
    client.force_login(alice)
    page = client.get(reverse("runs-compared", args=[project.pk]), {"runs": f"{hidden.pk},x,9999999999999999999999"})
    assert "secret" not in page.content.decode()
