import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Attempt, Group, Rollout, Run, StopReason
from rlviewer.runs.queries import step as step_queries
from rlviewer.runs.queries.step import clusters, headline
from tests.factories import fill_run, make_batch, make_run
from training.alarms import sampler_alarm


@pytest.fixture
def run(project: Project, alice: User, client: Client) -> Run:
    run = make_run(project)
    fill_run(run, steps=3, groups=6)
    client.force_login(alice)
    return run


def page(client: Client, run: Run, query: str = "", split: str = "train", index: int = 1) -> str:
    answer = client.get(reverse("step-detail", args=[run.pk, split, index]) + query)
    assert answer.status_code == 200
    return answer.content.decode()


def test_groups_say_why_they_did_or_did_not_teach(client: Client, run: Run) -> None:
    text = page(client, run)
    assert text.count('class="card group"') == 6
    assert "All right: nothing left to learn here" in text and "All wrong" in text and "so it taught" in text
    assert text.count('class="rollout-line"') == 24
    assert 'data-key="["' in text and 'data-key="]"' in text


def test_an_evaluation_teaches_nothing_and_says_nothing_of_it(client: Client, run: Run) -> None:
    text = page(client, run, split="heldout", index=0)
    assert "4 of 4 correct" in text and "taught" not in text and "dead groups" not in text


@pytest.mark.parametrize(("kind", "groups"), [("dead", 2), ("live", 4), ("kept", 4), ("dropped", 2), ("nonsense", 6)])
def test_filters(client: Client, run: Run, kind: str, groups: int) -> None:
    assert page(client, run, f"?kind={kind}").count('class="card group"') == groups


def test_an_alarm_of_the_trainer_says_what_is_wrong(client: Client, run: Run) -> None:
    (event,) = sampler_alarm({"sampler_policy_gap": 0.43}, limit=0, dtype="float32")
    run.steps.filter(split="train", index=1).update(events=[event])
    text = page(client, run)
    assert "sampler-policy-gap" in text and "sampler and policy differ by 0.43 nats a token" in text
    assert "sampler-policy-gap" not in page(client, run, index=0)


def test_a_page_of_many_groups_continues_by_key(client: Client, run: Run, monkeypatch) -> None:
    monkeypatch.setattr(step_queries, "ROLLOUTS_PER_PAGE", 17)  # four groups of four
    first = page(client, run)
    assert first.count('class="card group"') == 4 and "after=3" in first
    second = page(client, run, "?after=3")
    assert 'id="group-4"' in second and 'id="group-3"' not in second and "Next groups" not in second


def test_queries_do_not_grow_with_groups(client: Client, run: Run, django_assert_num_queries) -> None:
    # Session, person; run; step of every attempt, groups, rollouts, chunks, previous and next step; role.
    with django_assert_num_queries(10):
        page(client, run)
    store_batch(make_batch(run, step=3, groups=24), source="test")
    with django_assert_num_queries(10):
        page(client, run, index=3)


def test_an_older_attempt_can_be_chosen(client: Client, run: Run) -> None:
    Attempt.objects.create(run=run, number=2)
    store_batch(make_batch(run, step=1, attempt=2, seed=5, groups=2), source="test")
    assert page(client, run).count('class="card group"') == 2
    older = page(client, run, "?attempt=1")
    assert older.count('class="card group"') == 6 and "attempt 1, superseded" in older
    assert client.get(reverse("step-detail", args=[run.pk, "train", 1]) + "?attempt=7").status_code == 404


def test_what_is_not_there_is_404_and_nothing_found_says_so(client: Client, run: Run) -> None:
    assert client.get(reverse("step-detail", args=[run.pk, "train", 99])).status_code == 404
    for split in ("elsewhere", "a\0b"):
        assert client.get(reverse("step-detail", args=[run.pk, split, 0])).status_code == 404
    Group.objects.filter(step__run=run).update(dead_cause="")
    assert "No dead group in this step" in page(client, run, "?kind=dead")


def test_hostile_text_is_text(client: Client, run: Run) -> None:
    store_batch(
        make_batch(
            run,
            step=7,
            groups=1,
            completion=[b"<script>x</script>", b"\x00\xff", "\u202eabc".encode(), b""],
            parsed_answer=[b"<b>1</b>", b"\x00", b"", None],
        ),
        source="test",
    )
    text = page(client, run, index=7)
    assert "&lt;script&gt;x&lt;/script&gt;" in text and "<script>x" not in text
    assert "⟨00⟩⟨FF⟩" in text and "⟨U+202E⟩abc" in text and "(empty completion)" in text
    assert "\x00" not in text and "\u202e" not in text


def rollout(answer: str | None, correct: bool | None = False, stop: StopReason = StopReason.STOP) -> Rollout:
    return Rollout(parsed_answer=answer, correct=correct, reward=float(bool(correct)), stop_reason=stop)


@pytest.mark.parametrize(
    ("cause", "rollouts", "words"),
    [
        ("", [rollout("1", True), rollout("2")], "1 of 2 correct: the rewards differ, so it taught"),
        ("", [rollout("1", True)] * 2, "2 of 2 correct: it taught by its reward alone"),
        ("single", [rollout("1")], "One rollout only: nothing to compare it with"),
        ("all_right", [rollout("1", True)] * 2, "All right: nothing left to learn here"),
        ("all_wrong", [rollout("7")] * 3, "All wrong: one wrong answer 3 times"),
        ("all_wrong", [rollout("7"), rollout("8"), rollout(None)], "All wrong: 2 different answers"),
        ("all_wrong", [rollout(None)] * 2, "All wrong: no answer could be read"),
        (
            "all_wrong",
            [rollout(None, stop=StopReason.LENGTH)] * 2,
            "No signal: every rollout was cut at the token limit",
        ),
        ("all_wrong", [rollout(None, stop=StopReason.ERROR)] * 2, "No signal: every rollout ended in an error"),
        ("same_score", [rollout("7"), rollout("8")], "No signal: every rollout got the same partial reward"),
        ("", [], "No rollout of this group is stored"),
    ],
)
def test_headline_names_the_first_cause_that_fits(cause: str, rollouts: list[Rollout], words: str) -> None:
    assert headline(Group(dead_cause=cause, kept=True), rollouts, teaches=True) == words


def test_equal_answers_are_one_cluster() -> None:
    found = clusters([rollout(a, a == "5") for a in ["7", "5", None, "5", "7", "5"]])
    assert [(c.answer, c.count, c.correct) for c in found] == [("5", 3, True), ("7", 2, False), (None, 1, False)]
