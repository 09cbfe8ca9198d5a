"""Hits of saved searches: counted once a step, anew when the query changes, and the step from which they are too many."""

import subprocess
import sys
from dataclasses import replace

import pytest

from rlviewer.accounts.models import AuditEvent, Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.launch.sweeper import Sweeper
from rlviewer.lib.intervals import wilson
from rlviewer.outbox.models import Announcement
from rlviewer.runs.models import Attempt, Run, Step
from rlviewer.search.services import index_pending
from rlviewer.watch import counting
from rlviewer.watch.models import SavedSearch, SearchHits
from rlviewer.watch.services import SearchError, Wanted, archive_search, create_search, edit_search, save_suspect
from rlviewer.watch.suspects import SUSPECTS
from tests.factories import make_batch, make_project, make_run

TEXTS = [b"so = 12", b"I would say 12", b"so so so", b""]


def store(run: Run, step: int, completions: list[bytes] = TEXTS, **extra: object) -> None:
    """A step of one group whose completions are given."""
    shape = {"groups": 1, "group_size": len(completions), "completion": completions}
    store_batch(make_batch(run, step=step, **shape, **extra), source="test")  # type: ignore[arg-type]
    index_pending()


@pytest.fixture
def run(project: Project) -> Run:
    return make_run(project)


def search(bob: User, project: Project, query: str = "so", **extra: object) -> SavedSearch:
    return create_search(bob, project, Wanted("so", query, **extra))  # type: ignore[arg-type]


def counts(search: SavedSearch) -> dict[int, tuple[int | None, int]]:
    """Hits and rollouts by index of the step."""
    rows = search.counts.filter(query_version=search.query_version, step__is_current=True)
    return {row.step.index: (row.hits, row.scanned) for row in rows.select_related("step")}


@pytest.mark.parametrize(
    ("query", "hits"),
    [
        ("so", 2),
        ("'so'", 2),
        ("/^so/", 2),
        ("so or say", 3),
        ("-so", 2),
        ("number<2", 2),
        ("so number:0", 1),
        ("never", 0),
    ],
)
def test_each_step_is_counted_once(bob: User, run: Run, query: str, hits: int) -> None:
    store(run, 0)
    saved = search(bob, run.project, query)
    assert counting.waiting_steps(saved) == 1
    assert counting.count_pending() == 1
    assert counts(saved) == {0: (hits, 4)}
    assert counting.waiting_steps(saved) == 0 == counting.count_pending()
    store(run, 1)
    assert counting.count_pending() == 1
    assert counts(saved) == {0: (hits, 4), 1: (hits, 4)}


def test_a_step_that_grows_is_counted_again_and_a_replaced_one_is_left(bob: User, run: Run) -> None:
    store(run, 0)
    saved = search(bob, run.project)
    counting.count_pending()
    batch = make_batch(run, step=0, groups=1, group_size=6, completion=[*TEXTS, b"so", b"say"])
    store_batch(replace(batch, header=replace(batch.header, batch_id="0" * 31 + "1")), source="test")
    assert counting.count_pending() == 0  # its texts cannot be found yet
    index_pending()
    counting.count_pending()
    assert counts(saved) == {0: (3, 6)}
    Attempt.objects.create(run=run, number=2)
    store(run, 0, [b"so"], attempt=2)
    counting.count_pending()
    assert counts(saved) == {0: (1, 1)}


def test_another_query_is_counted_anew(bob: User, run: Run) -> None:
    for step in range(3):
        store(run, step)
    saved = search(bob, run.project)
    counting.count_pending()
    saved = edit_search(bob, saved, Wanted("so", "say"))
    assert counts(saved) == {} and counting.waiting_steps(saved) == 3
    assert counting.has_news() and counting.count_pending() == 3
    assert counts(saved) == {0: (1, 4), 1: (1, 4), 2: (1, 4)}
    assert edit_search(bob, saved, Wanted("so", "say")).query_version == saved.query_version
    event = AuditEvent.objects.get(verb="edit-search")
    assert event.detail["before"]["query"] == "so" and event.detail["query"] == "say"


