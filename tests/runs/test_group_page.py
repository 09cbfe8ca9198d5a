import re
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
from rlviewer.runs.models import Attempt, Group, Rollout
from rlviewer.runs.queries import group as group_queries
from rlviewer.runs.queries.group import GroupFilters, GroupPage, group_page
from tests.factories import fill_run, make_batch, make_run

FOUR: dict[str, list[Any]] = {
    "completion": [b"we add, so = 12", b"we add, so = 13", b"we add, so = 12!", b"no idea"],
    "parsed_answer": [b"12", b"13", b"12", None],
    "reward": [1.0, 0.0, 1.0, 0.0],
    "correct": [True, False, True, False],
    "advantage": [0.5, -0.5, 0.5, -0.5],
    "stop_reason": ["stop", "stop", "stop", "length"],
    "token_ids": [[5, 6, 7, 12], [5, 6, 7, 13], [5, 6, 7, 12, 1], [9, 8]],
}


def stored(project: Project, overrides: dict[str, list[Any]], *, size: int = 4) -> Group:
    """One group of `size`; `overrides` are columns of its rollouts. Of the per-token columns only the ids are there."""
    run = make_run(project)
    tokens = ("sampler_logprobs", "policy_logprobs", "ref_logprobs", "entropy", "token_advantages", "token_weights",
              "loss_mask", "clip_flag", "origin", "token_policy_version", "step_boundaries")  # fmt: skip
    values: dict[str, Any] = {name: [None] * size for name in tokens} | {
        "stop_reason": ["stop"] * size,
        "kept": [True] * size,
    }
    values |= overrides
    batch = make_batch(run, groups=1, group_size=size, **values)
    # Parts of the reward lie at the first token, which every completion has; the group entered the update.
    spans, groups = batch.reward_spans, batch.groups
    for name, place in (("token_start", 0), ("token_end", 1)):
        spans = spans.set_column(
            spans.column_names.index(name), spans.field(name), pa.array([place] * len(spans), pa.int32())
        )
    groups = groups.set_column(groups.column_names.index("kept"), groups.field("kept"), pa.array([True]))
    if values.get("token_ids", [1])[0] is None:
        spans = spans.slice(0, 0)
    outcome = store_batch(replace(batch, reward_spans=spans, groups=groups), source="test")
    assert outcome.refused == 0
    return Group.objects.get(run=run)


def shown(group: Group, **filters: Any) -> GroupPage:
    return group_page(group, GroupFilters(**filters))


