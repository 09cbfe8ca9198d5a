"""The page: who sees it, what it asks a worker for, and what it says before, while and after."""

import re
import threading

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from rlviewer.accounts.models import User
from rlviewer.counterfactual import jobs, worker
from rlviewer.counterfactual.jobs import Question
from rlviewer.counterfactual.models import Replay, ReplayState
from rlviewer.counterfactual.replayer import Replayer
from rlviewer.counterfactual.state import USUAL
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Run, Step
from tests.factories import make_batch

pytestmark = pytest.mark.timeout(240)
NEVER = threading.Event()


def here(run: Run) -> str:
    return reverse("counterfactual", args=[run.pk])


def text(client: Client, url: str, **extra: str) -> str:
    response = client.get(url, headers=extra)
    assert response.status_code == 200
    return re.sub(r"\s+", " ", response.content.decode())


def work_out(replayer: Replayer) -> None:
    while taken := jobs.take():
        worker.do(taken, replayer, NEVER)


def test_a_run_without_steps_says_so(client: Client, alice: User, run: Run) -> None:
    client.force_login(alice)
    assert "No step yet" in text(client, here(run))
    assert client.get(here(run), {"step": 3}).status_code == 404


def test_from_asking_to_the_numbers(client: Client, alice: User, run: Run, step: Step, replayer: Replayer) -> None:
    client.force_login(alice)
    assert "Not worked out yet" in text(client, here(run))
    answer = client.post(reverse("counterfactual-ask", args=[run.pk]), {"step": 0})
    assert answer.status_code == 302 and answer["Location"].startswith(here(run))
    assert set(Replay.objects.values_list("recipe", flat=True)) == {"", *USUAL} - {"grpo"}
    waiting = text(client, answer["Location"])
    assert "Waiting for a" in waiting and "every 1s" in waiting
    client.post(reverse("counterfactual-ask", args=[run.pk]), {"step": 0})
    assert Replay.objects.count() == len(USUAL)
    work_out(replayer)
    found = text(client, answer["Location"], HX_Request="true")
    assert "every 1s" not in found and "<html" not in found
    assert "GRPO, as the run trained" in found and "Dr. GRPO" in found
    own = Replay.objects.get(recipe="")
    assert own.state == ReplayState.FINISHED
    assert f'title="{own.measures["effective_tokens"]!r}"' in found
    chosen = text(client, f"{here(run)}?step=0&chosen=dr_grpo")
    flips = Replay.objects.get(recipe="dr_grpo").measures
    assert chosen.count('href="/groups/') >= len(flips["woken"]) + len(flips["died"]) > 0


def test_constants_are_asked_for_as_they_are_moved(
    client: Client, alice: User, run: Run, step: Step, replayer: Replayer
) -> None:
    client.force_login(alice)
    ask = reverse("counterfactual-ask", args=[run.pk])
    moved = {"step": 0, "recipes": "gspo", "chosen": "gspo", "k.clip_low": "0.01", "k.eps": "1e-06"}
    answer = client.post(ask, moved, headers={"HX-Request": "true"})
    assert answer.status_code == 200 and "k.clip_low=0.01" in answer["HX-Replace-Url"]
    assert jobs.known(step, [Question("gspo", {"clip_low": 0.01})])
    work_out(replayer)
    url = f"{here(run)}?step=0&recipes=gspo&chosen=gspo&k.clip_low=0.01"
    assert "with other constants" in text(client, url) and "As the recipe has them" in text(client, url)
    assert Replay.objects.get(constants='{"clip_low": 0.01}').measures["clip_low"] > 0
    before = Replay.objects.count()
    for value, said in (("-1", "must be at least 0"), ("much", "must be a number"), ("nan", "finite")):
        answer = client.post(ask, moved | {"k.clip_low": value}, headers={"HX-Request": "true"})
        assert said in answer.content.decode()
    assert Replay.objects.count() == before


def test_the_whole_run_is_asked_at_steps_that_lie_evenly(
    client: Client, alice: User, run: Run, step: Step, replayer: Replayer
) -> None:
    for index in range(1, 12):
        store_batch(make_batch(run, step=index, groups=2, group_size=2, tokens=4), source="test")
    client.force_login(alice)
    client.post(reverse("counterfactual-ask", args=[run.pk]), {"step": 0, "recipes": "rloo,opo", "over": "run"})
    steps = sorted(set(Replay.objects.values_list("step__index", flat=True)))
    assert len(steps) == 10 and (steps[0], steps[-1]) == (0, 11)
    work_out(replayer)
    assert "10 steps worked out" in text(client, f"{here(run)}?step=0&recipes=rloo,opo")


def test_a_viewer_reads_and_never_asks(client: Client, bob: User, charlie: User, run: Run, step: Step) -> None:
    run.project.members.filter(user=bob).update(role="viewer")
    client.force_login(bob)
    assert "Members of the project can" in text(client, here(run))
    assert client.post(reverse("counterfactual-ask", args=[run.pk])).status_code == 403
    client.force_login(charlie)
    assert client.get(here(run)).status_code == 404
    assert not Replay.objects.exists()


def test_it_takes_the_same_queries_however_many_rollouts(
    client: Client, alice: User, run: Run, step: Step, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    client.force_login(alice)
    with django_assert_max_num_queries(14):
        text(client, here(run))


def test_an_address_with_nonsense_shows_the_step(client: Client, alice: User, run: Run, step: Step) -> None:
    client.force_login(alice)
    assert "Step 0" in text(client, f"{here(run)}?step=x&recipes=none,%00&chosen=zzz&k.eps=%F0")
