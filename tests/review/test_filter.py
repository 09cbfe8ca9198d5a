"""Labels as words of the filter, in lists and in exports."""

import json

import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.review.models import Thumb
from rlviewer.review.services import Said, add_label
from rlviewer.runs.models import Rollout, Run
from rlviewer.search.browse import Scope, Search, Sort
from rlviewer.search.language import FilterError, parse
from rlviewer.search.totals import Counted, count, known_values
from rlviewer.search.words import meaning
from tests.factories import make_batch, make_project, make_run

OLDEST = Sort.from_text("id")


@pytest.fixture
def run(project: Project, alice: User, bob: User) -> Run:
    """Sixteen rollouts: 0 is a hack to both people, 1 good by its tokens 0 to 2, 2 has a thumb down, 3 only a note."""
    run = make_run(project)
    store_batch(make_batch(run), source="test")
    rows = Rollout.objects.select_related("step__run__project").order_by("pk")
    for user, number, said in (
        (alice, 0, Said(name="hack")),
        (bob, 0, Said(name="hack", note="sure")),
        (bob, 0, Said(Thumb.UP)),
        (bob, 1, Said(name="good", tokens=(0, 3))),
        (alice, 2, Said(Thumb.DOWN)),
        (alice, 3, Said(note="odd")),
    ):
        add_label(user, rows[number], said)
    return run


def found(run: Run, text: str) -> list[int]:
    """Places of the rollouts in the run."""
    first = Rollout.objects.filter(run_id=run.pk).order_by("pk")[0].pk
    search = Search(Scope(run.project, run), text)
    ids = search.find(OLDEST, limit=100).ids
    assert count(search, Counted()).total == len(ids)
    return [pk - first for pk in ids]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("label:hack", [0]),
        ("label:hack,good", [0, 1]),
        ("label:ha*", [0]),
        ("label:'checker bug'", []),
        ("thumb:up", [0]),
        ("thumb:up,down", [0, 2]),
        ("labelled:yes", [0, 1, 2]),
        ("labelled:yes -label:hack", [1, 2]),
        ("label:hack or thumb:down", [0, 2]),
        ("label:none", [*range(2, 16)]),
        ("thumb:none", [1, *range(3, 16)]),
        ("labelled:no", [*range(3, 16)]),
        ("label!=hack", [*range(1, 16)]),
        ("label:hack number:1", []),
    ],
)
def test_filters_find_labels(run: Run, text: str, places: list[int]) -> None:
    assert found(run, text) == places


def test_what_the_filter_means(run: Run) -> None:
    said = meaning(parse("label:hack thumb:up labelled:yes"), OLDEST)
    assert said == "Rollouts with label hack and with thumb up and that were labelled, oldest first"
    with pytest.raises(FilterError, match="Expected up or down"):
        parse("thumb:maybe")
    assert known_values(Scope(run.project, run))["label"] == ["good", "hack", "'checker bug'"]


def test_labels_of_one_project_say_nothing_in_another(run: Run, alice: User) -> None:
    other = make_run(make_project("other", admin=alice))
    store_batch(make_batch(other), source="test")
    assert found(other, "labelled:yes") == []


def test_the_labelled_set_is_exported(client: Client, bob: User, run: Run) -> None:
    client.force_login(bob)
    address = reverse("run-rollouts-export", args=[run.pk, "jsonl"])
    answer = client.get(address, {"filter": "label:hack,good", "sort": "id"})
    lines = [json.loads(line) for line in b"".join(answer).splitlines()]
    assert [line["number"] for line in lines] == [0, 1]
    assert [(label["said"], label["note"], label["by"]) for label in lines[0]["labels"]] == [
        ("hack", "", "alice"),
        ("hack", "sure", "bob"),
        ("thumb up", "", "bob"),
    ]
    assert (lines[1]["labels"][0]["token_start"], lines[1]["labels"][0]["token_end"]) == (0, 3)
