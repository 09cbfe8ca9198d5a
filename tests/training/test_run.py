import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file

from training import checkpoint_files, checkpoints, spool, vocabulary
from training.attempt import Attempt
from training.records import RolloutBatch
from training.run import FAILED, FINISHED, REFUSED, STOPPED, run_attempt

RUN_UID = "5f0c2d4e-8a51-4c2e-9d57-3b1f0a6c7e21"
# Clocks differ from one run to the next; nothing else may.
CLOCKS = {"cost_seconds"}
MakeRun = Callable[..., Path]


def attempt(folder: Path, number: int = 1, *, resume: bool = False) -> int:
    return run_attempt(Attempt(folder, number), RUN_UID, is_resume=resume, draws_bar=False)


def status(folder: Path, number: int = 1) -> dict[str, Any]:
    return dict(json.loads((folder / "attempts" / str(number) / "status.json").read_text()))


def batches(folder: Path) -> list[RolloutBatch]:
    return [RolloutBatch.from_bytes(path.read_bytes(), where=path.name) for path in spool.waiting(folder / "spool")]


def metrics(batch: RolloutBatch) -> dict[str, float]:
    names, values = batch.metrics["name"].to_pylist(), batch.metrics["value"].to_pylist()
    return dict(zip(names, values, strict=True))


def content(batch: RolloutBatch) -> str:
    """A digest of all that a batch says, without clocks."""
    said = {name: value for name, value in metrics(batch).items() if not name.startswith("seconds_")}
    rollouts = batch.rollouts.drop_columns(list(CLOCKS))
    return repr((said, rollouts.to_pylist(), batch.groups.to_pylist(), batch.reward_spans.to_pylist()))


def current(folder: Path) -> dict[tuple[str, int], str]:
    """What is current of each split and step: the newest attempt's."""
    return {(batch.header.split, batch.header.step): content(batch) for batch in batches(folder)}


def test_the_running_baseline_goes_on_where_the_checkpoint_was(make_run: MakeRun) -> None:
    folder = make_run(steps=4, top="algorithm = 'reinforce'", tables="[task]\nname = 'natbool_dag'")
    assert attempt(folder) == FINISHED
    first = {batch.header.step: batch for batch in batches(folder) if batch.header.split == "train"}
    # The baseline starts at 0 and has moved by the last step, so that advantages are no longer rewards.
    rewards, advantages = (first[0].rollouts[name].to_pylist() for name in ("reward", "advantage"))
    assert advantages == pytest.approx(rewards)
    baseline = 0.0
    for step in range(3):
        baseline = 0.95 * baseline + 0.05 * metrics(first[step])["reward_mean"]
    assert baseline > 0
    expected = [reward - baseline for reward in first[3].rollouts["reward"].to_pylist()]
    assert first[3].rollouts["advantage"].to_pylist() == pytest.approx(expected)
    shutil.rmtree(folder / "checkpoints" / "step-00000004")
    assert attempt(folder, 2, resume=True) == FINISHED
    again = [batch for batch in batches(folder) if (batch.header.attempt, batch.header.split) == (2, "train")]
    assert [batch.header.step for batch in again] == [3]
    assert content(again[0]) == content(first[3])


def test_dynamic_sampling_fills_the_step_and_stores_what_it_turned_down(make_run: MakeRun) -> None:
    folder = make_run(steps=3, top="algorithm = 'dapo'", tables="[task]\nname = 'modular_arithmetic'")
    assert attempt(folder) == FINISHED
    sampled = 0
    for batch in (one for one in batches(folder) if one.header.split == "train"):
        groups, rollouts, found = batch.groups.to_pylist(), batch.rollouts.to_pylist(), metrics(batch)
        kept = [group["index"] for group in groups if group["kept"]]
        assert len(kept) == 3 == found["prompts_kept"]
        assert found["prompts_sampled"] == len(groups)
        assert len(rollouts) == 4 * len(groups)
        for group in groups:
            rows = [row for row in rollouts if row["group"] == group["index"]]
            assert [row["number"] for row in rows] == [0, 1, 2, 3]
            assert (len({row["correct"] for row in rows}) == 2) == group["kept"]
            assert {row["drop_reason"] for row in rows} == {None if group["kept"] else "not_mixed"}
            assert all((sum(row["loss_mask"]) > 0) == group["kept"] for row in rows)
        # Further prompts are further tasks, and a round has a seed of its own.
        assert len({group["task_seed"] for group in groups}) == len(groups)
        assert (len({row["seed"] for row in rollouts}) > 1) == (len(groups) > 3)
        # Policy and sampler still agree on every token, so no row was mixed up when rounds were joined.
        assert found["sampler_policy_gap"] < 1e-4
        sampled += len(groups)
    assert sampled > 9


