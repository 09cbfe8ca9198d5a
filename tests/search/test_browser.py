"""The rollout browser: what a filter finds, in which order, page by page; who may see it."""

from collections.abc import Iterable

import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.lib.visible import visible_end
from rlviewer.runs.models import Attempt, Group, Prompt, Rollout, Run
from rlviewer.search import browse, totals, views
from rlviewer.search.browse import Place, Scope, Search, Sort
from rlviewer.search.fields import COLUMNS, FIELDS
from rlviewer.search.lines import read_lines
from rlviewer.search.models import ListColumns, RolloutText
from rlviewer.search.services import index_pending
from rlviewer.search.totals import Counted, count, spread
from rlviewer.search.tree import All
from rlviewer.search.words import meaning
from tests.factories import fill_run, make_batch, make_project, make_run

NEWEST = Sort.from_text("")
NAN, inf = float("nan"), float("inf")


@pytest.fixture
def run(project: Project, alice: User, client: Client) -> Run:
    run = make_run(project)
    fill_run(run, steps=3)  # 3 steps and 2 evaluations of 16 rollouts
    index_pending()
    client.force_login(alice)
    return run


def search(run: Run, text: str = "") -> Search:
    return Search(Scope(run.project, run), text)


def ids(run: Run, text: str = "", sort: str = "") -> list[int]:
    return search(run, text).find(Sort.from_text(sort), limit=1000, seconds=inf).ids


def walk(run: Run, text: str, sort: str, limit: int) -> Iterable[list[int]]:
    place: Place | None = None
    while True:
        found = search(run, text).find(Sort.from_text(sort), after=place, limit=limit)
        yield found.ids
        if not (found.has_more or found.resume):
            return
        # As an address carries it.
        place = Place.from_text(str(found.resume or found.places[-1]), Sort.from_text(sort))
        assert place is not None


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("", 80),
        ("split:train", 48),
        ("split:heldout,train", 80),
        ("split!=train", 32),
        ("split:train step>=1", 32),
        ("split:train step:1..1", 16),
        ("step:..0", 32),
        ("stop:length", 5),
        ("stop:length split:train", 3),
        ("reward:nan", 5),
        ("reward:none", 0),
        ("reward:none,nan", 5),
        ("-reward:nan", 75),
        ("split:none", 0),
        ("dead:yes", 40),
        ("dead:no group:2", 20),
        ("cause:all_wrong", 20),
        ("drop:'dead group' split:train", 24),
        ("task:addition difficulty:2", 80),
        ("task:add*", 80),
        ("task:subtraction", 0),
        ("algorithm:grpo attempt:1", 80),
        ("carry", 80),
        ("carr* -carry", 0),
        ('"so ="', 80),
        ("'so ='", 80),
        ("'SO ='", 0),
        ("'SO ='i", 80),
        ("/^[0-9]+\\+[0-9]+: carry/", 80),
        ("/CARRY/", 0),
        ("/CARRY/i", 80),
    ],
)
def test_filters_find_and_count(run: Run, text: str, total: int) -> None:
    assert len(ids(run, text)) == total == count(search(run, text), Counted()).total


def test_a_condition_and_its_negation_part_all_rollouts(run: Run) -> None:
    everything = set(ids(run))
    # Also what has no value, and what is not indexed yet.
    Rollout.objects.filter(pk__in=sorted(everything)[::5]).update(reward=None, correct=None, advantage=None)
    RolloutText.objects.filter(pk__in=sorted(everything)[::7]).delete()
    for text in ("reward>0.5", "correct:yes", "carry", "'= 1'", "advantage<0 stop:stop", "/so = 1/ or group:0"):
        found, others = set(ids(run, text)), set(ids(run, f"-({text})"))
        assert found | others == everything and not found & others
    assert len(ids(run, "reward>0.5")) == len(ids(run, "correct:yes -reward:nan"))


