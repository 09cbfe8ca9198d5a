import json
from pathlib import Path
from typing import Any

import pytest
import torch

from training import checkpoint_files, checkpoints
from training.checkpoint_files import Checkpoint
from training.config import ModelConfig, OptimizerConfig
from training.optimizers import Optimizer
from training.policy import Policy, load_policy


def trained(policy: Policy, steps: int) -> Optimizer:
    optimizer = Optimizer(policy.model, OptimizerConfig(learning_rate=1e-2))
    for step in range(steps):
        optimizer.zero_grad()
        policy.model(input_ids=torch.tensor([[5 + step, 6, 7]])).logits.square().mean().backward()
        optimizer.step(1e-2)
    return optimizer


def save(folder: Path, policy: Policy, optimizer: Optimizer, step: int, keep: int = 9, **state: Any) -> Checkpoint:
    saved = checkpoints.save(folder, policy, optimizer, state, side_state={"a": torch.ones(2)}, step=step, keep=keep)
    assert saved is not None
    return saved


def test_weights_optimiser_and_random_state_come_back(policy: Policy, model_folder: Path, tmp_path: Path) -> None:
    optimizer = trained(policy, 3)
    torch.manual_seed(4)
    saved = save(tmp_path, policy, optimizer, 3, rollouts=36)
    drawn = torch.rand(3)

    other = load_policy(ModelConfig(path=str(model_folder)))
    other_optimizer = Optimizer(other.model, OptimizerConfig(learning_rate=1e-2))
    restored = checkpoints.load(saved, other, other_optimizer)
    assert restored.state == {"rollouts": 36, "step": 3}
    assert restored.side_state["a"].tolist() == [1, 1]
    assert torch.equal(torch.rand(3), drawn)
    for ours, theirs in zip(policy.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        for moment in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(optimizer.parts[0].state[ours][moment], other_optimizer.parts[0].state[theirs][moment])


def test_a_checkpoint_is_a_model_folder(policy: Policy, tmp_path: Path) -> None:
    saved = save(tmp_path, policy, trained(policy, 1), 1)
    again = load_policy(ModelConfig(path=str(saved.path)))
    assert torch.equal(again.model.get_input_embeddings().weight, policy.model.get_input_embeddings().weight)
    assert again.encode("1+1=") == policy.encode("1+1=")


def test_only_the_newest_are_kept(policy: Policy, tmp_path: Path) -> None:
    optimizer = trained(policy, 1)
    for step in (1, 2, 10):
        save(tmp_path, policy, optimizer, step, keep=2)
    assert [one.step for one in checkpoint_files.listed(tmp_path)] == [2, 10]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-00000002", "step-00000010"]


def test_the_clean_up_spares_what_somebody_keeps(policy: Policy, tmp_path: Path) -> None:
    optimizer = trained(policy, 1)
    save(tmp_path, policy, optimizer, 1, keep=1)
    assert checkpoint_files.keep(checkpoint_files.path_of(tmp_path, 1))
    for step in (2, 3):
        save(tmp_path, policy, optimizer, step, keep=1)
    assert [one.step for one in checkpoint_files.listed(tmp_path)] == [1, 3]
    # Gone cannot be kept, and leaves no mark for a later checkpoint of that step.
    gone = checkpoint_files.path_of(tmp_path, 2)
    assert not checkpoint_files.keep(gone) and not checkpoint_files.is_kept(gone)
    checkpoint_files.release(checkpoint_files.path_of(tmp_path, 1))
    save(tmp_path, policy, optimizer, 4, keep=1)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-00000004"]


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_damaged_checkpoint_is_passed_over(policy: Policy, tmp_path: Path, file: str, damage: str) -> None:
    optimizer = trained(policy, 1)
    save(tmp_path, policy, optimizer, 1)
    victim = save(tmp_path, policy, optimizer, 2).path / file
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0x10
    {
        "flipped": lambda: victim.write_bytes(data),
        "cut": lambda: victim.write_bytes(data[: len(data) // 2]),
        "gone": victim.unlink,
    }[damage]()
    found = checkpoint_files.newest_intact(tmp_path)
    assert found is not None
    assert found.step == 1


def test_what_a_killed_trainer_left_is_removed_and_never_loaded(policy: Policy, tmp_path: Path) -> None:
    saved = save(tmp_path, policy, trained(policy, 1), 1)
    saved.path.rename(tmp_path / "step-00000002.part")
    assert checkpoint_files.newest_intact(tmp_path) is None
    checkpoint_files.discard_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_nothing(policy: Policy, tmp_path: Path) -> None:
    optimizer = trained(policy, 1)
    save(tmp_path, policy, optimizer, 1)
    with pytest.raises(ValueError, match="Out of range float"):
        save(tmp_path, policy, optimizer, 2, bad=float("nan"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000001"]


def test_an_optimiser_file_that_runs_code_is_refused(policy: Policy, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (open, (str(tmp_path / "ran"), "w"))

    optimizer = trained(policy, 1)
    saved = save(tmp_path, policy, optimizer, 1)
    torch.save({"optimizer": Evil()}, saved.path / "optimizer.pt")
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        checkpoints.load(saved, policy, optimizer)
    assert not (tmp_path / "ran").exists()


def test_another_model_is_refused(policy: Policy, tmp_path: Path) -> None:
    optimizer = trained(policy, 1)
    saved = save(tmp_path, policy, optimizer, 1)
    with pytest.raises(ValueError, match="holds another model"):
        checkpoints.load(saved, load_policy(ModelConfig()), optimizer)


def test_the_digest_covers_every_file(policy: Policy, tmp_path: Path) -> None:
    saved = save(tmp_path, policy, trained(policy, 1), 1)
    manifest = json.loads((saved.path / "manifest.json").read_text())
    assert set(manifest) == {entry.name for entry in saved.path.iterdir()} - {"manifest.json"}
    assert saved.size_bytes == sum(entry.stat().st_size for entry in saved.path.iterdir())