@pytest.fixture
def client(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


def page(client: Client, group: Group, query: str = "") -> str:
    answer = client.get(reverse("group-detail", args=[group.pk]) + query)
    assert answer.status_code == 200
    return answer.content.decode()


def test_a_mixed_group_says_that_it_taught_and_by_what(client: Client, project: Project) -> None:
    text = page(client, stored(project, FOUR))
    assert "Teaches: 2 right of 4, advantages +0.50 / −0.50" in text
    # Equal answers under one heading, right ones first, those without an answer last.
    assert re.findall(r'class="(?:mono truncate answer)">(\d+)</bdi>.*?× (\d)', text) == [("12", "2"), ("13", "1")]
    assert text.index("Answer <bdi") < text.index("No answer read")
    assert "exact answer" in text and "has an equals sign" in text


def test_words_that_differ_from_the_reference_are_marked(client: Client, project: Project) -> None:
    group = stored(project, FOUR)
    text = page(client, group)
    # Rollout 0 is the first of the highest reward.
    assert '<span class="same">we add, so = </span><mark data-first-difference tabindex=-1>13</mark>' in text
    assert '<span class="same">we add, so = 12</span><mark data-first-difference tabindex=-1>!</mark>' in text
    other = page(client, group, "?ref=1")
    assert "<mark data-first-difference tabindex=-1>12</mark>" in other and ">13</mark>" not in other


def test_the_first_differing_token_is_exact_and_its_link_leads_there(client: Client, project: Project) -> None:
    group = stored(project, FOUR)
    second = Rollout.objects.get(group=group, number=1)
    assert f'href="/rollouts/{second.pk}/?token=3"' in page(client, group)
    columns = {one.rollout.number: one.differs_at for own in shown(group).answers for one in own.columns}
    # Rollout 2 goes on where the reference ends.
    assert columns == {1: 3, 2: 4, 3: 0}


def test_without_token_ids_characters_are_counted_and_no_token_is_named(client: Client, project: Project) -> None:
    group = stored(project, FOUR | {"token_ids": [None] * 4})
    text = page(client, group)
    assert "parts from rollout 0 at character" in text and "?token=" not in text
    found = shown(group, shows_all=True)
    columns = {one.rollout.number: one.differs_at for own in found.answers for one in own.columns}
    assert columns == {1: 14, 2: 15, 3: 0}


def test_near_duplicates_fold_but_never_over_a_different_answer(client: Client, project: Project) -> None:
    # Thirty tokens of which one at the end differs: 27 of 29 grams are shared, 0.93.
    ids = [[*range(29), last] for last in (100, 100, 101, 102)]
    group = stored(project, FOUR | {"token_ids": ids, "parsed_answer": [b"12", b"13", b"12", b"12"]})
    found = shown(group)
    assert found.likeness.repeats == [[0, 1, 2, 3]]
    assert found.reference is not None and [one.number for one in found.reference.alike] == [2, 3]
    assert [one.rollout.number for own in found.answers for one in own.columns] == [1]
    assert "4 rollouts in 1 cluster" in page(client, group) and "2 near-duplicates with this answer" in page(
        client, group
    )
    assert len([one for own in shown(group, shows_all=True).answers for one in own.columns]) == 3


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"correct": [True] * 4, "reward": [1.0] * 4}, "All right: nothing left to learn here"),
        ({"parsed_answer": [b"7"] * 4}, "All wrong: one wrong answer 4 times"),
        ({"parsed_answer": [b"7", b"8", b"9", None]}, "All wrong: 3 different answers"),
        ({"parsed_answer": [None] * 4}, "All wrong: no answer could be read"),
        ({"completion": [b"x"] * 4}, "No signal: the same completion 4 times"),
        ({"stop_reason": ["length"] * 4}, "No signal: every rollout was cut at the token limit"),
        ({"reward": [0.3] * 4, "correct": [None] * 4}, "No signal: every rollout got the same partial reward"),
        (
            {"reward": [0.3, 0.1, 0.3, 0.9], "correct": [None] * 4, "advantage": [None] * 4},
            "Teaches: rewards 0.100 to 0.900",
        ),
        ({"reward": [None] * 4}, "No signal: no rollout was scored, or every one ended in an error"),
    ],
)
def test_the_headline_names_the_cause(client: Client, project: Project, overrides: dict[str, Any], words: str) -> None:
    values: dict[str, list[Any]] = {
        "completion": [b"a", b"b", b"c", b"d"],
        "reward": [0.0] * 4,
        "correct": [False] * 4,
        "advantage": [0.0] * 4,
    }
    group = stored(project, values | overrides)
    assert f">{words}</p>" in page(client, group)


def test_a_group_of_one_says_the_rule(client: Client, project: Project) -> None:
    group = stored(project, {"reward": [0.0], "correct": [False]}, size=1)
    text = page(client, group)
    assert "One rollout, so no baseline inside the group: advantage 0 by rule." in text
    assert "First difference" not in text


def test_an_evaluation_only_says_what_came_out(client: Client, project: Project) -> None:
    run = make_run(project)
    store_batch(make_batch(run, split="heldout", groups=1), source="test")
    text = page(client, Group.objects.get(run=run))
    assert "4 of 4 correct" in text and "Teaches" not in text and "held-out evaluation" in text


def test_dropped_and_replaced_groups_say_so(client: Client, project: Project) -> None:
    group = stored(project, FOUR)
    assert "dropped" not in page(client, group)
    Group.objects.filter(pk=group.pk).update(kept=False, drop_reason="not_mixed")
    assert "left out of the update; another prompt was sampled in its place" in page(client, group)
    Group.objects.filter(pk=group.pk).update(drop_reason="<i>stale</i>")
    assert "left out of the update: &lt;i&gt;stale" in page(client, group)
    Attempt.objects.create(run=group.run, number=2)
    store_batch(make_batch(group.run, attempt=2, groups=1, seed=3), source="test")
    text = page(client, group)
    assert "attempt 1, superseded" in text and "Attempt 2 stored this step again" in text


