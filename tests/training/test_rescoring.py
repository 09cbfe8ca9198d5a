"""Stored rollouts judged again: by what judged them, by rewards of one's own, and by ones that raise."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.training.test_counterfactual import recorded
from training.config import ConfigError, RunConfig
from training.counterfactual import Ask, CannotSay, outcome
from training.counterfactual_measures import measures, reward_changes
from training.rescoring import definitions, rescored
from training.stored import StoredStep, stored_step
from training.tasks.base import Task

MakeRun = Callable[..., Path]


@pytest.fixture
def config(make_run: MakeRun) -> RunConfig:
    return RunConfig.from_file(make_run("base", steps=1, top="seed = 3") / "config.toml")


@pytest.fixture
def step(config: RunConfig, tmp_path: Path) -> StoredStep:
    return stored_step(recorded(tmp_path / "recorded", config))


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module on the worker."""
    module = ModuleType("my_rewards")

    def turned(task: Task, completions: Sequence[object]) -> list[float]:
        return [0.0 if one.text == task.answer else 1.0 for one in completions]  # type: ignore[attr-defined]

    module.turned = turned  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_rewards", module)
    return module


def test_the_same_reward_gives_what_is_stored(step: StoredStep, config: RunConfig) -> None:
    again = rescored(step, config, Ask("grpo", rewards=("task",)), ())
    assert torch.equal(again.scores.rewards, step.scores.rewards)
    assert torch.equal(again.scores.correct, step.scores.correct) and not again.errors
    assert 0 < step.scores.rewards.sum() < len(step.scores.rewards)
    assert reward_changes(step, again.scores)["reward_higher"] == 0


def test_a_turned_reward_turns_the_advantages(step: StoredStep, config: RunConfig, mine: ModuleType) -> None:
    ask = Ask("grpo", rewards=("my_rewards:turned",))
    again = rescored(step, config, ask, ())
    assert torch.equal(again.scores.rewards, 1 - step.scores.rewards)
    assert torch.equal(again.scores.correct, step.scores.correct)
    told = measures(step, outcome(step, config, ask, scores=again.scores))
    assert told["flips"] == int((step.advantage != 0).sum()) > 0
    (definition,) = definitions(ask.rewards)
    assert "def turned" in definition["source"] and definition["version"] == again.scores.scored[0].spans[0].version


def test_a_reward_that_raises_names_the_rollouts(step: StoredStep, config: RunConfig, mine: ModuleType) -> None:
    bad = step.rollouts.completions[1].decode()

    def picky(task: Task, completions: Sequence[object]) -> list[float]:
        for one in completions:
            if one.text == bad:  # type: ignore[attr-defined]
                raise KeyError(bad)
        return [1.0] * len(completions)

    mine.picky = picky  # type: ignore[attr-defined]
    again = rescored(step, config, Ask("grpo", rewards=("my_rewards:picky",)), ())
    culprits = {row for row, text in enumerate(step.rollouts.completions) if text.decode() == bad}
    assert set(again.errors) == culprits and again.errors[1].startswith("KeyError")
    unscored = {row for row, reward in enumerate(again.scores.rewards.tolist()) if reward != reward}
    assert unscored == culprits
    changes = reward_changes(step, again.scores)
    assert (changes["reward_unscored"], changes["reward_both"]) == (len(culprits), len(step.kept) - len(culprits))


def test_one_that_raises_at_a_whole_group_names_all_of_it(
    step: StoredStep, config: RunConfig, mine: ModuleType
) -> None:
    def grouped(task: Task, completions: Sequence[object]) -> list[float]:
        if len(completions) > 1:
            raise ValueError("one at a time")
        return [1.0]

    mine.grouped = grouped  # type: ignore[attr-defined]
    again = rescored(step, config, Ask("grpo", rewards=("my_rewards:grouped",)), ())
    assert set(again.errors.values()) == {"ValueError: one at a time"} and len(again.errors) == len(step.kept)


def test_what_cannot_be_judged_again_is_said(step: StoredStep, config: RunConfig) -> None:
    with pytest.raises(ConfigError, match="no module"):
        rescored(step, config, Ask("grpo", rewards=("nowhere:at_all",)), ())
    with pytest.raises(CannotSay, match="text of every token"):
        rescored(step, config, Ask("grpo", rewards=("step_labels",)), ())
    step.rollouts.chosen[0].task.params["digits"] = 1
    with pytest.raises((CannotSay, ConfigError, KeyError)):
        rescored(step, config, Ask("grpo", rewards=("task",)), ())