def test_nothing_new_costs_one_query(bob: User, run: Run, django_assert_num_queries) -> None:
    assert not counting.has_news()
    store(run, 0)
    saved = search(bob, run.project)
    assert counting.has_news()
    counting.count_pending()
    with django_assert_num_queries(1):
        assert not counting.has_news()
    store(run, 1)
    assert counting.has_news()
    counting.count_pending()
    archive_search(bob, saved, is_archived=True)
    assert not counting.has_news()
    store(run, 2)
    archive_search(bob, saved, is_archived=False)
    assert counting.has_news() and counting.count_pending() == 1


def test_only_runs_of_the_project_are_counted_newest_first(bob: User, run: Run, alice: User, monkeypatch) -> None:
    stranger, newer = make_run(make_project("other", admin=alice)), make_run(run.project, "newer")
    for one in (run, stranger, newer):
        store(one, 0)
        store(one, 1)
    saved = search(bob, run.project)
    assert counting._count_some(saved) == 2
    assert set(SearchHits.objects.values_list("step__run", flat=True)) == {newer.pk}
    counting.count_pending()
    assert set(SearchHits.objects.values_list("step__run", flat=True)) == {newer.pk, run.pk}


def test_a_query_that_takes_too_long_is_said_and_not_tried_for_ever(bob: User, run: Run, monkeypatch) -> None:
    text = b" ".join(b"%d" % n for n in range(30_000))
    for step in range(2):
        store(run, step, [text] * 4, tokens=80_000)
    saved = search(bob, run.project, "/(1|2)+(3|4)*x.*y/")
    monkeypatch.setattr(counting, "STATEMENT_MS", 1)
    assert counting.count_pending() == 2
    assert counts(saved) == {0: (None, 4), 1: (None, 4)} and counting.waiting_steps(saved) == 0
    monkeypatch.undo()
    saved = edit_search(bob, saved, Wanted("so", "/9999 /"))
    counting.count_pending()
    assert counts(saved) == {0: (4, 4), 1: (4, 4)}


def store_rates(run: Run, hits: list[int], first: int = 0, **extra: object) -> None:
    for step, number in enumerate(hits, first):
        store(run, step, [b"so"] * number + [b"say"] * (10 - number), **extra)


def onsets(search: SavedSearch) -> list[tuple[str, int, float]]:
    return [(o.run.name, o.step, round(o.rate, 6)) for o in search.onsets.select_related("run").order_by("run_id")]


def test_an_onset_is_three_successive_steps_over_the_limit_and_written_once(bob: User, run: Run) -> None:
    saved = search(bob, run.project, limit_rate=0.2)
    store_rates(run, [3, 3, 2, 3, 3])  # 2 of 10 is the limit, not over it
    counting.count_pending()
    assert onsets(saved) == []
    store_rates(run, [4], first=5)
    counting.count_pending()
    assert onsets(saved) == [("run", 3, round(10 / 30, 6))]
    store_rates(run, [9, 9, 9], first=6)
    counting.count_pending()
    assert onsets(saved) == [("run", 3, round(10 / 30, 6))]
    news = Announcement.objects.filter(event="search-onset")
    assert sorted(news.values_list("topic", flat=True)) == [f"project:{run.project_id}", f"run:{run.pk}"]
    assert news[0].payload["step"] == 3 and news[0].payload["search"] == saved.pk


def test_a_gap_and_evaluations_begin_no_onset(bob: User, run: Run) -> None:
    saved = search(bob, run.project, limit_rate=0.2)
    store_rates(run, [5, 5, 5], split="heldout")
    counting.count_pending()
    store_rates(run, [5, 5])
    store_rates(run, [5], first=2)
    SearchHits.objects.create(
        search=saved, step=Step.objects.get(run=run, index=1, split="train"), hits=None, scanned=10, query_version=1
    )
    counting.count_pending()
    assert onsets(saved) == []


