"""From asking to what is kept: the batch that is sent, the answers of the process, whoever dies or comes twice."""

import os
import signal
import threading
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from django.utils import timezone

from rlviewer.accounts.models import User
from rlviewer.counterfactual import jobs, worker
from rlviewer.counterfactual.jobs import Question
from rlviewer.counterfactual.models import Replay, ReplayState
from rlviewer.counterfactual.replayer import Refused, Replayer
from rlviewer.counterfactual.step_batch import batch_of, earlier_rewards
from rlviewer.ingest.services import store_batch
from rlviewer.lib.child_process import ChildProcessError
from rlviewer.runs.models import Run, Step
from rlviewer.signal import sums
from tests.counterfactual.conftest import CONFIG
from tests.factories import make_batch
from training.counterfactual import Ask, outcome
from training.counterfactual_measures import columns_of, measures
from training.records import RolloutBatch
from training.stored import stored_step

pytestmark = pytest.mark.timeout(240)
NEVER = threading.Event()


def test_a_stored_step_goes_out_as_it_came_in(step: Step, batch: RolloutBatch) -> None:
    sent = batch_of(step)
    for name in ("group", "number", "completion", "reward", "correct", "kept", "drop_reason", "stop_reason",
                 "parsed_answer", "answer_cluster", "token_ids", "sampler_logprobs", "policy_logprobs", "ref_logprobs",
                 "entropy", "origin", "loss_mask"):  # fmt: skip
        assert sent.rollouts.column(name).to_pylist() == batch.rollouts.column(name).to_pylist(), name
    advantages = (one.rollouts.column("advantage").to_numpy() for one in (sent, batch))
    assert np.array_equal(*advantages, equal_nan=True)
    for name in ("index", "prompt", "prompt_ids", "generator", "answer", "task_seed", "difficulty"):
        assert sent.groups.column(name).to_pylist() == batch.groups.column(name).to_pylist(), name
    assert sent.reward_spans.column("rollout").to_pylist() == batch.reward_spans.column("rollout").to_pylist()


def test_the_answers_are_those_of_the_trainers_functions(
    step: Step, alice: User, replayer: Replayer, batch: RolloutBatch
) -> None:
    questions = [Question(), Question("gspo"), Question("grpo", {"clip_low": 0.01}), Question("ppo")]
    jobs.ask(alice, step, questions)
    jobs.ask(alice, step, questions[:2])  # twice is once
    taken = jobs.take()
    assert [row.recipe for row in taken] == ["", "gspo", "grpo", "ppo"] and jobs.take() == []
    worker.do(taken, replayer, NEVER)
    for question, row in zip(questions, Replay.objects.order_by("pk"), strict=True):
        assert (row.state, row.error) == (ReplayState.FINISHED, "")
        stored = stored_step(batch)
        found = outcome(stored, CONFIG, Ask(question.recipe or "grpo", question.constants))
        assert row.labels == {name: [label.kind, label.why] for name, label in found.labels.items()}
        told = measures(stored, found)
        parts = {name: told.pop(name, None) for name in ("woken", "died", "share_lengths")}
        assert {name: row.measures[name] for name in told} == pytest.approx(told)
        assert {name: row.measures.get(name) for name in parts} == parts
        kept, mine = sums.unpack(row.columns or b""), columns_of(stored, found)
        assert kept.keys() == mine.keys()
        for name, column in mine.items():
            np.testing.assert_allclose(kept[name], column, rtol=1e-6, atol=1e-9)
    assert Replay.objects.get(recipe="ppo").labels["advantages"][0] == "cannot say"


def test_the_process_is_sent_a_step_once(step: Step, replayer: Replayer) -> None:
    sent: list[int] = []

    def body() -> tuple[bytes, bytes]:
        sent.append(1)
        return batch_of(step).to_bytes(), b""

    request = {"config": CONFIG.to_toml(), "recipe": "grpo", "constants": {}, "rewards": [], "earlier_rewards": None}
    for _ in range(2):
        replayer.replay(f"again {step.pk}", request, body, tick=lambda: None)
    assert len(sent) == 1
    with pytest.raises(Refused, match="was not sent"):
        replayer.replay("another", request, lambda: (b"", b""), tick=lambda: None)


