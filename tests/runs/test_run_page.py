from dataclasses import replace
from pathlib import Path

import pytest
from django.db.models import Sum
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Member, Project, Role, User
from rlviewer.ingest.models import Batch
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Attempt, Run
from rlviewer.runs.queries import run as queries
from tests.factories import fill_run, make_batch, make_run, make_user
from tests.figures import figures

HX = {"HX-Request": "true"}


@pytest.fixture
def run(project: Project) -> Run:
    run = make_run(project, "countdown", steps_planned=8, state="running")
    fill_run(run, steps=4)
    return run


def get(client: Client, run: Run, query: str = "", **extra: str) -> str:
    answer = client.get(reverse("run-detail", args=[run.pk]) + query, **extra)
    assert answer.status_code == 200
    return answer.content.decode()


def test_a_member_sees_state_numbers_curves_and_newest_rollouts(client: Client, bob: User, run: Run) -> None:
    client.force_login(bob)
    page = get(client, run)
    assert "4 of 8 steps" in page and "Stop run" in page and "Pause" in page
    drawn = figures(page)
    assert drawn["reward"]["data"][0]["x"] == [0, 1, 2, 3]
    assert [trace["name"] for trace in drawn["pass"]["data"]] == ["pass@1", "pass@4", "training", "events"]
    assert drawn["pass"]["data"][-1]["text"] == ["evaluation", "evaluation"]
    assert "truncated" not in drawn and "Truncated completions" in page  # named as not recorded
    assert page.count('class="rollout-line"') == 12
    assert f'data-live-url="/ws/runs/{run.pk}/"' in page


def test_a_viewer_reads_and_a_stranger_gets_404(client: Client, charlie: User, project: Project, run: Run) -> None:
    viewer = make_user("viewer")
    Member.objects.create(project=project, user=viewer, role=Role.VIEWER)
    client.force_login(viewer)
    page = get(client, run)
    assert "Stop run" not in page and "title-input" not in page
    for name in ("run-rename", "run-tags"):
        assert client.post(reverse(name, args=[run.pk]), {"name": "x", "tags": "x"}).status_code == 403
    client.force_login(charlie)
    rollout = run.steps.get(split="train", index=0).rollouts.first()
    addresses = [
        reverse("run-detail", args=[run.pk]),
        reverse("step-detail", args=[run.pk, "train", 0]),
        reverse("rollout-list", args=[run.pk]),
        reverse("rollout-detail", args=[rollout.pk]),
        reverse("rollout-raw", args=[rollout.pk, "text"]),
    ]
    assert [client.get(address).status_code for address in addresses] == [404] * 5
    assert client.post(reverse("run-rename", args=[run.pk]), {"name": "mine"}).status_code == 404
    client.logout()
    for address in addresses:
        answer = client.get(address)
        assert answer.status_code == 302 and answer.headers["Location"].startswith("/sign-in/")
    run.refresh_from_db()
    assert run.name == "countdown"


def test_a_run_that_ended_before_its_first_step_promises_nothing(client: Client, alice: User, project: Project) -> None:
    client.force_login(alice)
    run = make_run(project, state="failed", state_reason="killed")
    for tab, words in {
        "overview": "No rollout was stored",
        "steps": "No step was stored",
        "evaluation": "No evaluation was stored",
    }.items():
        page = get(client, run, f"?tab={tab}")
        assert words in page and " yet</h2>" not in page and f'href="/runs/{run.pk}/?tab=log"' in page, tab
    page = client.get(reverse("rollout-list", args=[run.pk])).content.decode()
    assert "No rollout was stored" in page


def test_refused_rollouts_are_told_on_every_view(client: Client, alice: User, run: Run) -> None:
    client.force_login(alice)
    assert " refused</a>" not in get(client, run)
    store_batch(make_batch(run, step=9, stop_reason=["nonsense"] * 3 + ["stop"] * 13), source="test")
    assert f'href="/runs/{run.pk}/?tab=steps#ledger-title">3 refused</a>' in get(client, run, "?tab=config")


def test_a_run_without_steps_says_what_will_come(client: Client, alice: User, project: Project) -> None:
    client.force_login(alice)
    run = make_run(project)
    for tab, words in {
        "overview": "Waits for a free worker",
        "steps": "No step yet",
        "evaluation": "No evaluation yet",
        "config": "written by another trainer",
        "log": "No log on this host",
    }.items():
        assert words in get(client, run, f"?tab={tab}"), tab
    assert client.get(reverse("run-detail", args=[run.pk]) + "?tab=nonsense").status_code == 404
    assert client.get(reverse("run-detail", args=[10**9])).status_code == 404


