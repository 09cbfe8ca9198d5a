"""The pages of clusters and similar rollouts: who sees what, what they count, and every kind of nothing."""

import re
from html import unescape

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from rlviewer.accounts.models import Member, Project, Role, User
from rlviewer.analysis import jobs, queries, selection
from rlviewer.analysis.models import EmbeddingJob, JobState
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Attempt, Rollout, Run
from rlviewer.search.browse import Scope, Search
from tests.analysis.conftest import SAYINGS, direction, embed
from tests.factories import make_batch, make_run, make_user
from training.sentences import MODEL_KEY

HTMX = {"HX-Request": "true"}


@pytest.fixture
def page(client: Client, bob: User, run: Run) -> Client:
    client.force_login(bob)
    return client


@pytest.fixture
def embedded(rollouts: list[int]) -> list[int]:
    """All rollouts with vectors as a model would give them: the sayings about carrying here, the refusals there."""
    embed(rollouts, [direction(5 * (row % 2), 0.1 * (row % 4)) for row in range(len(rollouts))])
    return rollouts


def text_of(client: Client, address: str, **options: object) -> str:
    """The page in one line of plain words."""
    answer = client.get(address, **options)  # type: ignore[arg-type]
    words = re.sub(r"<[^>]+>", " ", answer.content.decode().split("<main")[-1].split("</main>")[0])
    return " ".join(unescape(words).split())


def clusters_url(run: Run, query: str = "") -> str:
    return reverse("run-clusters", args=[run.pk]) + query


def finish(job: EmbeddingJob, vector: bytes) -> None:
    EmbeddingJob.objects.filter(pk=job.pk).update(state=JobState.FINISHED, vector=vector, model=MODEL_KEY)


def test_failures_are_what_is_grouped_first(page: Client, run: Run, embedded: list[int]) -> None:
    wrong = Rollout.objects.filter(run_id=run.pk, correct=False).count()
    words = text_of(page, clusters_url(run))
    assert "Rollouts that are wrong" in words and f"{wrong} of {wrong} rollouts of this filter embedded" in words


def test_clusters_say_their_size_words_and_reward_and_open_in_the_browser(
    page: Client, run: Run, embedded: list[int]
) -> None:
    Rollout.objects.filter(pk=embedded[0]).update(reward=3.0)  # beside seven others that carry
    html = page.get(clusters_url(run, "?filter=&k=2")).content.decode()
    first, second = html.split('class="card cluster"')[1:]
    assert "<strong>8</strong> rollouts" in first and "<strong>8</strong> rollouts" in second
    assert ">carry<" in first and ">ones<" in first and ">sorry<" in second and ">carry<" not in second
    stored = Rollout.objects.filter(pk__in=embedded[::2]).values_list("reward", flat=True)
    finite = [reward for reward in stored if reward == reward]
    assert f'value="{sum(finite) / len(finite)!r}"' in first
    assert "0 to 1" in first and (SAYINGS[0] in first or SAYINGS[2] in first)
    (found,) = re.findall(r'href="([^"]+)">Open its 8 rollouts', first)
    path, query = unescape(found).split("?filter=")
    assert path == reverse("rollout-list", args=[run.pk])
    assert sorted(Search(Scope(run.project, run), query).rows().values_list("pk", flat=True)) == embedded[::2]
    assert page.get(unescape(found)).status_code == 200


def test_coverage_names_what_is_missing_and_how_long_it_takes(page: Client, run: Run, rollouts: list[int]) -> None:
    embed(rollouts[:6], [direction(0)] * 6)
    words = text_of(page, clusters_url(run, "?filter="))
    assert "6 of 16 rollouts of this filter embedded Embed the other 10 about 11 s , a guess" in words


def test_the_pace_is_that_of_the_last_large_job(page: Client, run: Run, alice: User) -> None:
    job = jobs.ask_rollouts(alice, run.project, run, "step:7")
    EmbeddingJob.objects.filter(pk=job.pk).update(
        state=JobState.FINISHED, done=640, started_at="2099-01-01T00:00:00Z", ended_at="2099-01-01T00:00:20Z"
    )
    assert jobs.rate() == 32
    assert "about 11 s , at the pace of the last time" in text_of(page, clusters_url(run, "?filter="))


def test_asking_queues_a_job_and_the_page_follows_it(page: Client, run: Run, rollouts: list[int]) -> None:
    answer = page.post(reverse("run-embed", args=[run.pk]), {"filter": "correct:no", "k": "5"})
    assert answer.headers["Location"] == clusters_url(run, "?filter=correct:no&k=5")
    job = EmbeddingJob.objects.get()
    assert (job.run, job.filter, job.asked_by.username, job.state) == (run, "correct:no", "bob", "queued")
    html = page.get(answer.headers["Location"]).content.decode()
    assert "Waiting for a" in html and "part=coverage" in html
    jobs.take()
    fragment = clusters_url(run, "?filter=correct:no&k=5&part=coverage")
    assert text_of(page, fragment, headers=HTMX).startswith("Loading the model …")
    EmbeddingJob.objects.update(total=8, done=2)
    assert "2 of 8 embedded" in text_of(page, fragment, headers=HTMX)
    EmbeddingJob.objects.update(state=JobState.FAILED, error="the embedding process was killed by signal 9")
    html = page.get(fragment, headers=HTMX).content.decode()
    assert "was killed by signal 9" in html and "part=found" in html and "delay:1s" not in html


