"""Judging anew from the page, who may name what, and the registry."""

import threading
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import User
from rlviewer.counterfactual import jobs, worker
from rlviewer.counterfactual.models import Replay, RewardDefinition, RewardNote
from rlviewer.counterfactual.replayer import Replayer
from rlviewer.counterfactual.rewards import judges, keep_definitions
from rlviewer.runs.models import Run, Step
from training.tasks.addition import FAMILY
from training.tasks.stream import make_task

pytestmark = pytest.mark.timeout(240)


def post(client: Client, address: str, owner: int, **said: str) -> int:
    return client.post(reverse(address, args=[owner]), said).status_code


def test_a_task_that_cannot_be_made_again_is_said(
    client: Client, alice: User, run: Run, step: Step, replayer: Replayer
) -> None:
    client.force_login(alice)
    page = reverse("rescore", args=[run.pk])
    assert "Not judged anew yet" in client.get(page).content.decode()
    assert post(client, "rescore-ask", run.pk, step="0", rewards="task,unparsable_penalty") == 302
    worker.do(jobs.take(), replayer, threading.Event())
    said = client.get(page, {"step": 0, "rewards": "task,unparsable_penalty"}).content.decode()
    assert "cannot be made again by addition" in said


def test_from_asking_to_the_changes(client: Client, alice: User, run: Run, step: Step, replayer: Replayer) -> None:
    """Prompts of the step as the family makes them, so that its checker judges the stored texts."""
    for group in step.groups.select_related("prompt"):
        task = make_task(FAMILY, {"digits": 2, "terms": 2}, group.task_seed)
        group.prompt.text, group.prompt.answer = task.prompt.encode(), task.answer.encode()
        group.prompt.parameters = task.params
        group.prompt.save()
    client.force_login(alice)
    asked = {"step": "0", "rewards": "task,unparsable_penalty"}
    assert post(client, "rescore-ask", run.pk, **asked) == 302
    assert "Waiting for a" in client.get(reverse("rescore", args=[run.pk]), asked).content.decode()
    worker.do(jobs.take(), replayer, threading.Event())
    row = Replay.objects.get()
    assert (row.error, row.measures["errors"]) == ("", {})
    # The factory's texts end in a line of words, so none has an answer that can be read.
    assert row.measures["reward_now"] == -1 and row.measures["reward_lower"] == 16
    said = client.get(reverse("rescore", args=[run.pk]), asked).content.decode()
    assert said.count('href="/rollouts/') >= 16
    names = set(RewardDefinition.objects.values_list("name", flat=True))
    assert names == {"task", "unparsable_penalty"}
    assert "def task_checker" in RewardDefinition.objects.get(name="task").source


def test_a_page_names_no_code_that_nobody_named_before(
    client: Client, alice: User, run: Run, step: Step, settings: Any
) -> None:
    client.force_login(alice)
    assert post(client, "rescore-ask", run.pk, step="0", rewards="os:abort") == 302
    assert not Replay.objects.exists()
    assert "os:abort" not in judges(run.project)
    settings.REWARDS = ["mine:listed"]
    Run.objects.filter(pk=run.pk).update(plugins={"H4": ["task", "mine:used"]})
    assert {"mine:listed", "mine:used"} <= set(judges(run.project))
    assert post(client, "rescore-ask", run.pk, step="0", rewards="mine:listed") == 302
    assert Replay.objects.get().rewards == '["mine:listed"]'


def test_the_registry_keeps_versions_and_notes(client: Client, bob: User, charlie: User, run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(plugins={"H4": ["task"]})
    for version in ("one", "two", "one"):
        keep_definitions(run.project_id, [{"name": "task", "version": version, "source": f"def {version}(): <b>"}])
    assert RewardDefinition.objects.count() == 2
    client.force_login(bob)
    page = reverse("project-rewards", args=[run.project_id])
    assert post(client, "reward-note", run.project_id, name="task", text="takes 046 for wrong") == 302
    assert post(client, "reward-note", run.project_id, name="nothing", text="x") == 404
    assert post(client, "reward-note", run.project_id, name="no\nheader", text="x") == 404
    assert post(client, "reward-note", run.project_id, name="no\nheader", text=" ") == 302
    said = client.get(page).content.decode()
    assert (
        "takes 046 for wrong" in said
        and "def two(): &lt;b&gt;" in said
        and reverse("run-detail", args=[run.pk]) in said
    )
    run.project.members.filter(user=bob).update(role="viewer")
    assert client.get(page).status_code == 200 and "Add note" not in client.get(page).content.decode()
    assert post(client, "reward-note", run.project_id, name="task", text="x") == 403
    client.force_login(charlie)
    assert client.get(page).status_code == 404
    assert RewardNote.objects.count() == 1