def test_dynamic_sampling_trains_on_what_there_is_when_its_rounds_are_used_up(make_run: MakeRun) -> None:
    knobs = "[algorithm_params]\nextra_rounds = 1\n[task]\nname = 'reversal'\nparams = {length = 5}"
    folder = make_run(steps=1, top="algorithm = 'dapo'", tables=knobs)
    assert attempt(folder) == FINISHED
    (batch,) = (one for one in batches(folder) if one.header.split == "train")
    found = metrics(batch)
    assert (found["prompts_sampled"], found["prompts_kept"], found["tokens_trained"]) == (6.0, 0.0, 0.0)
    assert set(batch.rollouts["drop_reason"].to_pylist()) == {"not_mixed"}
    assert [event["kind"] for event in batch.header.events] == ["no-update"]


def test_what_an_algorithm_leaves_out_is_stored_with_the_reason(make_run: MakeRun) -> None:
    folder = make_run(steps=1, top="algorithm = 'nsr'", tables="[task]\nname = 'natbool_dag'")
    assert attempt(folder) == FINISHED
    (trained,) = (batch for batch in batches(folder) if batch.header.split == "train")
    columns = (trained.rollouts[name].to_pylist() for name in ("correct", "kept", "drop_reason"))
    found = set(zip(*columns, strict=True))
    assert found == {(True, False, "unselected"), (False, True, None)}
    causes = trained.groups["dead_cause"].to_pylist()
    assert set(causes) <= {"", "all_right"}


def test_a_run_writes_a_batch_a_step_and_an_evaluation_on_schedule(make_run: MakeRun) -> None:
    folder = make_run(steps=5)
    assert attempt(folder) == FINISHED
    order = [(batch.header.split, batch.header.step) for batch in batches(folder)]
    assert order == [
        ("heldout", 0),
        ("train", 0),
        ("train", 1),
        ("train", 2),
        ("train", 3),
        ("heldout", 4),
        ("train", 4),
        ("heldout", 5),
    ]
    found = status(folder)
    assert (found["state"], found["step"], found["steps"], found["rollouts"]) == ("finished", 5, 5, 60)
    assert found["error"] is None
    assert [one["step"] for one in found["checkpoints"]] == [3, 5]
    assert found["plugins"]["H7"] == ["clipped"]
    assert found["hardware"]["threads"] == 1
    assert vocabulary.unpack((folder / vocabulary.FILE_NAME).read_bytes())[1] == b"<eos>"