def test_a_member_stops_a_job(page: Client, run: Run, bob: User) -> None:
    job = jobs.ask_rollouts(bob, run.project, run, "correct:no")
    answer = page.post(reverse("embedding-stop", args=[job.pk]))
    assert answer.headers["Location"] == clusters_url(run, "?filter=correct:no")
    job.refresh_from_db()
    assert job.state == "stopped"
    assert "was stopped; what it had done is kept" in text_of(page, answer.headers["Location"])


def test_more_than_a_page_holds_are_stood_for_by_a_fixed_sample(
    page: Client, run: Run, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "LIMIT", 6)
    search = Search(Scope(run.project, run))
    drawn = selection.select(search)
    assert (len(drawn.ids), drawn.is_sample, drawn) == (6, True, selection.select(search))
    assert drawn.ids != embedded[:6] and set(drawn.ids) < set(embedded)
    words = text_of(page, clusters_url(run, "?filter="))
    assert "The filter finds 16 rollouts: 6 of them stand for all" in words
    assert "6 of 6 rollouts of the sample embedded" in words


def test_all_runs_of_a_project_are_grouped_together(page: Client, run: Run, embedded: list[int]) -> None:
    other = make_run(run.project, "other")
    store_batch(make_batch(other, groups=1, group_size=4), source="test")
    words = text_of(page, reverse("project-clusters", args=[run.project_id]) + "?filter=")
    assert "16 of 20 rollouts of this filter embedded" in words
    answer = page.post(reverse("project-embed", args=[run.project_id]), {"filter": ""})
    assert answer.headers["Location"] == reverse("project-clusters", args=[run.project_id]) + "?filter="
    assert EmbeddingJob.objects.get().run is None


# ---- finding by meaning


def test_a_text_finds_what_lies_nearest_and_repeats_are_told_once(page: Client, run: Run, embedded: list[int]) -> None:
    page.post(reverse("run-embed", args=[run.pk]), {"filter": "", "means": "carry the one"})
    job = EmbeddingJob.objects.get()
    assert (job.text, job.run, job.project) == ("carry the one", None, run.project)
    address = clusters_url(run, "?filter=&means=carry+the+one")
    assert "Waiting for a worker to read the text" in text_of(page, address)
    finish(job, direction(0))
    html = page.get(address).content.decode()
    rows = html.split("<tr data-row>")[1:]
    # Two sayings near the text, each eight times in four, and two far away.
    assert len(rows) == 4
    assert SAYINGS[0] in rows[0] and 'value="1"' not in rows[1] and "and 3 more that say the same" in rows[0]
    near = [float(re.findall(r'value="([^"]+)"', row)[0]) for row in rows]
    assert near == pytest.approx([1, 0.98007, 0, 0], abs=1e-4)


def test_a_text_is_looked_for_among_what_the_filter_finds(page: Client, run: Run, embedded: list[int]) -> None:
    finish(jobs.ask_text(make_user("dora"), run.project, "carry"), direction(0))
    html = page.get(clusters_url(run, f"?filter=id:{embedded[1]}&means=carry")).content.decode()
    assert re.findall(r'data-row>.*?href="/rollouts/(\d+)/"', html) == [str(embedded[1])]
    words = text_of(page, clusters_url(run, "?filter=/sorry/&means=carry"))  # read in windows, not by the index
    assert "carry the ten" not in words and "cannot help with" in words


def test_a_long_text_is_cut_and_says_so(page: Client, run: Run) -> None:
    answer = page.post(reverse("run-embed", args=[run.pk]), {"means": "x" * 1_000_000}, follow=True)
    assert "Only the first 500 characters of the text are looked for" in answer.content.decode()
    assert len(EmbeddingJob.objects.get().text) == 500


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud83d", "<script>", "%00"])
def test_odd_texts_are_no_trouble(page: Client, run: Run, embedded: list[int], text: str) -> None:
    data = {"filter": "", "means": text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")}
    assert page.post(reverse("run-embed", args=[run.pk]), data, follow=True).status_code == 200


def test_viewers_read_what_was_found_and_are_offered_nothing_to_press(
    client: Client, run: Run, rollouts: list[int]
) -> None:
    vera = make_user("vera")
    Member.objects.create(project=run.project, user=vera, role=Role.VIEWER)
    client.force_login(vera)
    html = client.get(clusters_url(run, "?filter=&means=carry")).content.decode().split("<main")[1]
    assert "A member of the project can have the other 16 embedded" in html and 'method="post"' not in html
    html = client.get(reverse("rollout-similar", args=[rollouts[0]])).content.decode()
    assert "A member of the project can have it read" in html and "<form" not in html


def test_a_text_of_another_project_stays_there(page: Client, run: Run, embedded: list[int]) -> None:
    elsewhere = Project.objects.create(name="elsewhere")
    finish(jobs.ask_text(make_user("dora"), elsewhere, "carry"), direction(0))
    assert "The model has not read this text yet" in text_of(page, clusters_url(run, "?filter=&means=carry"))


# ---- nothing, and what is wrong


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?filter=reward%3E99", "No rollout matches"),
        ("?filter=", "No rollout of this filter is embedded yet"),
        ("?filter=rewrd%3E1", "The filter is wrong at character 1: There is no field “rewrd”"),
        ("?filter=&k=100000000000", "0 of 16"),
        ("?filter=&k=x", "0 of 16"),
    ],
)
def test_every_kind_of_nothing_has_its_words(page: Client, run: Run, query: str, said: str) -> None:
    assert said in text_of(page, clusters_url(run, query))
    page.post(reverse("run-embed", args=[run.pk]), {"filter": "rewrd>1"})
    assert not EmbeddingJob.objects.exists()