def test_fragments_hold_only_their_part(client: Client, alice: User, run: Run) -> None:
    client.force_login(alice)
    live = get(client, run, "?part=live", headers=HX)
    assert live.lstrip().startswith('<div id="run-live"') and "<html" not in live
    assert "data-placeholder" in live and 'class="rollout-line"' not in live
    assert figures(live)["reward"]["data"][0]["x"] == [0, 1, 2, 3]
    newest = get(client, run, "?part=newest", headers=HX)
    assert newest.count('class="rollout-line"') == 12 and "chart-grid" not in newest
    assert "<html" in get(client, run, "?part=live")  # opened in a tab of its own, it is the page


def test_the_number_of_queries_does_not_grow_with_the_run(
    client: Client, alice: User, bob: User, run: Run, project: Project, django_assert_num_queries
) -> None:
    client.force_login(bob)
    address = reverse("run-detail", args=[run.pk])
    # Session, person; run, role, curves, attempts, refused rows, checkpoints, events, counts, causes of dead groups.
    with django_assert_num_queries(11):
        client.get(f"{address}?part=live", headers=HX)
    # Session, person; run; rollouts, their chunks, their prompts.
    with django_assert_num_queries(6):
        client.get(f"{address}?part=newest", headers=HX)
    for step in range(4, 12):
        store_batch(make_batch(run, step=step, groups=8), source="test")
    with django_assert_num_queries(12):  # steps of different sizes are counted one by one
        client.get(f"{address}?part=live", headers=HX)
    with django_assert_num_queries(6):
        client.get(f"{address}?part=newest", headers=HX)


def test_a_later_attempt_is_marked_and_its_points_count(client: Client, alice: User, run: Run) -> None:
    Attempt.objects.create(run=run, number=2, resumed_from_step=2, state="running")
    store_batch(make_batch(run, step=2, attempt=2, seed=9), source="test")
    client.force_login(alice)
    page = get(client, run)
    reward = figures(page)["loss"]
    assert [trace["name"] for trace in reward["data"]] == ["loss", "loss, attempt 1", "events"]
    assert reward["data"][1]["x"] == [2]
    assert reward["layout"]["shapes"][0]["x0"] == 2
    assert "from checkpoint 2" in page


def test_stats_judge_and_say_why_a_number_is_missing(client: Client, alice: User, run: Run) -> None:
    client.force_login(alice)
    page = get(client, run)
    assert "not recorded by this source" in page  # sampler-policy gap
    assert " points" in page and "mostly all" in page
    assert "Mean of the newest 5 steps: fine below" in page


def test_evaluation_lists_checkpoints_and_changed_prompts(client: Client, alice: User, project: Project) -> None:
    run = make_run(project)
    store_batch(make_batch(run, split="heldout", step=0), source="test")
    store_batch(make_batch(run, split="heldout", step=5, seed=0), source="test")
    client.force_login(alice)
    page = get(client, run, "?tab=evaluation")
    assert "0, the base model" in page and "pass@4" in page
    assert reverse("step-detail", args=[run.pk, "heldout", 5]) in page


def test_prompts_gained_and_lost_compare_first_and_newest(client: Client, alice: User, project: Project) -> None:
    run = make_run(project)

    def evaluate(step: int, right: str) -> None:
        correct = [mark == "1" for mark in right]
        # The arguments that choose the prompts stay the same, the step is put in afterwards.
        batch = make_batch(run, split="heldout", correct=correct, reward=[float(c) for c in correct])
        header = replace(batch.header, step=step, batch_id=f"00000000-0000-0000-0000-00000000000{step}")
        store_batch(replace(batch, header=header), source="test")

    evaluate(0, "1111000010000000")
    evaluate(5, "1111111100001000")
    client.force_login(alice)
    page = get(client, run, "?tab=evaluation")
    assert "2 prompts gained, 1 lost, 1 unchanged" in page
    assert page.index("+100.0") < page.index("+25.0") < page.index("−25.0")


def test_config_is_shown_as_it_was_written(client: Client, alice: User, project: Project) -> None:
    toml = 'name = "<b>"\nsteps = 3\n'
    run = make_run(
        project,
        config_toml=toml,
        plugins={"H1": {"name": "group_mean", "version": "2"}, "H5": ["a", "b"]},
        hardware={"cpu": "2"},
    )
    client.force_login(alice)
    page = get(client, run, "?tab=config")
    assert "name = &quot;&lt;b&gt;&quot;\nsteps = 3" in page and "group_mean 2" in page and ">a, b<" in page


