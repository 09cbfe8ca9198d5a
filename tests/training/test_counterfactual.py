"""What a recipe makes of stored rollouts against the first step of a run that was really trained by it."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from training import learner, spool
from training.attempt import Attempt
from training.config import RunConfig
from training.counterfactual import APPROXIMATE, CLIP, EXACT, GRADIENT, PARTS, UNKNOWN, WEIGHTS, Ask, config_of, outcome
from training.counterfactual_measures import measures
from training.credit import Signal
from training.learner import Update
from training.prepare import prepare
from training.progress import Progress
from training.ranks import rank_correlation
from training.records import RolloutBatch
from training.run import ask_models, find_signal, gather_step, learn_step, learner_batch, train_step
from training.stored import stored_step

MakeRun = Callable[..., Path]
UID = str(uuid.UUID(int=7))
TOLERANCE = 1e-6
# The run that the rollouts are of: it has what a mismatch is corrected with, and a reference.
TOP = "algorithm = 'tis'\nseed = 3"
TABLES = "[algorithm_params]\nkl_coefficient = 0.05"
KNOBS: dict[str, dict[str, Any]] = {
    "dapo": {"extra_rounds": 0, "overlong_buffer_tokens": 3},
    "forking_tokens": {"extra_rounds": 0},
    "grpo": {"kl_coefficient": 0.1},
}


def really(folder: Path, config: RunConfig) -> tuple[Signal, Update, Tensor]:
    """The first step under `config`: what it taught, its update, and the gradient by each log-probability."""
    (folder / "config.toml").write_text(config.to_toml())
    run = prepare(config, Attempt(folder, 1), UID)
    seen: list[learner.LossInputs] = []
    made = learner.loss_inputs

    def watched(*args: Any, **named: Any) -> learner.LossInputs:
        inputs = made(*args, **named)
        inputs.policy_logprobs.retain_grad()
        seen.append(inputs)
        return inputs

    learner.loss_inputs = watched
    try:
        rollouts, scores = gather_step(run, 0)
        columns, scores = ask_models(run, rollouts, scores)
        signal = find_signal(run, 0, rollouts, scores, columns)
        (update,) = learn_step(run, learner_batch(run, rollouts, signal, columns), 0)
    finally:
        learner.loss_inputs = made
        run.engine.close()
    (inputs,) = seen  # one micro-batch, all rollouts in their order
    assert inputs.policy_logprobs.grad is not None
    return signal, update, inputs.policy_logprobs.grad


@pytest.fixture
def config(make_run: MakeRun) -> RunConfig:
    return RunConfig.from_file(make_run("base", steps=1, top=TOP, tables=TABLES) / "config.toml")


@pytest.fixture
def batch(config: RunConfig, tmp_path: Path) -> RolloutBatch:
    return recorded(tmp_path / "recorded", config)


def recorded(folder: Path, config: RunConfig) -> RolloutBatch:
    """The first step of a run as its batch file has it."""
    folder.mkdir()
    (folder / "config.toml").write_text(config.to_toml())
    run = prepare(config, Attempt(folder, 1), UID)
    train_step(run, 0, Progress(1, draws_bar=False))
    assert run.recorder is not None
    run.recorder.close()
    run.engine.close()
    (path,) = spool.waiting(folder / "spool")
    return RolloutBatch.from_bytes(path.read_bytes(), where=path.name)


def close(mine: Tensor, real: Tensor) -> None:
    torch.testing.assert_close(mine.double(), real.double(), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


@pytest.mark.parametrize(
    "recipe",
    [
        "grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "dapo", "gspo", "cispo", "gmpo", "dppo", "tis", "icepop", "nsr",
        "passk_training", "forking_tokens", "rl_zvp", "nat_rpc", "clip_cov", "ttrl", "grpo_lead",
    ],
)  # fmt: skip
def test_a_recipe_makes_of_stored_rollouts_what_it_trains_on(
    recipe: str, config: RunConfig, batch: RolloutBatch, tmp_path: Path
) -> None:
    ask = Ask(recipe, KNOBS.get(recipe, {}))
    found = outcome(stored_step(batch), config, ask)
    assert {name: label.kind for name, label in found.labels.items()} == dict.fromkeys(PARTS, EXACT), found.labels
    folder = tmp_path / "real"
    folder.mkdir()
    signal, update, gradient = really(folder, config_of(config, ask))
    mine, policy = found.signal, found.policy
    assert mine is not None and policy is not None and found.gradient is not None and found.loss is not None
    close(mine.advantage, signal.advantage)
    assert mine.kept.tolist() == signal.kept.tolist()
    assert mine.groups.dead_cause == signal.groups.dead_cause
    assert mine.choices == signal.choices
    close(mine.weights.token_advantages, signal.weights.token_advantages)
    close(mine.weights.token_weights, signal.weights.token_weights)
    assert torch.equal(policy.clip_flag, update.clip_flag)
    assert found.loss == pytest.approx(update.loss, abs=TOLERANCE)
    close(found.gradient[:, : gradient.shape[1]], gradient)
    assert signal.kept.any() and gradient.abs().max() > 0


def without(batch: RolloutBatch, *names: str) -> RolloutBatch:
    rollouts = batch.rollouts
    for name in names:
        place = rollouts.column_names.index(name)
        rollouts = rollouts.set_column(place, name, pa.nulls(len(rollouts), rollouts.schema.field(name).type))
    return replace(batch, rollouts=rollouts)


def told(batch: RolloutBatch, config: RunConfig, recipe: str, **constants: Any) -> tuple[dict[str, str], str]:
    """The label of every part, and the first reason."""
    labels = outcome(stored_step(batch), config, Ask(recipe, constants)).labels
    return {name: label.kind for name, label in labels.items()}, next(
        (one.why for one in labels.values() if one.why), ""
    )


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ("ppo", "critic"),
        ("remax", "greedy completion"),
        ("spo", "running value"),
        ("restrain", "base model's majority"),
        ("grpo_process", "not stored"),
        ("stratified_grpo", ""),
    ],
)
def test_what_a_step_does_not_hold_is_said_and_nothing_stands_in_for_it(
    recipe: str, why: str, config: RunConfig, batch: RolloutBatch
) -> None:
    found = outcome(stored_step(batch), config, Ask(recipe))
    kinds, said = told(batch, config, recipe)
    assert why in said
    if why:
        assert kinds == dict.fromkeys(PARTS, UNKNOWN)
        assert (found.signal, found.policy, found.gradient, found.loss) == (None, None, None, None)


def test_a_missing_column_leaves_what_does_not_need_it(config: RunConfig, batch: RolloutBatch) -> None:
    kinds, why = told(without(batch, "recomputed_logprobs"), config, "icepop")
    assert kinds == {"advantages": EXACT, WEIGHTS: UNKNOWN, CLIP: UNKNOWN, GRADIENT: UNKNOWN}
    assert "recomputed_logprobs" in why
    kinds, why = told(without(batch, "ref_logprobs"), config, "grpo", kl_coefficient=0.1)
    assert kinds == {"advantages": EXACT, WEIGHTS: EXACT, CLIP: EXACT, GRADIENT: UNKNOWN}
    assert "ref_logprobs" in why
    kinds, _ = told(without(batch, "ref_logprobs"), config, "grpo", kl_coefficient=0.1, kl_place="reward")
    assert kinds == dict.fromkeys(PARTS, UNKNOWN)
    kinds, _ = told(without(batch, "policy_logprobs"), config, "grpo")
    assert kinds == {"advantages": EXACT, WEIGHTS: EXACT, CLIP: APPROXIMATE, GRADIENT: APPROXIMATE}
    kinds, why = told(batch, config, "dppo", divergence="topk_tv")
    assert (kinds[WEIGHTS], kinds[CLIP]) == (EXACT, UNKNOWN) and "likeliest tokens" in why
    kinds, _ = told(batch, replace(config, optimizer=replace(config.optimizer, updates_per_step=2)), "grpo")
    assert kinds[CLIP] == APPROXIMATE


def test_a_knob_out_of_its_range_and_parts_that_do_not_go_together_are_said(
    config: RunConfig, batch: RolloutBatch
) -> None:
    assert "must be at most" in told(batch, config, "grpo", eps=9.0)[1]
    assert "at most the completions per prompt" in told(batch, config, "pkpo", pass_k=9)[1]
    assert "unknown algorithm" in told(batch, config, "grqo")[1]


def test_a_running_baseline_is_played_over_the_steps_before(config: RunConfig, batch: RolloutBatch) -> None:
    later = stored_step(replace(batch, header=replace(batch.header, step=2)))
    found = outcome(later, config, Ask("reinforce", {"baseline_decay": 0.5}), earlier_rewards=[1.0, 0.5])
    assert found.labels["advantages"].kind == APPROXIMATE
    assert found.signal is not None and found.scores is not None
    close(found.signal.advantage, found.scores.rewards - 0.5)
    assert outcome(later, config, Ask("reinforce")).labels["advantages"].kind == UNKNOWN


def test_the_measures_of_the_runs_own_recipe_tell_no_difference(config: RunConfig, batch: RolloutBatch) -> None:
    step = stored_step(batch)
    own = measures(step, outcome(step, config, Ask("tis")))
    assert (own["flips"], own["woken"], own["died"], own["rank_correlation"]) == (0, [], [], pytest.approx(1))
    assert own["largest_difference"] < TOLERANCE
    turned = replace(step, advantage=-step.advantage)
    against = measures(turned, outcome(turned, config, Ask("tis")))
    assert against["flips"] == int((step.advantage * step.kept != 0).sum()) > 0
    assert against["rank_correlation"] == pytest.approx(-1)
    other = outcome(step, config, Ask("nsr"))
    said = measures(step, other)
    assert other.signal is not None and other.gradient is not None
    before, after = step.advantage * step.kept, other.signal.advantage * other.signal.kept
    assert said["flips"] == int((before * after < 0).sum())
    owner = step.rollouts.group_index
    alive = [{int(group) for group in owner[values != 0]} for values in (before, after)]
    assert (said["woken"], said["died"]) == (sorted(alive[1] - alive[0]), sorted(alive[0] - alive[1]))
    mass = other.gradient.abs().double()
    assert said["effective_tokens"] == pytest.approx(float(mass.sum() ** 2 / mass.square().sum()))
    assert sum(part["share"] for part in said["share_lengths"]) == pytest.approx(1)
    assert said["share_correct"] == pytest.approx(float(mass[step.scores.correct].sum() / mass.sum()))


def test_ranks_share_a_place_where_values_are_equal() -> None:
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 4, 50).astype(float), rng.integers(0, 4, 50).astype(float)
    assert rank_correlation(first, second) == pytest.approx(spearmanr(first, second).statistic)
    assert rank_correlation(first, np.zeros(50)) is None
