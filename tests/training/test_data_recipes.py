"""Short runs of what chooses, words or judges prompts in its own way: what is stored, and that a resume changes nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from training import spool
from training.attempt import Attempt
from training.records import RolloutBatch
from training.run import FINISHED, REFUSED, run_attempt
from training.trackers import sampling_weight

RUN_UID = "5f0c2d4e-8a51-4c2e-9d57-3b1f0a6c7e21"
MakeRun = Callable[..., Path]
NATBOOL = "[task]\nname = 'natbool_dag'\npool = {pool}"


def trained(folder: Path, number: int = 1, *, resume: bool = False) -> list[RolloutBatch]:
    code = run_attempt(Attempt(folder, number), RUN_UID, is_resume=resume, draws_bar=False)
    status = json.loads((folder / "attempts" / str(number) / "status.json").read_text())
    assert code == FINISHED, status["reason"]
    return stored(folder)


def stored(folder: Path) -> list[RolloutBatch]:
    return [RolloutBatch.from_bytes(path.read_bytes(), where=path.name) for path in spool.waiting(folder / "spool")]


def steps(batches: list[RolloutBatch], split: str = "train") -> list[RolloutBatch]:
    return [batch for batch in batches if batch.header.split == split]


def metrics(batch: RolloutBatch) -> dict[str, float]:
    names, values = batch.metrics["name"].to_pylist(), batch.metrics["value"].to_pylist()
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize(
    ("algorithm", "tables"),
    [
        ("spo", NATBOOL.format(pool=12) + "\n[algorithm_params]\nprofile_samples = 2"),
        ("hardest_decile", NATBOOL.format(pool=20) + "\n[algorithm_params]\nprofile_samples = 4\nkeep_share = 0.5"),
        ("rlve_window", "[task]\nname = 'natbool_dag'\n[algorithm_params]\npromote_above = 0.0"),
        ("cbrl", "[task]\nname = 'natbool_dag'"),
    ],
)
def test_a_resumed_run_is_the_run_that_was_never_stopped(algorithm: str, tables: str, make_run: MakeRun) -> None:
    whole, cut = (make_run(name, steps=5, top=f"algorithm = '{algorithm}'", tables=tables) for name in ("whole", "cut"))
    expected = steps(trained(whole))
    stopping = Attempt(cut, 1)
    report = stopping.report

    def watching(**changes: Any) -> None:
        report(**changes)
        if changes.get("step") == 2:
            (stopping.folder / "control").write_text("stop")

    stopping.report = watching  # type: ignore[method-assign]
    run_attempt(stopping, RUN_UID, is_resume=False, draws_bar=False)
    found = steps(trained(cut, 2, resume=True))
    assert [batch.header.attempt for batch in found] == [1, 1, 2, 2, 2]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.groups.to_pylist() == theirs.groups.to_pylist()
        assert ours.rollouts.drop_columns(["cost_seconds"]).equals(theirs.rollouts.drop_columns(["cost_seconds"]))


def test_spo_stores_the_value_that_each_prompt_was_compared_with(make_run: MakeRun) -> None:
    tables = NATBOOL.format(pool=6) + "\n[algorithm_params]\nprofile_samples = 2"
    batches = trained(make_run(steps=4, top="algorithm = 'spo'", tables=tables))
    (profile,) = steps(batches, "base_profile")
    assert (len(profile.groups), len(profile.rollouts)) == (6, 12)
    rates = {group["prompt"]: group["base_pass_rate"] for group in profile.groups.to_pylist()}
    visited: dict[bytes, int] = {}
    for batch in steps(batches):
        tokens: list[float] = []
        raw: list[float] = []
        groups, rollouts = batch.groups.to_pylist(), batch.rollouts.to_pylist()
        for group in groups:
            assert group["tracker_last_seen"] == visited.get(group["prompt"])
            assert (group["base_pass_rate"], group["base_samples"]) == (rates[group["prompt"]], 2)
            value, count = group["tracker_value"], group["tracker_count"]
            assert group["sampling_weight"] == pytest.approx(sampling_weight(value, count, exponent=0.0))
            visited[group["prompt"]] = batch.header.step
        for row in rollouts:
            value = groups[row["group"]]["tracker_value"]
            assert row["x_value"] == pytest.approx([value] * len(row["token_ids"]))
            difference = row["reward"] - value
            raw += [difference] * len(row["token_ids"])
            tokens += row["token_advantages"]
        # The advantages of tokens are those differences, shifted and scaled.
        mean = sum(raw) / len(raw)
        deviation = (sum((one - mean) ** 2 for one in raw) / (len(raw) - 1)) ** 0.5
        assert tokens == pytest.approx([(one - mean) / deviation for one in raw], abs=1e-5)
        assert {"tracker_error", "tracker_drift", "tracker_kept_share"} <= set(metrics(batch))
    assert any(value for value in visited.values())


def test_the_hardest_prompts_train_and_carry_their_base_pass_rate(make_run: MakeRun) -> None:
    tables = NATBOOL.format(pool=20) + "\n[algorithm_params]\nprofile_samples = 4\nkeep_share = 0.2"
    batches = trained(make_run(steps=3, top="algorithm = 'hardest_decile'", tables=tables))
    (profile,) = steps(batches, "base_profile")
    rates = {group["prompt"]: group["base_pass_rate"] for group in profile.groups.to_pylist()}
    chosen = {group["prompt"]: group for batch in steps(batches) for group in batch.groups.to_pylist()}
    assert len(chosen) == 4
    assert all(group["base_pass_rate"] == rates[prompt] for prompt, group in chosen.items())
    hardest = sorted(rate for rate in rates.values() if rate > 0)[:4]
    assert sorted(group["base_pass_rate"] for group in chosen.values()) == hardest


def test_a_window_that_is_mastered_moves_up(make_run: MakeRun) -> None:
    tables = "[task]\nname = 'natbool_dag'\n[algorithm_params]\npromote_above = 0.1"
    batches = steps(trained(make_run(steps=8, top="algorithm = 'rlve_window'", tables=tables)))
    highs = [metrics(batch)["window_high"] for batch in batches]
    # Eight groups of four take three steps of three prompts.
    assert highs[:4] == [0, 0, 0, 1]
    assert highs == sorted(highs)
    for batch in batches:
        levels = set(batch.groups["difficulty"].to_pylist())
        assert levels <= {float(level) for level in range(int(metrics(batch)["window_high"]) + 1)}
        for row, spans in zip(batch.rollouts.to_pylist(), spans_by_rollout(batch), strict=True):
            assert (("unparsable", -1.0) in spans) == (row["parsed_answer"] is None)


def spans_by_rollout(batch: RolloutBatch) -> list[list[tuple[str, float]]]:
    out: list[list[tuple[str, float]]] = [[] for _ in range(len(batch.rollouts))]
    for span in batch.reward_spans.to_pylist():
        out[span["rollout"]].append((span["name"], span["value"]))
    return out


def test_examples_stand_before_a_whole_group_and_never_in_an_evaluation(make_run: MakeRun) -> None:
    tables = "[algorithm_params]\nexamples_start = 1.0\nexamples_end = 0.0"
    batches = trained(make_run(steps=4, top="algorithm = 'cbrl'", tables=tables))
    first, *_, last = steps(batches)
    assert all(prompt.count(b"\n") == 2 for prompt in first.groups["prompt"].to_pylist())
    transforms = [json.loads(text) for text in first.rollouts["transform"].to_pylist()]
    assert {(one["name"], one["parameters"]["count"]) for one in transforms} == {("worked_examples", 2)}
    assert set(last.rollouts["transform"].to_pylist()) == {None}
    for batch in steps(batches, "heldout"):
        assert not any(b"\n" in prompt for prompt in batch.groups["prompt"].to_pylist())


def test_votes_reward_without_the_key_and_an_evaluation_has_it(make_run: MakeRun) -> None:
    folder = make_run(steps=3, top="algorithm = 'ttrl'", tables="[task]\nname = 'natbool_dag'")
    for batch in trained(folder):
        rollouts = batch.rollouts.to_pylist()
        if batch.header.split == "heldout":
            assert [row["reward"] for row in rollouts] == [float(row["correct"]) for row in rollouts]
            continue
        assert [row["drop_reason"] for row in rollouts] == [None, None, "vote_only", "vote_only"] * 3
        for group in range(3):
            answers = [row["parsed_answer"] for row in rollouts if row["group"] == group]
            votes = [answer for answer in answers if answer is not None]
            label = max(votes, key=votes.count) if votes else None
            for row in (row for row in rollouts if row["group"] == group and row["number"] < 2):
                assert row["reward"] == float(row["parsed_answer"] is not None and row["parsed_answer"] == label)
        assert {"vote_share", "label_accuracy"} <= set(metrics(batch))


def test_restrain_asks_the_base_model_once(make_run: MakeRun) -> None:
    tables = NATBOOL.format(pool=6) + "\n[algorithm_params]\nprofile_samples = 4"
    batches = trained(make_run(steps=2, top="algorithm = 'restrain'", tables=tables))
    assert (batches[0].header.split, batches[0].header.step) == ("base_profile", 0)
    assert len(steps(batches, "base_profile")) == 1
    prompts = {prompt for batch in steps(batches) for prompt in batch.groups["prompt"].to_pylist()}
    assert len(prompts) == 6


def test_shown_steps_are_credited_to_their_tokens(make_run: MakeRun) -> None:
    folder = make_run(steps=1, top="algorithm = 'natbool_dag'")
    (batch,) = steps(trained(folder))
    assert set(batch.groups["generator"].to_pylist()) == {"natbool_dag"}
    spans, rollouts = batch.reward_spans.to_pylist(), batch.rollouts.to_pylist()
    assert {span["kind"] for span in spans} == {"process"}
    for row, rollout in enumerate(rollouts):
        mine = [span for span in spans if span["rollout"] == row]
        assert rollout["reward"] == pytest.approx(sum(span["value"] for span in mine))
        assert mine[-1]["token_end"] == len(rollout["token_ids"])
        assert [span["token_end"] for span in mine[:-1]] == rollout["step_boundaries"]


def test_a_pool_that_the_base_model_cannot_solve_is_refused(make_run: MakeRun, model_folder: Path) -> None:
    tables = "[task]\npool = 4\n[algorithm_params]\nprofile_samples = 1"
    folder = make_run(steps=1, top="algorithm = 'hardest_decile'", model=str(model_folder), tables=tables)
    assert run_attempt(Attempt(folder, 1), RUN_UID, is_resume=False, draws_bar=False) == REFUSED
    status = json.loads((folder / "attempts" / "1" / "status.json").read_text())
    assert status["error"]["where"] == "algorithm_params.include_unsolved"


def test_examples_that_leave_no_room_for_a_completion_are_refused_before_the_first_sample(
    make_run: MakeRun, model_folder: Path
) -> None:
    knobs = "[algorithm_params]\nexample_count = 64\nexamples_start = 0.0\nexamples_end = 0.5"
    folder = make_run(steps=2, top="algorithm = 'cbrl'", model=str(model_folder), tables=knobs)
    assert run_attempt(Attempt(folder, 1), RUN_UID, is_resume=False, draws_bar=False) == REFUSED
    assert "do not fit the model's context of 128" in (folder / "attempts" / "1" / "status.json").read_text()
    assert stored(folder) == []