def test_without_the_extension_the_page_says_what_to_ask_for(page: Client, run: Run, rollouts: list[int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE analysis_rolloutembedding DROP COLUMN vector")
    said = "Ask its administrator to run CREATE EXTENSION vector in this database"
    assert said in text_of(page, clusters_url(run)) and said in text_of(
        page, reverse("rollout-similar", args=[rollouts[0]])
    )
    # The extension is there by now: who asks makes room for the vectors.
    page.post(reverse("run-embed", args=[run.pk]), {"filter": ""})
    assert said not in text_of(page, clusters_url(run))


# ---- the rollout's page


def test_a_rollout_shows_the_ten_nearest_of_its_run_or_project(page: Client, run: Run, embedded: list[int]) -> None:
    other = make_run(run.project, "other")
    texts = [b"Carry the ten, after adding the ones.", b"x", b"y", b"z"]
    store_batch(make_batch(other, groups=1, group_size=4, completion=texts), source="test")
    (twin, *_) = Rollout.objects.filter(run_id=other.pk).order_by("pk").values_list("pk", flat=True)
    embed([twin], [direction(0, 0.05)])
    address = reverse("rollout-similar", args=[embedded[0]])
    html = page.get(address).content.decode()
    links = [int(n) for n in re.findall(r'data-row>.*?href="/rollouts/(\d+)/"', html)]
    assert links[:2] == [embedded[4], embedded[2]] and embedded[0] not in links and twin not in links
    assert "Of the 15 other embedded rollouts, of 16 in this run" in text_of(page, address)
    html = page.get(f"{address}?in=project").content.decode()
    links = [int(n) for n in re.findall(r'data-row>.*?href="/rollouts/(\d+)/"', html)]
    assert links[:3] == [embedded[4], twin, embedded[2]] and ">other</a>" in html


def test_a_rollout_that_is_not_embedded_can_be(page: Client, run: Run, rollouts: list[int]) -> None:
    address = reverse("rollout-similar", args=[rollouts[0]])
    assert "The model has not read this rollout yet" in text_of(page, address)
    html = page.post(address).content.decode()
    assert "Waiting for a" in html and "load delay:1s" in html
    job = EmbeddingJob.objects.get()
    assert (job.filter, job.run) == (f"id:{rollouts[0]}", run)
    assert list(Search(Scope(run.project, run), job.filter_text).rows().values_list("pk", flat=True)) == rollouts[:1]


def test_what_a_later_attempt_replaced_is_not_similar(page: Client, run: Run, embedded: list[int]) -> None:
    Attempt.objects.create(run=run, number=2)
    store_batch(make_batch(run, attempt=2, step=1, groups=2, group_size=4), source="test")
    assert "Of the 7 other embedded rollouts" in text_of(page, reverse("rollout-similar", args=[embedded[0]]))


def test_the_rollout_page_asks_for_it_when_it_is_reached(page: Client, rollouts: list[int]) -> None:
    html = page.get(reverse("rollout-detail", args=[rollouts[0]])).content.decode()
    assert f'hx-get="/rollouts/{rollouts[0]}/similar/" hx-trigger="revealed"' in html


# ---- cost


def test_the_number_of_queries_does_not_grow(page: Client, run: Run, embedded: list[int]) -> None:
    def count(query: str) -> int:
        with CaptureQueriesContext(
            connection,
        ) as caught:
            assert page.get(clusters_url(run, query)).status_code == 200
        return len(caught)

    few = count("?filter=&k=2")
    for step in range(2, 5):
        store_batch(make_batch(run, step=step, groups=4, group_size=4), source="test")
    more = list(Rollout.objects.filter(run_id=run.pk).order_by("pk").values_list("pk", flat=True))
    embed(more, [direction(row % 20) for row in range(len(more))])
    assert count("?filter=&k=20") == few <= 24


def test_a_filter_of_ids_holds_as_many_as_fit() -> None:
    many = queries.ids_filter(range(1000, 2000))
    assert many.startswith("id:1000,1001,") and 990 < len(many) <= 1000
    assert queries.ids_filter([7]) == "id:7"
