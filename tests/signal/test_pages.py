"""The Signal tab: who may see it, what it says of nothing, and numbers worked out by hand."""

import csv
import io
import re

import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Run
from rlviewer.signal.pages import PAGES
from rlviewer.signal.queries.dead_groups import dead_details, dead_groups
from rlviewer.signal.queries.gains import gains
from rlviewer.signal.queries.passes import passes
from rlviewer.signal.services import compute_pending
from rlviewer.signal.steps import StepRange
from tests.factories import fill_run, make_batch, make_project, make_run

pytestmark = pytest.mark.django_db
ALL = StepRange()


@pytest.fixture
def run(project: Project) -> Run:
    """Two steps of the same three prompts: the first group right, the second wrong, the third mixed."""
    run = make_run(project)
    for step in range(2):
        batch = make_batch(run, step=step, groups=3, group_size=2, tokens=8, reward=[1.0, 1.0, 0.0, 0.0, 1.0, 0.0],
                           correct=[True, True, False, False, True, False], stop_reason=["stop"] * 6,
                           completion=[b"a 1", b"a 2", b"b 1", b"b 2", b"c 1", b"c 2"],
                           parsed_answer=[b"1", b"1", b"2", b"3", b"4", b"5"])  # fmt: skip
        prompts = batch.groups.set_column(1, "prompt", [[b"p0", b"p1", b"p2"]]).cast(batch.groups.schema)
        answers = prompts.set_column(
            prompts.column_names.index("answer"), "answer", [[b"10", b"11", b"12"]]
        ).cast(batch.groups.schema)  # fmt: skip
        store_batch(
            type(batch)(batch.header, batch.rollouts, answers, batch.metrics, batch.reward_spans), source="test"
        )
    compute_pending()
    return run


def test_counts_tokens_and_seconds_of_each_cause(run: Run) -> None:
    page = dead_groups(run, ALL, {})
    assert (page.step_count, page.groups, page.dead) == (2, 6, 4)
    by_key = {row.cause.key: row for row in page.causes}
    assert set(by_key) == {"solved", "all_different"}
    solved = by_key["solved"]
    assert (solved.groups, solved.first_step, solved.last_step) == (2, 0, 1)
    assert page.wasted == sum(row.tokens for row in page.causes)
    # Each step took 0.47 s; its share is that of its tokens.
    assert solved.seconds is not None and 0 < solved.seconds < 2 * 0.47
    assert sum(row.seconds or 0 for row in page.causes) == pytest.approx(0.47 * _shares(run))


def _shares(run: Run) -> float:
    rows = run.steps.order_by("index").values_list("tokens_sampled", "stepsignal__cause_tokens")
    return sum(sum(tokens) / sampled for sampled, tokens in rows)


def test_prompts_dead_at_every_visit_come_first(run: Run) -> None:
    details = dead_details(run, ALL, {})
    assert sorted((row.text, row.visits, row.streak, row.first_dead) for row in details.prompts) == [
        ("p0", 2, 2, 0),
        ("p1", 2, 2, 0),
    ]
    (family,) = details.families
    assert (family.name, family.groups, family.dead, family.right, family.wrong) == ("addition", 6, 4, 2, 2)


def test_a_range_narrows_everything(run: Run) -> None:
    page = dead_groups(run, StepRange(1, 1), {})
    assert (page.step_count, page.groups) == (1, 3)
    assert "step%3A1..1" in page.causes[0].href
    assert dead_details(run, StepRange(1, 1), {}).prompts == []


def test_prompts_to_drop_and_to_keep_part_all(client: Client, alice: User, run: Run) -> None:
    client.force_login(alice)
    lists = {}
    for which in ("drop", "keep"):
        answer = client.get(reverse("signal-prompts", args=[run.pk, which]))
        lists[which] = [row["text"] for row in csv.DictReader(io.StringIO(answer.content.decode()))]
        lists[which].sort()
    assert lists == {"drop": ["p0", "p1"], "keep": ["p2"]}


def test_a_remedy_opens_the_form_with_the_runs_own_settings(client: Client, alice: User, run: Run) -> None:
    client.force_login(alice)
    run.config = {"algorithm": "grpo", "task": {"name": "addition"}, "sampling": {"group_size": 4, "temperature": 1.0}}
    run.save()
    text = client.get(reverse("signal", args=[run.pk])).content.decode()
    assert "sampling.group_size=8" in text and "name=run%2C+group_size+8" in text
    (dapo,) = set(re.findall(r'href="([^"]+algorithm=dapo[^"]*)"', text))
    form = client.get(dapo.replace("&amp;", "&"))
    assert form.status_code == 200 and '<option value="dapo" selected' in form.content.decode()