@pytest.mark.parametrize("sort", [*COLUMNS, *(f"-{name}" for name in COLUMNS), "random:3"])
def test_pages_of_every_order_continue_without_gap_or_repeat(run: Run, sort: str) -> None:
    Rollout.objects.filter(pk__in=ids(run)[::3]).update(advantage=None, answer_cluster=None, parsed_answer=None)
    pages = list(walk(run, "", sort, 13))
    seen = [pk for page in pages for pk in page]
    assert seen == ids(run, "", sort) and len(set(seen)) == 80
    assert list(map(len, pages)) == [13] * 6 + [2]
    order = Sort.from_text(sort)
    last = search(run).find(order, backwards=True, limit=13)
    assert last.ids == seen[-13:] and last.has_more
    before = search(run).find(order, after=last.places[0], backwards=True, limit=13)
    assert before.ids == seen[-26:-13]


@pytest.mark.parametrize(("sort", "values"), [("reward", [0.0, 1.0, NAN, None]), ("-reward", [1.0, 0.0, NAN, None])])
def test_missing_values_and_nan_come_last_either_way(run: Run, sort: str, values: list[float | None]) -> None:
    Rollout.objects.filter(pk__in=ids(run, "reward:1")[:2]).update(reward=None)
    found = [place.value for place in search(run).find(Sort.from_text(sort), limit=1000).places]
    assert list(dict.fromkeys(map(repr, found))) == list(map(repr, values))


def test_chance_is_the_same_for_the_same_seed(run: Run) -> None:
    assert ids(run, "", "random:1") == ids(run, "", "random:1") != ids(run, "", "random:2")
    assert set(ids(run, "correct:yes", "random:1")) == set(ids(run, "correct:yes"))


def test_a_scan_stops_in_time_and_goes_on_where_it_stopped(run: Run, monkeypatch) -> None:
    monkeypatch.setattr(browse, "FIRST_WINDOW", 7)
    monkeypatch.setattr(browse, "LAST_WINDOW", 7)
    monkeypatch.setattr(browse, "SCAN_SECONDS", 0)
    whole = search(run, "'= 1'").find(NEWEST, limit=1000, seconds=inf)
    assert whole.resume is None and whole.scanned == 80
    assert [pk for page in walk(run, "'= 1'", "", 100) for pk in page] == whole.ids
    assert search(run, "'= 1'").find(NEWEST, seconds=1e-9).scanned == 7


def test_the_total_of_a_scan_grows_until_it_is_exact(run: Run, monkeypatch) -> None:
    monkeypatch.setattr(browse, "FIRST_WINDOW", 30)
    monkeypatch.setattr(totals, "COUNT_SECONDS", 1e-9)
    counted, steps = Counted(), []
    for _ in range(3):
        counted = count(search(run, "'= 1'"), counted)
        steps.append((counted.scanned, counted.goes_on, counted.of))
        counted = (
            Counted.from_query({name: str(value) for name, value in counted.as_query().items()})
            if counted.goes_on
            else counted
        )
    assert steps == [(30, True, 80), (60, True, 80), (80, False, 80)]
    assert counted.total == len(ids(run, "'= 1'"))


def test_step_totals_read_no_rollout(run: Run, django_assert_num_queries) -> None:
    asked = search(run, "step:1..2 split:train")
    with django_assert_num_queries(1):
        assert asked.total() == 32


def test_the_spread_counts_what_is_finite(run: Run) -> None:
    found = spread(search(run), Sort.from_text("-reward"), None)
    assert found is not None and (found.low, found.high, found.at) == (0.0, 1.0, 1.0)
    zeros, ones = (Rollout.objects.filter(run_id=run.pk, reward=value).count() for value in (0, 1))
    most = max(zeros, ones)
    assert (found.bars[0], found.bars[-1], sum(found.bars)) == pytest.approx(
        (zeros / most, ones / most, (zeros + ones) / most)
    )
    assert spread(search(run, "reward:1"), Sort.from_text("reward"), None) is None
    assert spread(search(run, "step:99"), Sort.from_text("reward"), None) is None


def test_superseded_rollouts_are_left_out_and_counted_apart(run: Run) -> None:
    Attempt.objects.create(run=run, number=2)
    store_batch(make_batch(run, step=1, attempt=2, seed=3, groups=2), source="test")
    run.refresh_from_db()
    counted = count(search(run), Counted())
    assert len(ids(run)) == counted.total == 80 - 16 + 8 and counted.replaced == 16
    assert len(Search(Scope(run.project, run, every_attempt=True)).find(NEWEST, limit=1000).ids) == 88


