"""Parts of the reward as fields of the filter and as columns of the list, and the columns that are read with the texts."""

import json

import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import RewardPart, Rollout, Run
from rlviewer.search.browse import Scope, Search, Sort
from rlviewer.search.columns import chosen_columns, offered_columns, part_names, save_columns
from rlviewer.search.lines import transform_name
from tests.factories import make_batch, make_run


@pytest.fixture
def run(project: Project, alice: User, client: Client) -> Run:
    run = make_run(project)
    transforms = [json.dumps({"name": "failure_prefix", "parameters": {}})] * 4 + [None] * 12
    store_batch(make_batch(run, transform=transforms), source="test")
    client.force_login(alice)
    return run


def scope(run: Run) -> Scope:
    return Scope(run.project, run)


def ids(run: Run, text: str) -> set[int]:
    return set(Search(scope(run), text).find(Sort.from_text(""), limit=1000).ids)


def test_a_part_is_the_sum_of_its_spans(run: Run) -> None:
    rollouts = list(Rollout.objects.filter(run_id=run.pk).order_by("pk"))
    for number, (rollout, value) in enumerate(zip(rollouts, (0.25, -1.0, float("nan"), 2.0), strict=False)):
        RewardPart.objects.create(
            rollout=rollout, part=7, token_start=0, token_end=1, value=value, kind="process", name="style"
        )
        if number == 0:
            RewardPart.objects.create(
                rollout=rollout, part=8, token_start=1, token_end=2, value=0.5, kind="process", name="style"
            )
    first, second, third, fourth = (rollout.pk for rollout in rollouts[:4])
    everything = {rollout.pk for rollout in rollouts}
    assert ids(run, "part.style>0.5") == {first, fourth} and ids(run, "part.style:0.7..0.8") == {first}
    assert ids(run, "part.style<0") == {second} and ids(run, "part.style:nan") == {third}
    assert ids(run, "part.style:none") == everything - {first, second, third, fourth}
    assert (
        ids(run, "-part.style>0.5")
        == everything - {first, fourth}
        == ids(run, "part.style<=0.5 or part.style:none,nan")
    )
    assert ids(run, 'part."exact answer":1') == {r.pk for r in rollouts if r.reward == 1}
    assert ids(run, "part.'has an equals sign'>0.05") == everything
    assert ids(run, "part.unheard>0") == set() and ids(run, "part.unheard:none") == everything


def test_parts_that_occur_are_offered_and_kept(run: Run, alice: User, client: Client) -> None:
    assert part_names(scope(run)) == ["exact answer", "has an equals sign"]
    offered = [field.name for field in offered_columns(scope(run))]
    assert offered[offered.index("reward") + 1 :][:2] == ['part."exact answer"', 'part."has an equals sign"']
    address = reverse("rollout-list", args=[run.pk])
    assert b'part.\\"exact answer\\"' in client.get(address).content  # the completion knows them
    client.post(reverse("rollout-columns"), {"columns": ["step", 'part."exact answer"', "transform"], "next": address})
    page = client.get(address).content.decode()
    assert page.count('data-label="exact answer"') == 16 == page.count('data-label="transform"')
    assert page.count(">failure_prefix</span>") == 4 and "the prompt was asked as it is" in page
    # A run without such a part does not show an empty column for it.
    other = make_run(run.project, "other")
    assert [field.name for field in chosen_columns(alice, scope(other))] == ["step", "transform"]
    save_columns(alice, ["part." + "x" * 100, "unheard"])
    assert "reward" in [field.name for field in chosen_columns(alice, scope(run))]


@pytest.mark.parametrize(
    ("stored", "name"),
    [(None, None), ("", None), ('{"name": "hint", "parameters": {}}', "hint"), ("hint", "hint"), ("[1]", "[1]")],
)
def test_a_transform_is_named(stored: str | None, name: str | None) -> None:
    assert transform_name(stored) == name
