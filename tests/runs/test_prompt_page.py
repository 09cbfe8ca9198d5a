from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Attempt, Group, Prompt, Rollout, Run, Step
from rlviewer.runs.queries import prompt as prompt_queries
from rlviewer.runs.queries import prompt_list as list_queries
from rlviewer.runs.queries.prompt import PromptFilters, PromptPage, prompt_page
from rlviewer.runs.queries.prompt_list import PromptList, PromptListFilters, prompt_list
from rlviewer.runs.queries.visits import Visit, milestones
from tests.factories import make_batch, make_project, make_run


@pytest.fixture
def client(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


def visit(run: Run, step: int, right: dict[str, list[bool | None]], *, split: str = "train", attempt: int = 1) -> None:
    """Store a step: of each prompt a group of two rollouts, right or not."""
    flat = [one for own in right.values() for one in own]
    batch = make_batch(
        run,
        step=step,
        split=split,
        attempt=attempt,
        groups=len(right),
        group_size=2,
        correct=flat,
        reward=[None if one is None else float(one) for one in flat],
        advantage=[None if one is None else one - 0.5 for one in flat],
        completion=[f"step {step}: {'yes' if one else 'no'}".encode() for one in flat],
        stop_reason=["stop"] * len(flat),
    )
    rows = batch.groups.to_pylist()
    for row, text in zip(rows, right, strict=True):
        row |= {
            "prompt": text.encode(),
            "answer": b"yes",
            "base_pass_rate": 0.25,
            "base_samples": 4,
            "tracker_value": 0.4,
        }
    store_batch(replace(batch, groups=pa.Table.from_pylist(rows, batch.groups.schema)), source="test")


def course(run: Run, shares: dict[str, str]) -> None:
    """A step for each sign: 2 both right, 1 one right, 0 none, ? not judged, a space for no visit."""
    results: dict[str, list[bool | None]] = {"2": [True] * 2, "1": [True, False], "0": [False] * 2, "?": [None] * 2}
    for step in range(max(map(len, shares.values()))):
        met = {text: results[signs[step]] for text, signs in shares.items() if signs[step : step + 1].strip()}
        if met:
            visit(run, step, met)


def shown(text: str, **filters: Any) -> PromptPage:
    return prompt_page(Prompt.objects.get(text=text.encode()), PromptFilters(**filters))


@pytest.mark.parametrize(
    ("signs", "solved", "stable", "forgotten"),
    [
        ("000", None, None, None),
        ("0010", 2, None, 3),
        # Three in a row of which at least half are right.
        ("01212", 1, 1, None),
        ("0112", 1, 1, None),
        ("01102222", 1, 4, 3),
        # What was not judged does not count, neither for nor against.
        ("01?12?0", 1, 1, 6),
        ("2", 0, None, None),
        ("22", 0, None, None),
        ("???", None, None, None),
    ],
)
def test_solved_stable_and_forgotten(signs: str, solved: int | None, stable: int | None, forgotten: int | None) -> None:
    share = {"0": 0.0, "1": 0.5, "2": 1.0, "?": None}
    found = milestones([Visit(1, "train", step, [], share[sign]) for step, sign in enumerate(signs)])
    assert [one and one.step for one in (found.solved, found.stable, found.forgotten)] == [solved, stable, forgotten]


def test_a_prompt_is_followed_through_steps_and_runs(client: Client, project: Project) -> None:
    first, second = make_run(project, "first"), make_run(project, "<i>second</i>")
    course(first, {"a": "0012220", "b": "2222222"})
    course(second, {"a": "000"})
    page = shown("a")
    assert [(lane.name, len(lane.visits)) for lane in page.lanes] == [("<i>second</i>", 3), ("first", 7)]
    assert page.visit_count == 10 and page.drawn == page.rollout_count == 20
    assert page.strip is not None and page.strip.figure is not None
    assert page.strip.figure["data"][0]["z"] == [[0, 0, 0, None, None, None, None], [0, 0, 0.5, 1, 1, 1, 0]]
    text = client.get(reverse("prompt-detail", args=[page.prompt.pk])).content.decode()
    assert "first solved at" in text and "stable from" in text and "forgotten at" in text and "never solved" in text
    assert "estimate, n = 4" in text and "tracker" in text
    assert "&lt;i&gt;second" in text and "<i>second" not in text
    # Every dot leads to its rollout.
    lane = page.lanes[1]
    assert lane.chart is not None and lane.chart.figure is not None
    links = {href for trace in lane.chart.figure["data"] for href in trace["customdata"]}
    assert links == {
        f"/rollouts/{pk}/"
        for pk in Rollout.objects.filter(run_id=first.pk, group__prompt=page.prompt).values_list("pk", flat=True)
    }


def test_the_pair_that_tells_is_from_before_and_after_it_was_solved(client: Client, project: Project) -> None:
    run = make_run(project)
    course(run, {"a": "0012"})
    page = shown("a")
    assert page.pair is not None and not page.pair.is_chosen
    assert (page.pair.a.rollout.step.index, page.pair.a.rollout.correct) == (1, False)
    assert (page.pair.b.rollout.step.index, page.pair.b.rollout.correct) == (2, True)
    text = client.get(reverse("prompt-detail", args=[page.prompt.pk])).content.decode()
    assert "<mark data-first-difference tabindex=-1>2</mark>: " in text and "data-next-difference" in text


def test_two_pins_in_the_address_choose_the_pair(client: Client, project: Project) -> None:
    run = make_run(project)
    course(run, {"a": "0012", "b": "2222"})
    page = shown("a")
    own = list(Rollout.objects.filter(group__prompt=page.prompt).order_by("pk"))
    other = Rollout.objects.exclude(group__prompt=page.prompt)[0]
    chosen = shown("a", a=own[-1].pk, b=own[0].pk).pair
    assert chosen is not None and chosen.is_chosen
    assert (chosen.a.rollout, chosen.b.rollout) == (own[-1], own[0])
    # A rollout of another prompt cannot be pinned here.
    assert shown("a", a=own[0].pk, b=other.pk).pair.b.rollout != other  # type: ignore[union-attr]
    # While one is being chosen, a dot leads back to this page with it.
    lane = shown("a", pick="b", a=own[1].pk).lanes[0]
    assert lane.chart is not None and lane.chart.figure is not None
    assert f"?a={own[1].pk}&b={own[0].pk}#pair" in {h for t in lane.chart.figure["data"] for h in t["customdata"]}
    same = client.get(reverse("prompt-detail", args=[page.prompt.pk]), {"a": own[0].pk, "b": own[0].pk})
    assert "The same, token by token." in same.content.decode()


def test_once_seen_says_so_and_nothing_judged_is_no_failure(client: Client, project: Project) -> None:
    run = make_run(project)
    course(run, {"a": "1", "b": "??"})
    once = client.get(reverse("prompt-detail", args=[shown("a").prompt.pk])).content.decode()
    assert "Seen once so far; the timeline starts with its second visit." in once and 'id="chart-strip"' not in once
    unjudged = shown("b")
    assert unjudged.strip is None and unjudged.lanes[0].milestones.solved is None
    text = client.get(reverse("prompt-detail", args=[unjudged.prompt.pk])).content.decode()
    assert "No rollout of this prompt was judged" in text


def test_visits_of_a_replaced_attempt_do_not_count_and_evaluations_have_a_lane(project: Project) -> None:
    run = make_run(project)
    course(run, {"a": "000"})
    Attempt.objects.create(run=run, number=2)
    visit(run, 2, {"a": [True, True]}, attempt=2)
    visit(run, 3, {"a": [True, False]}, split="heldout")
    train, heldout = shown("a").lanes
    assert [one.success for one in train.visits] == [0, 0, 1]
    assert heldout.name == "run, held-out" and [one.success for one in heldout.visits] == [0.5]


def test_only_so_much_is_drawn_and_it_says_so(client: Client, project: Project, monkeypatch: Any) -> None:
    run = make_run(project)
    course(run, {"a": "01210"})
    monkeypatch.setattr(prompt_queries, "MOST_DOTS", 4)
    page = shown("a")
    assert page.drawn == 4 and page.rollout_count == 10 and len(page.lanes[0].visits) == 5
    assert (
        "Drawn: 4 newest of 10 rollouts" in client.get(reverse("prompt-detail", args=[page.prompt.pk])).content.decode()
    )
    monkeypatch.setattr(prompt_queries, "MOST_GROUPS", 3)
    assert not shown("a").is_all and shown("a").visit_count == 3


def test_queries_do_not_grow_with_visits(client: Client, project: Project, django_assert_num_queries: Any) -> None:
    run = make_run(project)
    course(run, {"a": "01", "b": "0121012101"})
    small, address = (reverse("prompt-detail", args=[shown(text).prompt.pk]) for text in "ab")
    with CaptureQueriesContext(connection) as few:
        client.get(small)
    with django_assert_num_queries(len(few)):
        client.get(address)
    # Session, person, role, prompt; groups, runs, rollouts, trackers; the pair's rollouts, theirs again, their chunks.
    assert len(few) <= 12
    fragment = client.get(address, headers={"HX-Request": "true"}).content.decode()
    assert fragment.lstrip().startswith('<div id="prompt"')


def test_a_stranger_and_a_bad_address_find_nothing(client: Client, project: Project, charlie: User) -> None:
    theirs = make_run(make_project("secret", admin=charlie))
    course(theirs, {"a": "01"})
    assert client.get(reverse("prompt-detail", args=[shown("a").prompt.pk])).status_code == 404
    run = make_run(project)
    course(run, {"c": "01"})
    address = reverse("prompt-detail", args=[shown("c").prompt.pk])
    assert client.get(address, {"a": "9" * 18, "b": "x", "y": "?", "pick": "c", "run": "0"}).status_code == 200


# ---- the list of a run's prompts


def listed(run: Run, **filters: Any) -> PromptList:
    return prompt_list(run, PromptListFilters(**filters))


def names(found: PromptList) -> list[str]:
    return [line.text for line in found.lines]


@pytest.fixture
def run(project: Project) -> Run:
    run = make_run(project)
    # Swings: swung 1, half 0.5, steady 0, never 0, once and unjudged unknown.
    course(run, {"never": "000", "steady": "222", "swung": "020", "half": "01 ", "once": "1", "unjudged": "??"})
    return run


def test_prompts_are_ranked_by_swing(run: Run) -> None:
    found = listed(run)
    assert names(found)[:2] == ["swung", "half"] and set(names(found)[2:4]) == {"never", "steady"}
    assert {line.text: line.swing for line in found.lines} == {
        "swung": 1, "half": 0.5, "never": 0, "steady": 0, "once": None, "unjudged": None,
    }  # fmt: skip
    first = found.lines[0]
    assert (first.visits, first.worst, first.best, first.first_solved, first.last_seen) == (3, 0, 1, 1, 2)
    assert list(first.course) == [0, 1, 0] and first.base_pass_rate == 0.25
    assert found.seen_once == 1


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"kind": "forgotten"}, {"swung"}),
        ({"kind": "never"}, {"never"}),
        ({"kind": "swinging"}, {"swung", "half"}),
        ({"kind": "solved"}, {"swung", "half", "steady", "once"}),
        ({"kind": "solved", "first": 1}, {"swung", "half"}),
        ({"kind": "solved", "last": 0}, {"steady", "once"}),
        ({"kind": "solved", "first": 2, "last": 9}, set()),
    ],
)
def test_filters_of_the_list(run: Run, filters: dict[str, Any], expected: set[str]) -> None:
    found = listed(run, **filters)
    assert set(names(found)) == expected
    assert found.counts == {"all": 6, "swinging": 2, "forgotten": 1, "never": 1, "solved": 4}


