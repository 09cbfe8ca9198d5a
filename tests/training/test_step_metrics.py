"""The numbers of a step against the rollouts that are stored beside them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.test_run import attempt, batches, metrics
from training.config import ModelConfig
from training.policy import load_policy
from training.records import RolloutBatch
from training.run import FINISHED

MakeRun = Callable[..., Path]
BOOLEANS = "[task]\nname = 'natbool_dag'\n"


def trained(folder: Path) -> list[RolloutBatch]:
    assert attempt(folder) == FINISHED
    return [batch for batch in batches(folder) if batch.header.split == "train"]


def with_setting(folder: Path, line: str) -> None:
    """A further line of the optimiser's table."""
    file = folder / "config.toml"
    file.write_text(file.read_text().replace("[optimizer]", f"[optimizer]\n{line}"))


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "rl_zvp"])
def test_moments_of_the_advantage_are_those_of_the_stored_ones_that_entered(make_run: MakeRun, algorithm: str) -> None:
    top = f"algorithm = '{algorithm}'\ntruncated = 'mask'"
    for batch in trained(make_run(steps=2, top=top, tables=BOOLEANS)):
        stored = np.array(batch.rollouts["advantage"].to_pylist())[np.array(batch.rollouts["kept"].to_pylist())]
        found = metrics(batch)
        assert (found["advantage_mean"], found["advantage_std"]) == pytest.approx((stored.mean(), stored.std()))


def test_parts_of_the_loss_add_up_to_it_over_several_updates(make_run: MakeRun) -> None:
    knobs = "[algorithm_params]\nkl_coefficient = 0.5\nentropy_coefficient = 0.01\n[hooks]\nH8 = ['entropy_bonus']\n"
    folder = make_run(steps=2, tables=BOOLEANS + knobs)
    with_setting(folder, "updates_per_step = 3")
    for batch in trained(folder):
        found = metrics(batch)
        parts = [found[f"loss_{name}"] for name in ("policy", "ref_kl", "entropy_bonus")]
        assert found["loss"] == pytest.approx(sum(parts), abs=1e-7)
        # What a step was weighed with is stored, also where it is 0.
        assert (found["kl_coefficient"], found["entropy_coefficient"]) == (0.5, 0.01)


def test_an_entropy_that_nobody_measured_is_not_zero_and_moves_no_weight(make_run: MakeRun) -> None:
    knobs = "[algorithm_params]\nextra_rounds = 0\nentropy_target = 5.0\nentropy_coefficient = 0.0\n"
    tables = f"{knobs}[hooks]\nH8 = ['entropy_bonus']\n[task]\nname = 'reversal'\nparams = {{length = 5}}"
    first, second = trained(make_run(steps=2, top="algorithm = 'dapo'", tables=tables))
    assert metrics(first)["tokens_trained"] == 0
    assert "entropy" not in metrics(first)
    assert metrics(second)["entropy_coefficient"] == 0.0


def test_what_the_critic_said_is_stored_also_beside_a_running_value(make_run: MakeRun) -> None:
    tables = "[hooks]\nH9 = 'tracked'\n[task]\nname = 'natbool_dag'\npool = 8"
    *_, last = trained(make_run(steps=2, top="algorithm = 'ppo'", tables=tables))
    assert len({round(value, 6) for row in last.rollouts["x_value"].to_pylist() for value in row}) > 3
    variants = "[hooks]\nH5 = 'tracked'\nH9 = 'tracked'\n[algorithm_params]\ndivergence = 'topk_tv'\n"
    run = make_run(
        "topk", steps=1, top="algorithm = 'dppo'", tables=f"{variants}[task]\nname = 'natbool_dag'\npool = 8"
    )
    (only,) = trained(run)
    known = [only.groups["tracker_value"].to_pylist()[group] for group in only.rollouts["group"].to_pylist()]
    assert [row[0] for row in only.rollouts["x_value"].to_pylist()] == pytest.approx(known)


def test_the_average_of_the_weights_follows_a_trust_region_too(make_run: MakeRun) -> None:
    folder = make_run(steps=1, top="algorithm = 'trpo'", tables=BOOLEANS)
    with_setting(folder, "ema_decay = 0.5")
    (batch,) = trained(folder)
    assert metrics(batch)["trust_region_accepted"] == 1
    checkpoint = folder / "checkpoints" / "step-00000001"
    average = torch.load(checkpoint / "optimizer.pt", weights_only=True)["average"]
    before = list(load_policy(ModelConfig()).model.parameters())
    after = list(load_policy(ModelConfig(path=str(checkpoint))).model.parameters())
    for found, old, new in zip(average, before, after, strict=True):
        torch.testing.assert_close(found, (old + new) / 2)
    assert any(not torch.equal(found, old) for found, old in zip(average, before, strict=True))