def test_a_project_holds_its_runs_and_no_others(run: Run, alice: User) -> None:
    second = make_run(run.project, "second")
    store_batch(make_batch(second), source="test")
    elsewhere = make_run(make_project("elsewhere", admin=alice))
    store_batch(make_batch(elsewhere), source="test")
    whole = Search(Scope(run.project))
    assert len(whole.find(NEWEST, limit=1000).ids) == whole.total() == 96
    prompt = Rollout.objects.filter(run_id=elsewhere.pk).values_list("group__prompt_id", flat=True)[0]
    assert Search(Scope(run.project), f"run:{elsewhere.pk}").find(NEWEST).ids == []
    assert Search(Scope(run.project), f"prompt:{prompt}").find(NEWEST).ids == []


@pytest.mark.parametrize(
    ("text", "sort", "words"),
    [
        ("", "", "Rollouts, newest first"),
        ("correct:no split:train step:3..", "", "Rollouts that are wrong and of training and with step from 3, newest first"),
        ("stop:length len>200", "-reward", "Rollouts cut at the token limit and with length above 200 tokens, by reward, highest first"),
        ('"so what" -dead:yes', "random:4", "Rollouts with the words “so what” and not (of a dead group), at random (seed 4)"),
        ("reward:none or /a+/i", "task", "Rollouts (with reward not recorded or with a match of “a+” in any case), by task"),
    ],
)  # fmt: skip
def test_the_filter_in_plain_words(text: str, sort: str, words: str, db: None) -> None:
    project = make_project()
    assert meaning(Search(Scope(project), text).tree, Sort.from_text(sort)) == words


def test_page_and_fragment(client: Client, run: Run, django_assert_num_queries) -> None:
    address = reverse("rollout-list", args=[run.pk])
    # Session, person, run; savepoint, limit, replaced steps, ids, columns, lines, savepoint;
    # tasks, splits and labels for the completion; parts of the reward; role.
    with django_assert_num_queries(15):
        page = client.get(address)
    assert page.content.decode().count("<tr data-row") == 80
    fragment = client.get(address, {"filter": "correct:yes"}, headers={"HX-Request": "true"}).content.decode()
    assert fragment.lstrip().startswith('<div id="rollouts"') and "<html" not in fragment
    nothing = client.get(address, {"filter": "step:99"}).content.decode()
    assert "No rollout matches" in nothing and "with step 99" in nothing
    total = client.get(
        address, {"filter": "correct:yes", "part": "total"}, headers={"HX-Request": "true"}
    ).content.decode()
    assert f"<strong>{len(ids(run, 'correct:yes'))}</strong>" in total


def test_a_line_is_the_same_from_the_index_as_from_what_is_stored(project: Project) -> None:
    texts = [
        b"",
        b"a\0b\xff\n",
        b"\xf4\x8f\xbc\x80" * 121,
        b"\xf4\x8f\xbc\x80" * 120,
        b"\xe4" * 130,
        "é€😀".encode() * 60,
    ]
    texts += [b"x" * 120, b"x" * 121]
    run = make_run(project)
    store_batch(make_batch(run, groups=1, group_size=len(texts), completion=texts), source="test")
    wanted = list(Rollout.objects.order_by("pk").values_list("pk", flat=True))
    before = read_lines(wanted, [], All(()))
    index_pending()
    assert read_lines(wanted, [], All(())) == before
    assert [line.completion[2] for line in before] == [visible_end(text) for text in texts]


def test_tasks_are_met_value_by_value_in_the_order_of_all(run: Run, monkeypatch) -> None:
    for number, prompt in enumerate(Prompt.objects.order_by("pk")):
        prompt.generator = ["b", "", "z"][number % 3]
        prompt.save()
    find = search(run).find
    for text in ("task", "-task"):
        sort, key = Sort.from_text(text), lambda row: (row[1], row[0])
        rows = Rollout.objects.values_list("pk", "group__prompt__generator")
        wanted = [pk for pk, _ in sorted(rows, key=key, reverse=sort.is_descending)]
        for gathered in (0, 100_000):
            monkeypatch.setattr(browse, "GATHERED", gathered)
            assert find(sort, limit=1000).ids == wanted
            assert find(sort, limit=9, backwards=True).ids == wanted[-9:]
            page = find(sort, limit=len(wanted) - 7)
            assert find(sort, after=page.places[-1], limit=9).ids == wanted[-7:]
            assert find(sort, after=page.places[-1], limit=9, backwards=True).ids == page.ids[-10:-1]


