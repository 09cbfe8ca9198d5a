"""Numbers that are not finite, from the step they appear in to what a person reads, and never into the weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.training.test_run import MakeRun, attempt, batches, metrics, status
from training.critic import Critic
from training.losses import LOSSES, LossInputs, PolicyLoss
from training.run import FAILED, FINISHED

SKIP = "micro_batch_rollouts = 4\nnon_finite = 'skip'"


@pytest.fixture
def spoiled_step(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[int, Callable[[PolicyLoss, LossInputs], PolicyLoss]], None]:
    """Changes the loss of every pass that is made for one step, each step being 12 rollouts in 3 passes."""

    def spoil(step: int, change: Callable[[PolicyLoss, LossInputs], PolicyLoss]) -> None:
        passes, loss = [0], LOSSES["clipped"]

        def changed(inputs: LossInputs, params: Any) -> PolicyLoss:
            passes[0] += 1
            found = loss(inputs, params)
            return change(found, inputs) if (passes[0] - 1) // 3 == step else found

        monkeypatch.setitem(LOSSES, "clipped", changed)

    return spoil


def infinite(found: PolicyLoss, inputs: LossInputs) -> PolicyLoss:
    loss = found.token_loss.clone()
    loss[-1, 0] = torch.inf
    return PolicyLoss(loss, found.importance_ratio, found.clip_flag, found.clamped_tokens)


def steep(found: PolicyLoss, inputs: LossInputs) -> PolicyLoss:
    # Finite itself, but the square root has no finite slope at 0.
    loss = found.token_loss + (inputs.policy_logprobs - inputs.policy_logprobs.detach()).abs().sqrt()
    return PolicyLoss(loss, found.importance_ratio, found.clip_flag, found.clamped_tokens)


def make(make_run: MakeRun, name: str, optimizer: str, **config: Any) -> Path:
    folder = make_run(name, steps=4, **config)
    path = folder / "config.toml"
    path.write_text(
        path.read_text()
        .replace("learning_rate = 1e-4", f"learning_rate = 1e-4\n{optimizer}")
        .replace("every_steps = 3", "every_steps = 1\nkeep = 9")
    )
    return folder


def trained(folder: Path) -> list[Any]:
    return [batch for batch in batches(folder) if batch.header.split == "train"]


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


def moments(folder: Path, step: int) -> list[torch.Tensor]:
    saved = torch.load(folder / "checkpoints" / f"step-{step:08d}" / "optimizer.pt", weights_only=True)
    return [value for state in saved["optimizer"]["parts"][0]["state"].values() for value in state.values()]


def equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_loss_that_is_not_finite_ends_the_run_and_says_where(make_run: MakeRun, spoiled_step: Any) -> None:
    spoiled_step(2, infinite)
    folder = make(make_run, "run", "micro_batch_rollouts = 4")
    assert attempt(folder) == FAILED
    said = status(folder)["reason"]
    assert said.startswith("NonFiniteError after 2 steps: the policy loss is inf at step 2, update 0, in completion ")
    assert " of prompt " in said
    assert status(folder)["error"]["type"] == "NonFiniteError"
    # What went before is safe, and the step itself leaves nothing.
    assert [batch.header.step for batch in trained(folder)] == [0, 1]
    assert status(folder)["last_checkpoint"] == 2


def test_a_run_that_ended_so_goes_on_from_its_last_weights(
    make_run: MakeRun, spoiled_step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = LOSSES["clipped"]
    spoiled_step(2, steep)
    folder = make(make_run, "run", "micro_batch_rollouts = 4")
    assert attempt(folder) == FAILED
    assert "the gradient of model.embed_tokens.weight is not finite at step 2, update 0" in status(folder)["reason"]
    monkeypatch.setitem(LOSSES, "clipped", loss)
    assert attempt(folder, 2, resume=True) == FINISHED
    assert status(folder, 2)["resumed_from_step"] == 2


@pytest.mark.parametrize("change", [infinite, steep])
def test_an_update_can_be_left_out_instead(make_run: MakeRun, spoiled_step: Any, change: Any) -> None:
    spoiled_step(2, change)
    folder = make(make_run, "run", SKIP)
    assert attempt(folder) == FINISHED
    steps = trained(folder)
    assert [[event["kind"] for event in batch.header.events] for batch in steps] == [[], [], ["update-skipped"], []]
    (event,) = steps[2].header.events
    assert "at step 2, update 0" in event["reason"]
    # The step's rollouts are stored as any others, without what the update would have said of them.
    assert len(steps[2].rollouts) == 12
    assert "grad_norm" not in metrics(steps[2])
    assert metrics(steps[3])["grad_norm"] > 0
    before, skipped, after = (weights(folder, step) for step in (2, 3, 4))
    assert equal(list(before.values()), list(skipped.values()))
    assert not equal(list(skipped.values()), list(after.values()))
    assert equal(moments(folder, 2), moments(folder, 3))
    assert all(bool(moment.isfinite().all()) for moment in moments(folder, 4))
    assert all(bool(weight.isfinite().all()) for weight in after.values())


def spoil_critic(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    calls, update = [0], Critic.update

    def spoiled(self: Critic, tokens: Any, old: Any, returns: torch.Tensor, mask: Any) -> dict[str, float]:
        calls[0] += 1
        return update(self, tokens, old, returns * torch.inf if calls[0] - 1 == step else returns, mask)

    monkeypatch.setattr(Critic, "update", spoiled)


def test_a_critic_whose_numbers_are_not_finite_ends_the_run(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_critic(monkeypatch, 1)
    folder = make(make_run, "run", "", top="algorithm = 'ppo'")
    assert attempt(folder) == FAILED
    said = status(folder)["reason"]
    assert said == "NonFiniteError after 1 steps: the critic's value loss is nan at its update 0, at step 1"


def test_a_critics_update_can_be_left_out_too(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_critic(monkeypatch, 1)
    folder = make(make_run, "run", SKIP, top="algorithm = 'ppo'")
    assert attempt(folder) == FINISHED
    steps = trained(folder)
    assert [len(batch.header.events) for batch in steps] == [0, 1, 0, 0]
    assert "critic" in steps[1].header.events[0]["reason"]
    assert "value_loss" not in metrics(steps[1])
    saved = [
        torch.load(folder / "checkpoints" / f"step-{step:08d}" / "optimizer.pt", weights_only=True)["side"]
        for step in (1, 2, 3)
    ]
    first, skipped, after = ([*side["model"].values()] for side in saved)
    assert equal(first, skipped)
    assert not equal(skipped, after)
    assert all(bool(weight.isfinite().all()) for weight in after)