@pytest.mark.parametrize("sort", list(list_queries.SORTS))
@pytest.mark.parametrize("is_down", [True, False])
def test_pages_of_every_order_hold_each_prompt_once(run: Run, monkeypatch: Any, sort: str, is_down: bool) -> None:
    whole = names(listed(run, sort=sort, is_down=is_down))
    monkeypatch.setattr(list_queries, "PER_PAGE", 2)
    walked: list[str] = []
    query: dict[str, str] = {"sort": f"{'-' if is_down else ''}{sort}"}
    while True:
        found = prompt_list(run, PromptListFilters.from_query(query))
        walked += names(found)
        if not found.next_after:
            break
        query["after"] = found.next_after
    assert walked == whole and len(whole) == 6


def test_a_replaced_attempt_and_evaluations_are_left_out(run: Run) -> None:
    visit(run, 5, {"swung": [True, True]}, split="heldout")
    Step.objects.filter(run=run, index=1).update(is_current=False)
    swung = next(line for line in listed(run).lines if line.text == "swung")
    assert (swung.visits, swung.swing, swung.first_solved) == (2, 0, None)


def test_the_page_of_prompts(client: Client, run: Run, django_assert_num_queries: Any, charlie: User) -> None:
    address = reverse("run-prompts", args=[run.pk])
    # Session, person; run; the ranking, texts, trackers, courses; role.
    with django_assert_num_queries(8):
        text = client.get(address).content.decode()
    assert "swung" in text and ">forgotten<" in text and ">never solved<" in text and "1 of 6 were seen once" in text
    assert (
        f'href="{reverse("prompt-detail", args=[Group.objects.filter(prompt__text=b"swung")[0].prompt_id])}?run={run.pk}"'
        in text
    )
    assert "No prompt was forgotten" in client.get(address, {"kind": "forgotten", "from": "8"}).content.decode()
    for odd in ({"after": "x_1", "sort": "--", "kind": "?"}, {"after": "nan_1"}, {"after": "none_3", "from": "-1"}):
        assert client.get(address, odd).status_code == 200
    assert "Prompts" in client.get(reverse("run-detail", args=[run.pk])).content.decode()
    client.force_login(charlie)
    assert client.get(address).status_code == 404


def test_a_run_without_steps_says_so(client: Client, project: Project) -> None:
    text = client.get(reverse("run-prompts", args=[make_run(project).pk])).content.decode()
    assert "Prompts appear here with the first step of training." in text


def test_hostile_prompts_are_text(client: Client, project: Project) -> None:
    run = make_run(project)
    course(run, {"<script>x</script>\u202e": "01"})
    for address in (reverse("run-prompts", args=[run.pk]), reverse("prompt-detail", args=[Prompt.objects.get().pk])):
        text = client.get(address).content.decode()
        assert "&lt;script&gt;" in text and "<script>x" not in text and "⟨U+202E⟩" in text and "\u202e" not in text