def test_log_shows_the_asked_attempt_escaped(client: Client, alice: User, run: Run, settings, tmp_path: Path) -> None:
    settings.HOME = tmp_path
    folder = tmp_path / "runs" / str(run.uid) / "attempts" / "1"
    folder.mkdir(parents=True)
    (folder / "log.txt").write_text("<script>alert(1)</script>\n")
    client.force_login(alice)
    page = get(client, run, "?tab=log")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    # Only a number of this run's own attempts is ever used.
    assert "&lt;script&gt;alert(1)" in get(client, run, "?tab=log&attempt=../../../1")
    assert "&lt;script&gt;alert(1)" in get(client, run, "?tab=log&attempt=999")


def test_renaming_and_tagging(client: Client, bob: User, run: Run) -> None:
    client.force_login(bob)
    client.post(reverse("run-rename", args=[run.pk]), {"name": "<i>new</i>"})
    client.post(reverse("run-tags", args=[run.pk]), {"tags": "a, b ,a"})
    page = get(client, run)
    assert 'value="&lt;i&gt;new&lt;/i&gt;"' in page and '<span class="chip outline">b</span>' in page
    client.post(reverse("run-rename", args=[run.pk]), {"name": " "})
    assert "A run needs a name." in get(client, run)
    assert client.get(reverse("run-rename", args=[run.pk])).status_code == 405


def test_steps_are_paged_by_key(client: Client, alice: User, run: Run, monkeypatch) -> None:
    monkeypatch.setattr(queries, "STEPS_PER_PAGE", 3)
    client.force_login(alice)
    first = get(client, run, "?tab=steps")
    assert "Step 3" in first and "Step 1" in first and "Step 0" not in first and "before=1" in first
    second = get(client, run, "?tab=steps&before=1")
    assert "Step 0" in second and "Older steps" not in second


def test_evaluations_checkpoints_and_events_are_ticks_on_the_axis(client: Client, alice: User, run: Run) -> None:
    attempt = run.attempts.get()
    run.checkpoints.create(attempt=attempt, step=2, size_bytes=1)
    run.checkpoints.create(attempt=attempt, step=1, size_bytes=1, is_deleted=True)
    run.steps.filter(split="train", index=2).update(events=[{"kind": "no-update", "reason": "x"}])
    run.steps.filter(split="train", index=3).update(events=[{"kind": "<a href='//x'>&\u202e" + "y" * 100}])
    client.force_login(alice)
    ticks = figures(get(client, run))["reward"]["data"][-1]
    told = dict(zip(ticks["x"], ticks["text"], strict=True))
    # Plotly takes its texts for HTML.
    assert told.pop(3).startswith("&lt;a href='//x'&gt;&amp;⟨U+202E⟩yy")
    assert told == {0: "evaluation", 2: "checkpoint, no-update", 4: "evaluation"}


def test_the_steps_tab_tells_what_became_of_every_rollout(client: Client, alice: User, run: Run) -> None:
    client.force_login(alice)
    page = " ".join(get(client, run, "?tab=steps").split())
    run.refresh_from_db()
    assert run.rollout_count == Batch.objects.aggregate(all=Sum("received"))["all"]
    assert f"{run.rollout_count} received in {Batch.objects.count()} batches" in page
    assert f"{run.rollout_count} stored, 0 refused, 0 parked" in page
    assert "why it was refused" not in page
    # The third row of group 1 claims its second row's number.
    store_batch(make_batch(run, step=9, number=[0, 1, 2, 3, 0, 1, 1, 3, *[0, 1, 2, 3] * 2]), source="test")
    page = get(client, run, "?tab=steps")
    assert "1 refused, 0 parked" in page
    assert "number 1 appears twice in group row 1" in page
    assert "Step 9" in page


def test_each_number_of_the_strip_leads_to_a_page_behind_it(client: Client, alice: User, run: Run) -> None:
    client.force_login(alice)
    page = client.get(reverse("run-detail", args=[run.pk]))
    addresses = [reverse("signal-page", args=[run.pk, stat.behind]) for stat in page.context["stats"]]
    assert len(addresses) == 6
    for address in addresses:
        assert f'href="{address}"' in page.content.decode()
        assert client.get(address).status_code == 200
