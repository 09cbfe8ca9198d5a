from dataclasses import replace

import pytest
import torch

from tests.training.golden import CASES
from training.batching import aggregate, rollout_scale
from training.token_weights import TokenFields, mask_rollouts, spread, weigh_tokens, whitened

MASK = torch.tensor([[True, True, False], [False, True, True]])


def test_every_counted_token_gets_its_rollouts_advantage() -> None:
    out = spread(torch.tensor([2.0, -0.5], dtype=torch.float64), MASK)
    assert out.token_advantages.tolist() == [[2.0, 2.0, 0.0], [0.0, -0.5, -0.5]]
    assert out.token_weights.tolist() == [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
    assert out.token_advantages.dtype == torch.float64


def test_a_truncated_rollout_leaves_numerator_and_denominator() -> None:
    mask = mask_rollouts(torch.ones(2, 3), torch.tensor([False, True]))
    assert mask.tolist() == [[True] * 3, [False] * 3]
    loss = torch.tensor([[1.0, 1.0, 1.0], [5.0, 5.0, 5.0]])
    assert aggregate(loss, mask, rollout_scale(mask, "token_mean")).item() == pytest.approx(1.0)


def test_the_entry_of_the_registry_is_the_function() -> None:
    fields = TokenFields(advantage=torch.tensor([1.0, 2.0]), loss_mask=MASK, sampler_logprobs=torch.zeros(2, 3))
    assert weigh_tokens(("uniform",), fields, {}).token_advantages.tolist() == [[1.0, 1.0, 0.0], [0.0, 2.0, 2.0]]


@pytest.mark.parametrize(("ddof", "column"), [(1, "per_sequence_bessel"), (0, "per_sequence_population")])
def test_whitening_matches_the_worked_example(ddof: int, column: str) -> None:
    case = CASES["adv.rpp_baseline"]
    mask = torch.tensor(case["inputs"]["mask"]).bool()
    rewards = torch.tensor(case["inputs"]["rewards"], dtype=torch.float64)
    fields = TokenFields(rewards - rewards.mean(), mask, torch.zeros(mask.shape))
    out = weigh_tokens(("whitened",), fields, {"whiten_ddof": ddof})
    assert out.token_advantages[:, 0].tolist() == pytest.approx(case["expected"][column], abs=1e-6)
    counted = out.token_advantages[mask].double()
    assert counted.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert counted.std(correction=ddof).item() == pytest.approx(1.0, abs=1e-6)
    assert out.token_advantages[~mask].abs().sum().item() == 0.0
    # A shift of all rewards is undone.
    moved = weigh_tokens(("whitened",), replace(fields, advantage=rewards + 3), {"whiten_ddof": ddof})
    torch.testing.assert_close(moved.token_advantages, out.token_advantages)


def whitened_rollouts(advantages: list[float], mask: torch.Tensor, *, ddof: int = 1) -> list[list[float]]:
    plain = spread(torch.tensor(advantages).double(), mask)
    return whitened(plain.token_advantages, mask, ddof=ddof).tolist()


def test_whitening_without_spread_gives_nothing() -> None:
    assert whitened_rollouts([0.7, 0.7], MASK) == [[0.0] * 3] * 2
    assert whitened_rollouts([0.7, 0.0], MASK & False) == [[0.0] * 3] * 2
    # Rounding noise is no spread: undivided it is 5e-7, divided by the root of 1e-8 a thousand times as much.
    assert whitened_rollouts([0.7, 0.7 + 5e-7], MASK) == [[0.0] * 3] * 2
    one_token = torch.tensor([[True, False, False], [False, False, False]])
    assert whitened_rollouts([0.7, 0.0], one_token) == [[0.0] * 3] * 2


def test_whitening_leaves_masked_rollouts_out_of_its_statistics() -> None:
    # The third rollout would move mean and deviation.
    mask = torch.tensor([[True, True], [True, True], [False, False]])
    out = whitened_rollouts([1.0, -1.0, 50.0], mask, ddof=0)
    assert torch.tensor(out).flatten().tolist() == pytest.approx([1.0, 1.0, -1.0, -1.0, 0.0, 0.0])


def test_refuses_one_advantage_per_token() -> None:
    with pytest.raises(ValueError, match=r"advantage must be \[B\]"):
        spread(torch.ones(2, 3), MASK)
