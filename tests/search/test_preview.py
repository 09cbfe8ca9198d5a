"""The preview beside the list, and what is looked for in prompts."""

import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Prompt, Rollout, Run
from rlviewer.search.browse import Scope, Search, Sort
from rlviewer.search.models import PromptText
from rlviewer.search.preview import excerpt
from rlviewer.search.services import index_pending
from tests.factories import fill_run, make_batch, make_run


@pytest.fixture
def run(project: Project, alice: User, client: Client) -> Run:
    run = make_run(project)
    fill_run(run, steps=2)
    index_pending()
    client.force_login(alice)
    return run


def ids(run: Run, text: str) -> set[int]:
    return set(Search(Scope(run.project, run), text).find(Sort.from_text(""), limit=1000).ids)


def test_the_preview_marks_what_the_filter_looks_for(run: Run, client: Client, charlie: User) -> None:
    rollout = Rollout.objects.filter(run_id=run.pk, step__split="train").select_related("group__prompt")[0]
    address = reverse("rollout-preview", args=[rollout.pk])
    first = bytes(rollout.group.prompt.text).decode().split("+")[0]
    page = client.get(address, {"filter": f"carry prompt:'{first}+'"}).content.decode()
    assert "<mark>carry</mark>" in page and f"<mark>{first}+</mark>" in page
    assert "exact answer" in page and "has an equals sign" in page  # the parts of its reward
    assert "<mark>" not in client.get(address, {"filter": "-carry"}).content.decode()
    # A filter that cannot be read is the list's to tell.
    assert client.get(address, {"filter": "reward<"}).status_code == 200
    expression = client.get(address, {"filter": r"/so = \d/"}).content.decode()
    assert "<mark>so = " in expression
    client.force_login(charlie)
    assert client.get(address).status_code == 404


def test_an_excerpt_holds_the_first_match_or_the_end() -> None:
    data = b"a" * 1000 + b"needle" + b"b" * 3000
    end = excerpt(data, [], 100)
    assert (end.before, end.after, end.pieces[0].text) == (3906, 0, "b" * 100)
    around = excerpt(data, ["needle"], 1000)
    assert (around.before, [p.text for p in around.pieces if p.is_match]) == (500, ["needle"])
    assert around.before + sum(len(p.text) for p in around.pieces) + around.after == len(data)
    start = excerpt(data, [], 100, from_start=True)
    assert (start.before, start.after) == (0, 3906)
    # What would hide or reorder text is named; a byte that is no UTF-8 too.
    (piece,) = excerpt("a\u202eb\n".encode() + b"\xff", [], 100).pieces
    assert piece.text == "a⟨U+202E⟩b\n⟨FF⟩"


def test_words_characters_and_expressions_are_found_in_prompts(run: Run) -> None:
    other = make_run(run.project, "texts")
    batch = make_batch(other, groups=2, group_size=2)
    texts = [b"How many Apples are left?", b"Pears - how many?\xff"]
    groups = batch.groups.set_column(1, "prompt", [texts])
    store_batch(type(batch)(batch.header, batch.rollouts, groups, batch.metrics, batch.reward_spans), source="test")
    index_pending()
    everything = ids(other, "")
    by_group = {n: ids(other, f"group:{n}") for n in (0, 1)}
    assert ids(other, 'prompt:"apples"') == by_group[0] == ids(other, "prompt:'Apples'")
    assert ids(other, 'prompt:"how many"') == everything
    assert ids(other, "prompt:'apples'") == set() and ids(other, "prompt:'apples'i") == by_group[0]
    assert ids(other, "prompt:/^Pears/") == by_group[1] == ids(other, 'prompt!="apples"')
    assert ids(other, 'prompt:"apples" or group:1') == everything == ids(other, 'prompt:"apples" or prompt:/Pears/')
    prompt = Prompt.objects.get(text=texts[0])
    assert ids(other, f"prompt:{prompt.pk}") == by_group[0]
    # Completions are not asked, and every prompt is there once.
    assert ids(other, 'prompt:"carry"') == set() and ids(other, "apples") == set()
    assert PromptText.objects.count() == Prompt.objects.count()
    assert PromptText.objects.get(prompt__text=texts[1]).text.startswith("Pears")


def test_a_list_shows_where_the_prompt_matches(run: Run, client: Client) -> None:
    text = bytes(Prompt.objects.filter(group__run=run)[0].text).decode().rstrip("=")
    page = client.get(reverse("rollout-list", args=[run.pk]), {"filter": f"prompt:'{text}'"}).content.decode()
    assert f"<mark>{text}</mark>" in page and f"with the characters “{text}” in the prompt" in page