def test_a_broken_filter_says_where_and_leaves_the_list_alone(client: Client, run: Run) -> None:
    address = reverse("rollout-list", args=[run.pk])
    page = client.get(address, {"filter": "reward<0.5 stop:<b>"})
    assert page.status_code == 422
    assert (
        "<mark>&lt;b&gt;</mark>" in page.content.decode() and "Expected stop, length or error" in page.content.decode()
    )
    fragment = client.get(address, {"filter": "reward<"}, headers={"HX-Request": "true"})
    assert fragment.status_code == 422
    assert (fragment["HX-Retarget"], fragment["HX-Push-Url"]) == ("#filter-problem", "false")


def test_what_takes_too_long_is_stopped_with_words(client: Client, run: Run, monkeypatch) -> None:
    batch = make_batch(run, step=9, groups=1, group_size=4, completion=[b"ab" * 500_000] * 4)
    store_batch(batch, source="test")
    index_pending()
    monkeypatch.setattr(views, "LIMIT_MS", 1)
    answer = client.get(reverse("rollout-list", args=[run.pk]), {"filter": "step:9 /(a|b)*(aa|bb).*c/"})
    assert answer.status_code == 422 and "was stopped" in answer.content.decode()


@pytest.mark.parametrize(
    "query",
    [
        {"after": "x"}, {"after": "=abc~1", "sort": "reward"}, {"after": "=1~99999999999999999999"}, {"after": "=99999999999999999999~1", "sort": "step"},
        {"at": "x", "sort": "reward"}, {"at": "nan", "sort": "reward"}, {"at": "1", "sort": "task"}, {"sort": "'; drop"}, {"sort": "random:x"}, {"before": "\0~1"},
        {"at": "inf", "sort": "reward"}, {"after": "=\0~1", "sort": "task"}, {"go": "x"}, {"part": "nonsense"}, {"end": "1"}, {"filter": "   "},
    ],
)  # fmt: skip
def test_mistyped_addresses_still_show_rollouts(client: Client, run: Run, query: dict[str, str]) -> None:
    assert client.get(reverse("rollout-list", args=[run.pk]), query).status_code == 200


def first_row(client: Client, run: Run, **query: str) -> Rollout:
    page = client.get(reverse("rollout-list", args=[run.pk]), query, follow=True)
    return Rollout.objects.select_related("step").get(pk=page.context["lines"][0].id)


def test_going_to_a_step_a_rollout_or_a_value(client: Client, run: Run) -> None:
    assert first_row(client, run, go="2", filter="split:train").step.index == 2
    wanted = ids(run)[40]
    assert first_row(client, run, go=f"#{wanted}").pk == wanted
    assert first_row(client, run, sort="-id", at=str(wanted)).pk == wanted
    assert first_row(client, run, sort="-reward", at="0.5").reward == 0
    assert first_row(client, run, sort="reward", at="0.5").reward == 1
    assert first_row(client, run, sort="reward", end="1").pk in ids(run, "", "reward")


def test_pages_link_forth_and_back(client: Client, run: Run, monkeypatch) -> None:
    monkeypatch.setattr(views, "PER_PAGE", 30)
    address = reverse("rollout-list", args=[run.pk])
    pages, here = [], "?sort=-reward"
    while here:
        context = client.get(address + here).context
        pages.append([line.id for line in context["lines"]])
        here, back = context["next"], context["previous"]
    assert [pk for page in pages for pk in page] == ids(run, "", "-reward") and list(map(len, pages)) == [30, 30, 20]
    assert [line.id for line in client.get(address + back).context["lines"]] == pages[1]