def test_neighbours_follow_the_order_of_steps(project: Project) -> None:
    run = make_run(project)
    for step in range(2):
        store_batch(make_batch(run, step=step, groups=2, group_size=1), source="test")
    order = list(Group.objects.filter(run=run).order_by("step__index", "index"))
    walked = [order[0]]
    while (following := shown(walked[-1]).next) is not None:
        walked.append(following)
    assert walked == order
    assert [shown(group).previous for group in order] == [None, *order[:-1]]


def test_hostile_text_is_text(client: Client, project: Project) -> None:
    group = stored(
        project,
        {
            **FOUR,
            "completion": [b"<script>x</script>", b"\x00\xff", "\u202eabc".encode(), b"\n\nb"],
            "parsed_answer": [b"<b>1</b>", b"\x00", b"", None],
            "drop_reason": ["<i>why</i>"] * 4,
        },
    )
    text = page(client, group)
    assert "&lt;script&gt;" in text and "<script>x" not in text and "<b>1" not in text and "<i>why" not in text
    assert "⟨00⟩⟨FF⟩" in text and "⟨U+202E⟩abc" in text
    assert "\x00" not in text and "\u202e" not in text


def test_a_large_group_and_long_texts_are_shown_in_part(client: Client, project: Project, monkeypatch: Any) -> None:
    long = b"word " * 200_000
    group = stored(project, FOUR | {"completion": [long + b"12", long + b"13", b"12", b""]})
    text = page(client, group)
    # The place where they part is shown, not the megabyte before it.
    assert len(text) < 60_000 and ">13</mark>" in text and "characters before, the same in both" in text
    assert text.count("Show all of it") == 2
    whole = client.get(
        reverse("group-detail", args=[group.pk]), {"whole": "1"}, headers={"HX-Request": "true"}
    ).content.decode()
    assert whole.count("word ") == 200_000 and ">13</mark>" in whole and "<html" not in whole
    monkeypatch.setattr(group_queries, "COLUMNS", 2)
    first, second = page(client, group), page(client, group, "?after=2")
    assert first.count('class="beside-one"') == 3 and "after=2" in first
    assert second.count('class="beside-one"') == 2 and "Next rollouts" not in second


def test_queries_do_not_grow_with_the_group(client: Client, project: Project, django_assert_num_queries: Any) -> None:
    small = stored(project, FOUR)
    large = stored(project, {}, size=150)
    with CaptureQueriesContext(
        connection,
    ) as few:
        page(client, small)
    # Session, person, role; group, rollouts, chunks three times, reward parts, two neighbours in two steps.
    assert len(few) <= 13
    with django_assert_num_queries(len(few)):
        page(client, large)


def test_strangers_and_what_is_not_there_get_404(client: Client, project: Project, charlie: User) -> None:
    group = stored(project, FOUR)
    address = reverse("group-detail", args=[group.pk])
    assert client.get(address, {"whole": "77"}, headers={"HX-Request": "true"}).status_code == 404
    assert client.get(reverse("group-detail", args=[group.pk + 1])).status_code == 404
    assert client.get(address, {"ref": "99", "after": "x", "near": "?"}).status_code == 200
    client.force_login(charlie)
    assert client.get(address).status_code == 404


def test_steps_and_rollouts_lead_to_the_group(client: Client, project: Project) -> None:
    run = make_run(project)
    fill_run(run, steps=1, groups=2)
    group = Group.objects.get(run=run, step__split="train", index=0)
    address = reverse("group-detail", args=[group.pk])
    assert f'href="{address}"' in client.get(reverse("step-detail", args=[run.pk, "train", 0])).content.decode()
    one = Rollout.objects.filter(group=group, number=1).get()
    assert f'href="{address}?ref=1"' in client.get(reverse("rollout-detail", args=[one.pk])).content.decode()


def test_a_group_without_stored_rollouts_says_so(client: Client, project: Project) -> None:
    group = stored(project, FOUR)
    Rollout.objects.filter(group=group).delete()
    assert "No rollout of this group is stored" in page(client, group)