def test_the_time_of_recording_counts_what_the_loop_waits_for_and_not_what_the_writer_waits_for_beside_it(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_fsync(descriptor: int) -> None:
        time.sleep(0.1)

    monkeypatch.setattr("training.spool.os.fsync", slow_fsync)
    folder = make_run(steps=2, tables="")
    assert attempt(folder) == FINISHED
    last = [batch for batch in batches(folder) if batch.header.split == "train"][-1]
    seconds = dict(zip(*last.metrics.to_pydict().values(), strict=True))
    assert seconds["seconds_write"] >= 0.1
    assert seconds["seconds_write_cpu"] < 0.1
    # The step is much shorter than the disk is slow: the loop was held up for most of it.
    assert seconds["seconds_record"] > seconds["seconds_write_cpu"] + 0.02
    assert seconds["seconds_record"] < seconds["seconds_step"]


def test_every_recorded_number_is_the_one_that_was_used(make_run: MakeRun) -> None:
    folder = make_run(steps=2, tables="")
    attempt(folder)
    batch = next(batch for batch in batches(folder) if batch.header.split == "train")
    rollouts = batch.rollouts.to_pylist()
    spans = batch.reward_spans.to_pylist()
    assert len(rollouts) == 12
    assert any(rollout["advantage"] for rollout in rollouts)
    for row, rollout in enumerate(rollouts):
        count = len(rollout["token_ids"])
        for column in ("sampler_logprobs", "policy_logprobs", "entropy", "token_advantages", "loss_mask", "clip_flag"):
            assert len(rollout[column]) == count
        assert rollout["policy_logprobs"] == pytest.approx(rollout["sampler_logprobs"], abs=2e-5)
        assert rollout["token_advantages"] == pytest.approx([rollout["advantage"]] * count)
        assert rollout["loss_mask"] == [1] * count
        assert rollout["origin"] == [2] * count
        assert rollout["token_policy_version"] == [0] * count
        assert rollout["reward"] == sum(span["value"] for span in spans if span["rollout"] == row)
        assert (rollout["stop_reason"] == "stop") == (rollout["token_ids"][-1] == 1)
        assert rollout["group"] == row // 4
        assert rollout["number"] == row % 4
    for group in batch.groups.to_pylist():
        members = [rollout for rollout in rollouts if rollout["group"] == group["index"]]
        rewards = np.array([rollout["reward"] for rollout in members])
        assert (group["size_asked"], group["size_got"]) == (4, 4)
        assert group["reward_mean"] == pytest.approx(rewards.mean())
        assert group["reward_std"] == pytest.approx(rewards.std(ddof=1))
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        assert [rollout["advantage"] for rollout in members] == pytest.approx(list(expected), abs=1e-9)
        assert group["success_share"] == pytest.approx(rewards.mean())
        assert json.loads(group["oracle_trace"])[-1]["text"] == group["answer"].decode()
        assert group["prompt"].decode()[-1] == "="


def test_the_same_seed_gives_the_same_rollouts_and_losses_bit_for_bit(make_run: MakeRun) -> None:
    first, second, other = make_run("first"), make_run("second"), make_run("other", top="seed = 1")
    for folder in (first, second, other):
        assert attempt(folder) == FINISHED
    assert current(first) == current(second)
    assert current(first)["train", 0] != current(other)["train", 0]
    asked = [[group["prompt"] for group in batches(folder)[0].groups.to_pylist()] for folder in (first, other)]
    assert asked[0] == asked[1]


def test_a_stop_saves_a_checkpoint_and_a_resume_goes_on_as_if_nothing_had_happened(make_run: MakeRun) -> None:
    whole, cut = make_run("whole", steps=6), make_run("cut", steps=6)
    assert attempt(whole) == FINISHED
    assert any(metrics(batch).get("grad_norm") for batch in batches(whole))
    first = Attempt(cut, 1)
    stop_after(first, cut, 2)
    assert run_attempt(first, RUN_UID, is_resume=False, draws_bar=False) == STOPPED
    assert status(cut)["state"] == "stopped"
    assert status(cut)["last_checkpoint"] == 2
    assert attempt(cut, 2, resume=True) == FINISHED
    assert status(cut, 2)["resumed_from_step"] == 2
    assert current(cut) == current(whole)


def test_a_stop_right_after_a_checkpoint_leaves_it_alone(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, saved, save = make_run(steps=6), [], checkpoints.save

    def counting(*args: Any, step: int, **rest: Any) -> Any:
        saved.append(step)
        return save(*args, step=step, **rest)

    monkeypatch.setattr(checkpoints, "save", counting)
    for number in (1, 2):  # the second is stopped before its first step
        one = Attempt(folder, number)
        stop_after(one, folder, 3)
        assert run_attempt(one, RUN_UID, is_resume=number > 1, draws_bar=False) == STOPPED
        assert status(folder, number)["last_checkpoint"] == 3
    assert saved == [3]


def test_a_checkpoint_waits_until_the_spool_keeps_the_names_of_its_steps(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(steps=6)
    kept: set[str] = set()
    claimed = []
    fsync_folder, save = spool.fsync_folder, checkpoints.save

    def keeping(of: Path) -> None:
        fsync_folder(of)
        if of == folder / "spool":
            kept.update(path.name[:15] for path in spool.waiting(of))

    def saving(*args: Any, step: int, **rest: Any) -> Any:
        claimed.append((step, sorted(kept)))
        return save(*args, step=step, **rest)

    monkeypatch.setattr(spool, "fsync_folder", keeping)
    monkeypatch.setattr(checkpoints, "save", saving)
    assert attempt(folder) == FINISHED
    names = ["0001-00000000-0", *(f"0001-{step:08d}-1" for step in range(6))]
    assert claimed == [(3, names[:4]), (6, sorted([*names, "0001-00000004-0"]))]
    assert len(kept) == 9


def test_half_a_batch_of_a_killed_trainer_is_cleared_away(make_run: MakeRun) -> None:
    folder = make_run(steps=1)
    half = folder / "spool" / "0001-00000007-1-x.batch.part"
    half.parent.mkdir()
    half.write_bytes(b"half")
    assert attempt(folder, 2, resume=True) == FINISHED
    assert not half.exists()


def stop_after(attempt: Attempt, folder: Path, steps: int) -> None:
    """Ask for a stop as soon as the attempt says that many steps are done."""
    report = attempt.report

    def watching(**changes: Any) -> None:
        report(**changes)
        if changes.get("step") == steps:
            (attempt.folder / "control").write_text("stop")

    attempt.report = watching  # type: ignore[method-assign]


def start(folder: Path, number: int, *, resume: bool, **popen: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "training.run", "--run-dir", str(folder), "--run-uid", RUN_UID]
    command += ["--attempt", str(number), *(["--resume"] if resume else [])]
    with open(folder / f"log-{number}.txt", "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}, **popen)


def kill_and_resume(whole: Path, cut: Path, *, kills: int, rng: random.Random) -> None:
    """Kill -9 at random instants, resume each time, and compare with a run that was never killed."""
    for number in range(1, kills + 1):
        process = start(cut, number, resume=number > 1)
        before = len(list((cut / "spool").glob("*.batch"))) if (cut / "spool").exists() else 0
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if len(list((cut / "spool").glob("*.batch"))) > before + rng.randrange(4):
                break
            time.sleep(0.002)
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.wait()
        newest = checkpoint_files.newest_intact(cut / "checkpoints")
        written = {step for split, step in current(cut) if split == "train"}
        # A checkpoint never claims a step whose rollouts are not safe.
        assert newest is None or set(range(newest.step)) <= written
    assert attempt(cut, kills + 1, resume=True) == FINISHED
    assert current(cut) == current(whole)
    assert not list(cut.rglob("*.part"))


def test_a_run_killed_at_any_instant_resumes_to_the_same_steps(make_run: MakeRun) -> None:
    whole, cut = make_run("whole", steps=40), make_run("cut", steps=40)
    assert attempt(whole) == FINISHED
    kill_and_resume(whole, cut, kills=2, rng=random.Random())


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_fifty_kills_at_random_instants(make_run: MakeRun) -> None:
    whole, cut = make_run("whole", steps=400), make_run("cut", steps=400)
    assert attempt(whole) == FINISHED
    kill_and_resume(whole, cut, kills=50, rng=random.Random())


def test_a_sigterm_stops_at_the_next_step_with_a_checkpoint(make_run: MakeRun) -> None:
    folder = make_run(steps=100_000)
    process = start(folder, 1, resume=False)
    while not list(folder.glob("spool/*-1-*.batch")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == STOPPED
    found = status(folder)
    assert found["state"] == "stopped"
    assert found["last_checkpoint"] == found["step"] > 0
    written = [batch.header.step for batch in batches(folder) if batch.header.split == "train"]
    assert written == list(range(found["step"]))


@pytest.mark.parametrize(
    ("top", "key", "said"),
    [
        ("stepz = 3", "stepz", "did you mean steps?"),
        ("algorithm = 'grpoo'", "algorithm", "did you mean grpo?"),
        ("threads = -1", "threads", "at least 0"),
    ],
)
def test_a_configuration_that_cannot_run_is_refused(make_run: MakeRun, top: str, key: str, said: str) -> None:
    folder = make_run(top=top) if "threads" not in top else make_run()
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("threads = 1", top if "threads" in top else "threads = 1"))
    assert attempt(folder) == REFUSED
    found = status(folder)
    assert found["state"] == "failed"
    assert found["error"]["type"] == "ConfigError"
    assert found["error"]["where"] == key
    assert said in found["reason"]
    assert not (folder / "spool").exists()


def test_a_model_folder_that_is_none_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(model=str(tmp_path))
    assert attempt(folder) == REFUSED
    assert status(folder)["error"]["where"] == "model.path"


def test_prompts_that_leave_no_room_are_refused(make_run: MakeRun, model_folder: Path) -> None:
    folder = make_run(model=str(model_folder))
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("max_new_tokens = 6", "max_new_tokens = 125"))
    assert attempt(folder) == REFUSED
    found = status(folder)
    assert found["error"]["where"] == "sampling.max_new_tokens"
    assert (
        "a prompt of 6 tokens and 125 new ones do not fit the model's context of 128; lower it to 122"
        in found["reason"]
    )
    assert not (folder / "spool").exists()


def test_weights_that_are_not_finite_stop_the_run_and_name_the_step(
    make_run: MakeRun, model_folder: Path, tmp_path: Path
) -> None:
    broken = shutil.copytree(model_folder, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][0] = torch.nan
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    folder = make_run(model=str(broken))
    assert attempt(folder) == FAILED
    assert status(folder)["reason"] == "SamplingError after 0 steps: logits of the sampler are not finite at token 0"
    assert batches(folder) == []


def test_a_batch_that_cannot_be_written_stops_the_run_before_a_checkpoint_claims_it(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = spool.write_bytes

    def fails(path: Path, data: bytes) -> None:
        if "00000002-1-" in path.name:
            raise OSError(28, "No space left on device", str(path))
        write(path, data)

    monkeypatch.setattr(spool, "write_bytes", fails)
    folder = make_run(steps=9)
    assert attempt(folder) == FAILED
    assert "is full" in status(folder)["reason"]
    assert checkpoint_files.newest_intact(folder / "checkpoints") is None
    assert [batch.header.step for batch in batches(folder) if batch.header.split == "train"] == [0, 1]


def test_shuffled_rewards_keep_the_verdicts_and_say_so(make_run: MakeRun) -> None:
    plain, control = make_run("plain", steps=1), make_run("control", steps=1, top="shuffle_rewards = true")
    attempt(plain)
    attempt(control)
    ours, theirs = (next(b for b in batches(folder) if b.header.split == "train") for folder in (control, plain))
    assert ours.rollouts["correct"] == theirs.rollouts["correct"]
    assert sorted(ours.rollouts["reward"].to_pylist()) == sorted(theirs.rollouts["reward"].to_pylist())
    assert set(ours.reward_spans["name"].to_pylist()) == {"shuffled"}


def test_truncated_completions_can_be_left_out_of_the_loss(make_run: MakeRun, model_folder: Path) -> None:
    # An untrained model rarely ends by itself.
    folder = make_run(steps=1, top="truncated = 'mask'", model=str(model_folder))
    attempt(folder)
    batch = next(b for b in batches(folder) if b.header.split == "train")
    cut = [rollout for rollout in batch.rollouts.to_pylist() if rollout["stop_reason"] == "length"]
    assert cut
    for rollout in cut:
        assert rollout["loss_mask"] == [0] * 6
        assert (rollout["kept"], rollout["drop_reason"]) == (False, "truncated")
        assert rollout["clip_flag"] == [3] * 6


def test_a_reference_gives_its_logprobs_and_the_kl(make_run: MakeRun) -> None:
    folder = make_run(steps=2, tables="[algorithm_params]\nkl_coefficient = 0.1\n")
    attempt(folder)
    first, second = (b for b in batches(folder) if b.header.split == "train")
    assert metrics(first)["ref_kl_k3"] == pytest.approx(0, abs=1e-6)
    assert metrics(second)["ref_kl_k3"] >= 0
    flat = pa.compute.list_flatten(second.rollouts["ref_logprobs"])
    assert len(flat) == len(pa.compute.list_flatten(second.rollouts["token_ids"]))