def test_another_limit_or_query_looks_for_the_onset_again(bob: User, run: Run) -> None:
    other = make_run(run.project, "other")
    store_rates(run, [1, 1, 1, 6, 6, 6])
    store_rates(other, [1, 1, 1])
    saved = search(bob, run.project, limit_rate=0.5)
    counting.count_pending()
    assert onsets(saved) == [("run", 3, 0.6)]
    saved = edit_search(bob, saved, Wanted("so", "so", limit_rate=0.05))
    assert onsets(saved) == [("run", 0, 0.1), ("other", 0, 0.1)]
    saved = edit_search(bob, saved, Wanted("so", "say", limit_rate=0.05))
    assert onsets(saved) == []
    counting.count_pending()
    assert [name for name, _, _ in onsets(saved)] == ["run", "other"]
    saved = edit_search(bob, saved, Wanted("so", "say"))
    assert onsets(saved) == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "what the search looks for"),
        ("reward<", "At character 8"),
        ("/(/", "Not a regular expression"),
        ("label:hack", "“label” changes"),
        ("-(so or labelled:yes)", "“labelled” changes"),
        ("why:truncated", "“why” changes"),
    ],
)
def test_what_cannot_be_counted_is_not_saved(bob: User, project: Project, query: str, words: str) -> None:
    with pytest.raises(SearchError, match=words):
        search(bob, project, query)
    assert not SavedSearch.objects.exists()


def test_names_are_unique_among_those_that_are_listed(bob: User, project: Project) -> None:
    first = search(bob, project)
    with pytest.raises(SearchError, match="of this name"):
        create_search(bob, project, Wanted("SO", "say"))
    archive_search(bob, first, is_archived=True)
    create_search(bob, project, Wanted("SO", "say"))
    with pytest.raises(SearchError, match="of this name"):
        archive_search(bob, first, is_archived=False)


@pytest.mark.parametrize(
    ("name", "hit", "miss"),
    [
        ("answer without reasoning", b" -12.5 \n", b"it is 12"),
        ("the same character over and over", b"so" + b"." * 20, b"so" + b"." * 19),
        ("several answers offered", b"Answer: 1. The answer is\n2, or the answer 3", b"answers, answer, answered"),
        ("speaks of its checker", b"the test case expects 3", b"latest cases; a checkered past"),
        ("code that slips past tests", b"import sys; sys.exit(0)", b"sys_exit"),
    ],
)
def test_suspects_of_text_find_what_they_say(bob: User, run: Run, name: str, hit: bytes, miss: bytes) -> None:
    store(run, 0, [hit, miss])
    saved = save_suspect(bob, run.project, name)
    counting.count_pending()
    assert counts(saved) == {0: (1, 2)}
    assert save_suspect(bob, run.project, name) == saved


def test_every_suspect_can_be_counted(bob: User, run: Run) -> None:
    store(run, 0)
    for name in SUSPECTS:
        save_suspect(bob, run.project, name)
    assert counting.count_pending(seconds=30) == len(SUSPECTS)
    assert not SearchHits.objects.filter(hits=None).exists()


def test_the_interval_of_a_share_is_wilsons() -> None:
    # Wilson's score interval of 3 in 10, as R's prop.test(3, 10, correct=FALSE) gives it.
    assert wilson(3, 10) == pytest.approx((0.1077913, 0.6032219), abs=1e-6)
    assert wilson(0, 20) == pytest.approx((0, 0.1611252), abs=1e-6)
    assert wilson(20, 20) == pytest.approx((0.8388748, 1), abs=1e-6)
    assert wilson(0, 0) is None


def test_an_idle_worker_asks_without_numpy() -> None:
    script = "import os, sys, django; os.environ['DJANGO_SETTINGS_MODULE'] = 'rlviewer.settings'; django.setup();" \
        " import rlviewer.watch.counting; print('numpy' in sys.modules)"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.django_db(transaction=True)
def test_a_worker_counts_while_it_sweeps(bob: User, run: Run) -> None:
    store(run, 0)
    saved = search(bob, run.project)
    Sweeper(["cpu"]).sweep()
    assert counts(saved) == {0: (2, 4)}