@pytest.mark.parametrize("name", PAGES)
def test_every_page_with_and_without_steps(
    client: Client, alice: User, charlie: User, project: Project, name: str
) -> None:
    empty, full = make_run(project, "empty"), make_run(project, "full")
    fill_run(full, 2, groups=2, group_size=2, tokens=8)
    client.force_login(alice)
    before = client.get(reverse("signal-page", args=[full.pk, name])).content.decode()
    assert "still being worked out" in before
    compute_pending()
    for run in (empty, full):
        page = client.get(reverse("signal-page", args=[run.pk, name]))
        assert page.status_code == 200
        assert PAGES[name].question in page.content.decode()
        for part in PAGES[name].parts:
            assert client.get(page.request["PATH_INFO"], {"part": part}).status_code == 200
    fragment = client.get(page.request["PATH_INFO"], headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in fragment and "still being worked out" not in fragment
    assert client.get(page.request["PATH_INFO"], {"part": "no"}).status_code == 404
    client.force_login(charlie)
    assert client.get(page.request["PATH_INFO"]).status_code == 404


def test_an_unknown_page_is_not_there(client: Client, alice: User, run: Run) -> None:
    client.force_login(alice)
    assert client.get(reverse("signal-page", args=[run.pk, "no-such"])).status_code == 404


def test_pass_at_k_against_the_base_counts_both_ways(project: Project) -> None:
    run = make_run(project)
    outcomes = {0: [True, False, False, False], 3: [False, False, True, True]}
    for step, correct in outcomes.items():
        batch = make_batch(run, split="heldout", step=step, groups=2, group_size=2, correct=correct)
        same = batch.groups.set_column(1, "prompt", [[b"p0", b"p1"]])
        same = same.set_column(same.column_names.index("answer"), "answer", [[b"1", b"2"]]).cast(batch.groups.schema)
        store_batch(type(batch)(batch.header, batch.rollouts, same, batch.metrics, batch.reward_spans), source="test")
    page = passes(run, ALL, {})
    assert [(line.k, line.base, line.now) for line in page.lines] == [(1, 0.25, 0.5), (2, 0.5, 0.5)]
    assert page.crossing is None
    assert [(row.text, row.base, row.now) for row in page.gained] == [("p1", 0.0, 1.0)]
    assert [(row.text, row.base, row.now) for row in page.lost] == [("p0", 0.5, 0.0)]
    # Even samples choose the bin, odd ones measure: p0 was right in its even one.
    found = gains(run, ALL, {})
    assert found.is_split and (found.never_solved, found.solved_now, found.losing) == (1, 1, 0)
    assert [(one.name, one.prompts, one.base, one.now) for one in found.bins] == [
        ("0 of 1", 1, 0.0, 1.0),
        ("1 of 1", 1, 0.0, 0.0),
    ]


def test_other_runs_are_laid_over_the_curves_by_step(client: Client, alice: User, project: Project, run: Run) -> None:
    other = make_run(project, "the other")
    fill_run(other, 3, groups=2, group_size=2, tokens=8)
    secret = make_run(make_project("secret"), "nobody sees me")
    compute_pending()
    client.force_login(alice)
    address = reverse("signal-page", args=[run.pk, "costs"])
    page = client.get(address, {"with": f"{other.pk},{secret.pk}"})
    charts = {chart.key: chart for chart in page.context["content"].charts}
    truncated = charts["truncated"].figure["data"]
    assert [(trace["name"], len(trace["x"])) for trace in truncated] == [("run", 2), ("the other", 3)]
    assert len({trace["line"]["color"] for trace in truncated}) == 2
    assert charts["lengths"].note == "Only right is laid over."
    assert {trace["type"] for trace in charts["histogram"].figure["data"]} == {"bar"}
    assert "nobody sees me" not in page.content.decode() and "not here, or not for you" in page.content.decode()
    alone = client.get(address).context["content"].charts
    assert [trace["name"] for trace in alone[0].figure["data"]] == ["right", "wrong"]
