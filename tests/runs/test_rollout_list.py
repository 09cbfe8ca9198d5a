import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Attempt, Rollout, Run
from rlviewer.runs.queries import rollouts as queries
from rlviewer.runs.queries.rollouts import RolloutFilters, rollout_page
from rlviewer.search.models import IndexedStep, RolloutText
from tests.factories import fill_run, make_batch, make_run


@pytest.fixture
def run(project: Project, alice: User, client: Client) -> Run:
    run = make_run(project)
    fill_run(run, steps=3)  # 3 steps and 2 evaluations of 16 rollouts
    client.force_login(alice)
    return run


def find(run: Run, **query: str):
    return rollout_page(run, RolloutFilters.from_query(query))


def test_newest_first_with_the_exact_total(run: Run) -> None:
    page = find(run)
    ids = [line.rollout.pk for line in page.lines]
    assert page.total == len(ids) == 80 and ids == sorted(ids, reverse=True)
    assert list(page.splits) == ["heldout", "train"] and page.next_before is None


@pytest.mark.parametrize(
    ("query", "total"),
    [
        ({"split": "train"}, 48),
        ({"split": "heldout"}, 32),
        ({"split": "train", "from": "1"}, 32),
        ({"split": "train", "from": "1", "to": "1"}, 16),
        ({"to": "0"}, 32),
        ({"stop": "length"}, 5),
        ({"stop": "length", "split": "train"}, 3),
        ({"stop": "nonsense", "correct": "nonsense", "from": "x", "to": "9" * 30, "before": "-1"}, 80),
        ({"split": "no such\x00split"}, 0),
    ],
)
def test_filters_narrow_and_count(run: Run, query: dict[str, str], total: int) -> None:
    page = find(run, **query)
    assert page.total == len(page.lines) == total


def test_right_and_wrong_add_up(run: Run) -> None:
    right, wrong = find(run, correct="yes"), find(run, correct="no")
    assert all(line.rollout.correct for line in right.lines) and not any(line.rollout.correct for line in wrong.lines)
    assert (
        right.total + wrong.total == 80 and right.total == Rollout.objects.filter(run_id=run.pk, correct=True).count()
    )


def test_pages_continue_by_key_without_gap_or_repeat(run: Run, monkeypatch) -> None:
    monkeypatch.setattr(queries, "PER_PAGE", 30)
    seen: list[int] = []
    before = ""
    for _ in range(3):
        page = find(run, before=before)
        assert page.total == 80
        seen += [line.rollout.pk for line in page.lines]
        before = str(page.next_before)
    assert page.next_before is None and len(seen) == len(set(seen)) == 80


def test_superseded_rollouts_are_counted_apart(run: Run) -> None:
    Attempt.objects.create(run=run, number=2)
    store_batch(make_batch(run, step=1, attempt=2, seed=3, groups=2), source="test")
    run.refresh_from_db()
    page = find(run)
    assert page.total == 80 - 16 + 8 and page.superseded == 16


def test_words_are_found_through_the_index_and_its_lag_is_told(run: Run) -> None:
    step = run.steps.get(split="train", index=1)
    texts = [
        RolloutText(rollout=rollout, completion=f"carry {n} zebra{n}") for n, rollout in enumerate(step.rollouts.all())
    ]
    RolloutText.objects.bulk_create(texts)
    IndexedStep.objects.create(step=step, rollout_count=step.rollout_count)
    page = find(run, words="zebra3")
    assert page.total == 1 and page.unindexed == 64
    assert find(run, words="carry zebra3").total == 1 and find(run, words="zebra3 absent").total == 0
    assert find(run, words="carry", split="train", correct="yes").total == step.rollouts.filter(correct=True).count()
    assert find(run, words="it's \" & | ! ( : <->").total == 0


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({}, "Rollouts, newest first"),
        ({"correct": "no", "split": "train", "from": "3"}, "Wrong rollouts of training from step 3 on, newest first"),
        ({"split": "x", "from": "1", "to": "2"}, "Rollouts of the x evaluation from step 1 to 2, newest first"),
        ({"to": "2", "stop": "length"}, "Rollouts up to step 2 cut at the token limit, newest first"),
        ({"words": "so what"}, "Rollouts with the words “so what”, newest first"),
    ],
)
def test_the_filter_in_plain_words(query: dict[str, str], words: str) -> None:
    assert RolloutFilters.from_query(query).meaning == words


def test_page_and_fragment(client: Client, run: Run, django_assert_num_queries) -> None:
    address = reverse("rollout-list", args=[run.pk])
    # Session, person; run, total, rollouts, chunks, splits; role.
    with django_assert_num_queries(9):
        page = client.get(address)
    assert page.content.decode().count("<tr data-row>") == 80
    fragment = client.get(address + "?correct=yes", headers={"HX-Request": "true"}).content.decode()
    assert fragment.lstrip().startswith('<div id="rollouts"') and "<html" not in fragment
    nothing = client.get(address + "?from=99").content.decode()
    assert "No rollout matches" in nothing and "Show all rollouts" in nothing


def test_a_run_without_rollouts_says_that_they_will_come(client: Client, alice: User, project: Project) -> None:
    client.force_login(alice)
    page = client.get(reverse("rollout-list", args=[make_run(project).pk])).content.decode()
    assert "No rollouts yet" in page and "No rollout matches" not in page