def test_what_matched_is_marked(client: Client, run: Run) -> None:
    store_batch(
        make_batch(
            run, step=9, groups=1, group_size=2, completion=[b"x" * 300 + b"<b> of Zebra \x00" + b"y" * 300, b"plain"]
        ),
        source="test",
    )
    index_pending()
    address = reverse("rollout-list", args=[run.pk])
    for text in ("zebra", "zeb*", "'Zebra'", "/Z[a-z]+a/", '"of zebra"'):
        page = client.get(address, {"filter": f"step:9 {text}"}).content.decode()
        assert page.count("<tr data-row") == 1
        assert "ebra</mark> ⟨00⟩yyy" in page
        assert "<b> of" not in page


def test_columns_are_chosen_and_kept(client: Client, run: Run, bob: User) -> None:
    address = reverse("rollout-list", args=[run.pk])
    kept = client.post(
        reverse("rollout-columns"), {"columns": ["entropy", "id", "nonsense"], "next": address + "?sort=-reward"}
    )
    assert kept["Location"] == address + "?sort=-reward"
    shown = lambda address: [field.name for field in client.get(address).context["columns"]]  # noqa: E731
    assert shown(address) == ["id", "entropy"]
    assert shown(reverse("project-rollouts", args=[run.project_id])) == ["id", "run", "entropy"]
    assert client.post(reverse("rollout-columns"), {"reset": "1", "next": "https://evil.example/"})["Location"] == "/"
    assert shown(address) == [f.name for f in FIELDS.values() if f.is_shown]
    assert not ListColumns.objects.filter(user=bob).exists()


def test_every_column_can_be_shown(client: Client, run: Run) -> None:
    client.post(reverse("rollout-columns"), {"columns": COLUMNS})
    Rollout.objects.filter(pk__in=ids(run)[:9]).update(
        reward=None, advantage=None, correct=None, parsed_answer=None, clip_share=None
    )
    page = client.get(reverse("rollout-list", args=[run.pk])).content.decode()
    assert page.count("not judged") and page.count("no answer was read") and 'title="not recorded"' in page


def _unlike(run: Run) -> tuple[int, int]:
    """Two rollouts whose texts differ after a common beginning."""
    group = Group.objects.filter(run=run, step__split="train", step__index=0, index=1).get()
    by_answer = {one.parsed_answer: one.pk for one in group.rollouts.order_by("-number")}
    first, second, *_ = by_answer.values()
    return first, second


def test_side_by_side_shows_what_the_person_may_see(client: Client, run: Run, charlie: User) -> None:
    theirs = make_run(make_project("secret", admin=charlie))
    store_batch(make_batch(theirs), source="test")
    secret = Rollout.objects.filter(run_id=theirs.pk)[0].pk
    first, second = _unlike(run)
    page = client.get(reverse("rollout-compare"), {"ids": f"{first},{secret},x,{second},{first}"})
    assert [side.rollout.pk for side in page.context["sides"]] == [first, second]
    sides = page.context["sides"]
    assert sides[0].differs_at is None and sides[1].differs_at is not None
    assert all("data-first-difference" in side.shown.html for side in sides)
    assert "data-next-difference" in page.content.decode()
    assert "Nothing to compare" in client.get(reverse("rollout-compare"), {"ids": str(secret)}).content.decode()


@pytest.mark.parametrize("name", ["rollout-list", "project-rollouts"])
def test_members_read_and_strangers_find_nothing(client: Client, run: Run, bob: User, charlie: User, name: str) -> None:
    address = reverse(name, args=[run.pk if name == "rollout-list" else run.project_id])
    for part in ({}, {"part": "total"}, {"part": "scrubber", "sort": "reward"}, {"part": "more"}):
        client.force_login(bob)
        assert client.get(address, part, headers={"HX-Request": "true"}).status_code == 200
        client.force_login(charlie)
        assert client.get(address, part, headers={"HX-Request": "true"}).status_code == 404


def test_a_run_without_rollouts_says_that_they_will_come(client: Client, alice: User, project: Project) -> None:
    client.force_login(alice)
    page = client.get(reverse("rollout-list", args=[make_run(project).pk])).content.decode()
    assert "No rollouts yet" in page and "No rollout matches" not in page
