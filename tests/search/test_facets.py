"""Facets beside the list: what they count, and the filter that a click on them makes."""

import pytest
from django.db import OperationalError
from django.test import Client

from rlviewer.accounts.models import Project, User
from rlviewer.runs.models import Rollout, Run
from rlviewer.search import browse, facets
from rlviewer.search.browse import Scope, Search
from rlviewer.search.facets import Choice, Histogram
from rlviewer.search.fields import FIELDS
from rlviewer.search.language import parse
from rlviewer.search.rewrite import with_values, without
from rlviewer.search.services import index_pending
from tests.factories import fill_run, make_run


@pytest.fixture
def run(project: Project, alice: User, client: Client) -> Run:
    run = make_run(project)
    fill_run(run, steps=3)  # 3 steps and 2 evaluations of 16 rollouts
    index_pending()
    client.force_login(alice)
    return run


def scope(run: Run) -> Scope:
    return Scope(run.project, run)


def choice(run: Run, text: str, name: str) -> Choice:
    return next(c for c in facets.facets(scope(run), text).choices if c.field.name == name)


def histogram(run: Run, text: str, name: str) -> Histogram:
    return next(h for h in facets.facets(scope(run), text).histograms if h.field.name == name)


def found(run: Run, text: str) -> int:
    return len(Search(scope(run), text).find(browse.Sort.from_text(""), limit=1000, seconds=60).ids)


LABELS = {"ended by itself": 0, "cut": 1, "error": 2, "right": True, "wrong": False, "not judged": None}


@pytest.mark.parametrize(
    "text", ["", "split:train", "stop:length", "carry -stop:length", "'so ='", "correct:yes step:..1"]
)
def test_a_click_finds_as_many_as_the_facet_says(run: Run, text: str) -> None:
    shown = facets.facets(scope(run), text)
    assert shown.of is None and [c.field.name for c in shown.choices] == ["task", "stop", "correct"]
    for part in shown.choices:
        rest = without(text, parse(text), part.field)
        for option in part.options:
            # Alone, without what else of this field is chosen.
            alone = with_values(rest, parse(rest), part.field, [LABELS.get(option.label, option.label)])
            assert found(run, alone) == option.count
        assert sum(o.count for o in part.options) == found(run, rest)
    for part in shown.histograms:
        assert sum(b.count for b in part.bars) + part.missing == found(run, part.rest)


def test_a_facet_leaves_its_own_term_out_and_takes_it_away(run: Run) -> None:
    stop = choice(run, "stop:length correct:no", "stop")
    assert {o.label: (o.is_on, o.filter) for o in stop.options} == {
        "cut": (True, "correct:no"),
        "ended by itself": (False, "correct:no stop:length,stop"),
    }
    # Others count what the whole filter leaves.
    cut_and_wrong = found(run, "stop:length correct:no")
    assert sum(o.count for o in choice(run, "stop:length correct:no", "task").options) == cut_and_wrong > 0


def test_bars_hold_what_their_range_finds(run: Run) -> None:
    Rollout.objects.filter(pk__in=list(Rollout.objects.filter(run_id=run.pk).values_list("pk", flat=True))[:3]).update(
        reward=None
    )
    rewards = histogram(run, "", "reward")
    assert (rewards.low, rewards.high) == (0.0, 1.0) and rewards.missing == found(run, "reward:none,nan")
    assert rewards.bars[0].count == found(run, "reward:0") and rewards.bars[-1].count == found(run, "reward:1")
    lengths = histogram(run, "reward:0..1", "length")
    for bar in lengths.bars[:-1]:
        # A bar holds its lower end.
        assert bar.count == found(run, f"reward:0..1 length>={int(-(-bar.low // 1))} length<{int(-(-bar.high // 1))}")
    chosen = histogram(run, "reward:0.25..1 step:1", "reward")
    assert chosen.rest == "step:1" and chosen.chosen is not None and chosen.chosen.low == 0.25
    assert sum(bar.count for bar in chosen.bars) + chosen.missing == found(run, "step:1")


def test_equal_values_make_one_bar(run: Run) -> None:
    Rollout.objects.filter(run_id=run.pk).update(reward=0.5)
    (bar,) = histogram(run, "", "reward").bars
    assert bar.count == 80 and bar.words == "0.500: 80"


def test_counts_of_too_many_are_of_the_newest(run: Run, monkeypatch) -> None:
    monkeypatch.setattr(facets, "WHOLE", 0)
    monkeypatch.setattr(facets, "NEWEST", 20)
    shown = facets.facets(scope(run), "")
    assert shown.of == 20 and sum(o.count for o in shown.choices[0].options) == 20
    # Steps know themselves how many they hold.
    steps = next(h for h in shown.histograms if h.field.name == "step")
    assert steps.of is None and sum(bar.count for bar in steps.bars) == 80
    # Fewer match than would be drawn: that is all of them.
    assert facets.facets(scope(run), "-stop:stop").of is None


def test_counts_that_take_too_long_are_of_the_newest(run: Run, monkeypatch) -> None:
    monkeypatch.setattr(facets, "NEWEST", 20)
    asked: list[int | None] = []
    count = facets._counted

    def slow_in_whole(rows, of):
        asked.append(of)
        if of is None:
            raise OperationalError("canceling statement due to statement timeout")
        return count(rows, of)

    monkeypatch.setattr(facets, "_counted", slow_in_whole)
    assert facets.facets(scope(run), "").of == 20 and asked == [None, 20]


@pytest.mark.parametrize(
    ("text", "name", "values", "wanted"),
    [
        ("", "task", ["addition"], "task:addition"),
        ('"a  b" task:x  reward>0', "task", ["a b", 'c"d'], '"a  b" reward>0 task:"a b",c"d'),
        ("task:x,y -task:z", "task", [], "-task:z"),
        ("(task:x)", "task", ["none", None], '(task:x) task:"none",none'),
        ("correct:yes or stop:stop", "correct", [False], "correct:yes or stop:stop correct:no"),
        ("reward<1 reward>0 step:1", "stop", [1], "reward<1 reward>0 step:1 stop:length"),
        ("", "task", ["a*"], 'task:"a*"'),
    ],
)
def test_the_rest_of_a_filter_stays_as_it_was_written(text: str, name: str, values: list, wanted: str) -> None:
    written = with_values(text, parse(text), FIELDS[name], values)
    assert written == wanted
    if values:
        assert parse(written).parts[-1].values == tuple(values)


def test_the_fragment(run: Run, client: Client, charlie: User) -> None:
    address = f"/runs/{run.pk}/rollouts/?part=facets&filter=correct:no"
    answer = client.get(address, HTTP_HX_REQUEST="true")
    assert answer.status_code == 200 and b'data-field="reward"' in answer.content
    assert b'data-facet="correct:no stop:length"' in answer.content
    assert b"Nothing to count" in client.get(address.replace("correct:no", "id<0"), HTTP_HX_REQUEST="true").content
    wrong = client.get(address.replace("correct:no", "correct:maybe"), HTTP_HX_REQUEST="true")
    assert wrong.status_code == 422
    client.force_login(charlie)
    assert client.get(address, HTTP_HX_REQUEST="true").status_code == 404


def test_one_statement_counts_all(run: Run, django_assert_max_num_queries) -> None:
    with django_assert_max_num_queries(14):
        facets.facets(scope(run), "reward>=0")
