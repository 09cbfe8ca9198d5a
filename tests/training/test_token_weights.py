import pytest
import torch

from training.batching import aggregate, rollout_scale
from training.token_weights import TOKEN_WEIGHTS, TokenFields, mask_rollouts, uniform

MASK = torch.tensor([[True, True, False], [False, True, True]])


def test_every_counted_token_gets_its_rollouts_advantage() -> None:
    out = uniform(torch.tensor([2.0, -0.5], dtype=torch.float64), MASK)
    assert out.token_advantages.tolist() == [[2.0, 2.0, 0.0], [0.0, -0.5, -0.5]]
    assert out.token_weights.tolist() == [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
    assert out.token_advantages.dtype == torch.float32


def test_a_truncated_rollout_leaves_numerator_and_denominator() -> None:
    mask = mask_rollouts(torch.ones(2, 3), torch.tensor([False, True]))
    assert mask.tolist() == [[True] * 3, [False] * 3]
    loss = torch.tensor([[1.0, 1.0, 1.0], [5.0, 5.0, 5.0]])
    assert aggregate(loss, mask, rollout_scale(mask, "token_mean")).item() == pytest.approx(1.0)


def test_the_entry_of_the_registry_is_the_function() -> None:
    fields = TokenFields(advantage=torch.tensor([1.0, 2.0]), loss_mask=MASK, sampler_logprobs=torch.zeros(2, 3))
    assert TOKEN_WEIGHTS["uniform"](fields, {}).token_advantages.tolist() == [[1.0, 1.0, 0.0], [0.0, 2.0, 2.0]]


def test_refuses_one_advantage_per_token() -> None:
    with pytest.raises(ValueError, match=r"advantage must be \[B\]"):
        uniform(torch.ones(2, 3), MASK)