def test_a_step_that_grew_is_worked_out_again(step: Step, alice: User, run: Run) -> None:
    jobs.ask(alice, step, [Question("grpo")])
    assert jobs.known(step, [Question("grpo")])
    Step.objects.filter(pk=step.pk).update(rollout_count=99)
    assert jobs.known(Step.objects.get(pk=step.pk), [Question("grpo")]) == {}


def test_what_a_dead_worker_left_is_taken_up_and_given_up_in_the_end(step: Step, alice: User) -> None:
    jobs.ask(alice, step, [Question("grpo")])
    for _ in range(jobs.TRIES):
        (row,) = jobs.take()
        Replay.objects.update(heartbeat_at=timezone.now() - timedelta(seconds=2 * jobs.LOST_SECONDS))
    assert jobs.is_waiting() and jobs.take() == []
    row.refresh_from_db()
    assert row.state == ReplayState.FAILED and "given up" in row.error
    jobs.ask(alice, step, [Question("grpo")])  # tried again
    (again,) = jobs.take()
    assert not jobs.write(row, state=ReplayState.FINISHED) or again.fence == row.fence


def test_a_process_that_is_killed_fails_what_it_worked_on_and_leaves_the_rest(step: Step, alice: User) -> None:
    jobs.ask(alice, step, [Question("grpo"), Question("gspo")])
    with Replayer() as doomed:
        os.kill(doomed.pid, signal.SIGKILL)
        worker.do(jobs.take(), doomed, NEVER)
        assert not doomed.is_sound
    failed, left = Replay.objects.order_by("pk")
    assert failed.state == ReplayState.FAILED and "killed by signal 9" in failed.error
    assert left.state == ReplayState.QUEUED


def test_a_worker_that_ends_puts_back_what_it_took(step: Step, alice: User, replayer: Replayer) -> None:
    jobs.ask(alice, step, [Question("grpo")])
    ending = threading.Event()
    ending.set()
    worker.do(jobs.take(), replayer, ending)
    assert Replay.objects.get().state == ReplayState.QUEUED


def test_a_step_that_cannot_be_read_says_so(step: Step, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Step) -> RolloutBatch:
        raise ValueError("chunk 7 is damaged")

    monkeypatch.setattr(worker, "batch_of", broken)
    jobs.ask(alice, step, [Question("grpo"), Question("gspo")])
    with Replayer() as replayer:
        worker.do(jobs.take(), replayer, NEVER)
    assert [row.error for row in Replay.objects.all()] == ["ValueError: chunk 7 is damaged"] * 2


def test_rewards_of_the_steps_before(run: Run, step: Step) -> None:
    assert earlier_rewards(step) == []
    later = make_batch(run, step=2)
    store_batch(later, source="test")
    last = Step.objects.select_related("run").get(run=run, index=2)
    assert earlier_rewards(last) is None
    store_batch(make_batch(run, step=1), source="test")
    one, two = Step.objects.filter(run=run, index__lt=2).order_by("index").values_list("reward_mean", flat=True)
    assert earlier_rewards(last) == [one, two]


def test_rollouts_without_tokens_have_advantages_and_nothing_more(run: Run, batch: RolloutBatch) -> None:
    bare = batch.rollouts.select([name for name in batch.rollouts.column_names if "list" not in str(batch.rollouts.schema.field(name).type)])  # fmt: skip
    whole = RolloutBatch.from_bytes(replace(batch, rollouts=bare).to_bytes(), where="bare")
    found = outcome(stored_step(whole), CONFIG, Ask("grpo"))
    assert {name: label.kind for name, label in found.labels.items()} == {
        "advantages": "exact", "weights": "exact", "clip": "cannot say", "gradient": "cannot say"
    }  # fmt: skip
    assert found.signal is not None and found.signal.advantage.abs().sum() > 0


def test_a_process_that_was_left_in_an_answer_is_not_asked_again(step: Step) -> None:
    def leave() -> None:
        raise KeyboardInterrupt

    with Replayer() as replayer:
        with pytest.raises(KeyboardInterrupt):
            replayer.exchange(b"", lambda _: 1, tick=leave)
        assert replayer.is_sound  # it had not been asked yet
        with pytest.raises(ChildProcessError, match="ended with code"):
            replayer.exchange(b"\xff" * 64, lambda _: 1, tick=lambda: None)
        with pytest.raises(ChildProcessError, match="midst"):
            replayer.exchange(b"", lambda _: 1, tick=lambda: None)
