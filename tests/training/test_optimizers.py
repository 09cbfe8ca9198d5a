import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from training.config import ModelConfig, OptimizerConfig
from training.optimizers import Optimizer, WeightAverage, learning_rate_at
from training.policy import Policy, load_policy


def rates(steps: tuple[int, ...], **config: Any) -> list[float]:
    return [learning_rate_at(OptimizerConfig(learning_rate=0.4, **config), step, 14) for step in steps]


def test_the_learning_rate_warms_up_to_its_peak_and_stays() -> None:
    assert rates((0, 1, 3, 4, 13), warmup_steps=4) == pytest.approx([0.1, 0.2, 0.4, 0.4, 0.4])
    assert rates((0, 13)) == [0.4, 0.4]


def test_the_learning_rate_falls_to_its_floor() -> None:
    # Of the ten steps after the warm-up the sixth is half-way.
    assert rates((4, 9, 14), warmup_steps=4, schedule="linear") == pytest.approx([0.4, 0.2, 0.0])
    assert rates((3, 4, 9, 14), warmup_steps=4, schedule="linear", floor_fraction=0.5) == pytest.approx(
        [0.4, 0.4, 0.3, 0.2]
    )
    quarter = 0.4 * (1 + math.cos(math.pi / 4)) / 2
    assert rates((0, 3, 7, 14), schedule="cosine")[0::2] == pytest.approx([0.4, 0.2])
    assert learning_rate_at(OptimizerConfig(learning_rate=0.4, schedule="cosine"), 2, 8) == pytest.approx(quarter)
    assert rates((14, 99), schedule="cosine", floor_fraction=0.25) == pytest.approx([0.1, 0.1])


def test_a_warm_up_over_the_whole_run_has_no_fall() -> None:
    config = OptimizerConfig(learning_rate=0.4, warmup_steps=3, schedule="cosine")
    assert learning_rate_at(config, 2, 3) == pytest.approx(0.4)


def small(policy: Policy, learning_rate: float, **config: Any) -> Optimizer:
    return Optimizer(policy.model, OptimizerConfig(learning_rate=learning_rate, **config))


def ones(policy: Policy) -> None:
    for parameter in policy.model.parameters():
        parameter.grad = torch.ones_like(parameter)


def test_small_steps_of_bfloat16_weights_collect(model_folder: Any) -> None:
    policy = load_policy(ModelConfig(path=str(model_folder), dtype="bfloat16"))
    norm = policy.model.model.norm.weight
    assert norm.dtype == torch.bfloat16
    before = norm[0].item()
    assert before == 1.0
    # A step of 1/1024 of a weight near 1 is a quarter of what bfloat16 tells apart below 1.
    optimizer = small(policy, 1.0, name="sgd", beta1=0.0)
    seen = []
    for _ in range(8):
        ones(policy)
        optimizer.step(2**-10)
        seen.append(norm[0].item())
    assert seen[0] == 1.0
    assert seen[-1] == 1.0 - 8 * 2**-10
    assert policy.model.lm_head.weight.dtype == torch.bfloat16


def test_what_small_weights_collected_survives_a_checkpoint(model_folder: Any) -> None:
    one, other = (load_policy(ModelConfig(path=str(model_folder), dtype="bfloat16")) for _ in range(2))
    first, second = (small(policy, 1.0, name="sgd", beta1=0.0) for policy in (one, other))
    ones(one)
    first.step(2**-10)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for policy, optimizer in ((one, first), (other, second)):
        for _ in range(3):
            ones(policy)
            optimizer.step(2**-10)
    assert one.model.model.norm.weight[0].item() == 1.0 - 4 * 2**-10
    assert torch.equal(one.model.model.norm.weight, other.model.model.norm.weight)


def test_float32_weights_have_no_copy(policy: Policy) -> None:
    optimizer = small(policy, 1e-3)
    assert all(master is parameter for master, parameter in zip(optimizer.masters, optimizer.parameters, strict=True))


def test_sgd_steps_against_the_gradient(policy: Policy) -> None:
    optimizer = small(policy, 1.0, name="sgd", beta1=0.5)
    norm = policy.model.model.norm.weight
    for expected in (0.9, 0.75):  # with momentum the second step is half the first one longer
        ones(policy)
        optimizer.step(0.1)
        assert norm[0].item() == pytest.approx(expected)


def test_muon_takes_the_matrices_of_layers_and_adamw_the_rest(policy: Policy) -> None:
    optimizer = small(policy, 1.0, name="muon")
    muon, adamw = ([weight for group in part.param_groups for weight in group["params"]] for part in optimizer.parts)
    layer = policy.model.model.layers[0]
    assert any(weight is layer.mlp.up_proj.weight for weight in muon)
    assert any(weight is policy.model.model.embed_tokens.weight for weight in adamw)
    assert any(weight is layer.input_layernorm.weight for weight in adamw)
    assert len(muon) + len(adamw) == len(optimizer.parameters)
    # Muon's step has singular values that are all alike, whatever the gradient's are.
    before = layer.self_attn.q_proj.weight.detach().clone()
    ones(policy)
    torch.manual_seed(0)
    layer.self_attn.q_proj.weight.grad = torch.randn_like(before)
    optimizer.step(1e-2)
    values = torch.linalg.svdvals(before - layer.self_attn.q_proj.weight)
    assert values.max() < 2 * values.median()


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_every_optimiser_goes_on_where_it_was(model_folder: Any, name: str) -> None:
    one, other = (load_policy(ModelConfig(path=str(model_folder))) for _ in range(2))
    first, second = (small(policy, 1e-2, name=name) for policy in (one, other))
    ones(one)
    first.step(1e-2)
    other.model.load_state_dict(one.model.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for policy, optimizer in ((one, first), (other, second)):
        ones(policy)
        optimizer.step(1e-2)
    for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_state_of_another_optimiser_is_refused(policy: Policy) -> None:
    with pytest.raises(ValueError, match="its optimiser is another"):
        small(policy, 1e-2, name="muon").load_state_dict(small(policy, 1e-2).state_dict())


def test_the_average_follows_the_weights_and_gives_them_back() -> None:
    weight = nn.Parameter(torch.tensor([1.0]))
    average = WeightAverage([weight], 0.75)
    for value in (2.0, 4.0):
        weight.data.fill_(value)
        average.update()
    # 0.75 (0.75 * 1 + 0.25 * 2) + 0.25 * 4
    assert average.averages[0].item() == pytest.approx(1.9375)
    with average.in_place():
        assert weight.item() == pytest.approx(1.9375)
    assert weight.item() == 4.0
    again = WeightAverage([weight], 0.75)
    again.load_state_dict(average.state_dict())
    assert again.averages[0].item() == pytest.approx(1.9375)
