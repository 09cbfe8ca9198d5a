"""The factors of the budget are those the trainer multiplies token losses by."""

import numpy as np
import pytest
import torch

from rlviewer.runs.models import Run
from rlviewer.signal import aggregation
from training.batching import AGGREGATIONS, rollout_scale
from training.losses import reinforce_loss

MASK = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]])
PROMPT = np.array([4, 4, 9, 9])
ADVANTAGE = np.array([1.0, -2.0, 3.0, 0.5])


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_sums_and_divisor_equal_the_trainers_scale(name: str) -> None:
    tokens = MASK.sum(axis=1)
    mass = np.abs(ADVANTAGE) * tokens
    counts = aggregation.StepCounts(tokens=int(tokens.sum()), rollouts=3, prompts=2)
    stored = aggregation.sums(mass, tokens, PROMPT)[aggregation.SUM_OF[name]]
    found = stored / aggregation.divisor(name, counts, constant_tokens=7)
    scale = rollout_scale(torch.tensor(MASK), name, prompt_index=torch.tensor(PROMPT), constant_tokens=7)
    assert found == pytest.approx(mass * scale.numpy())


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_mass_is_the_gradient_by_log_probability_on_policy(name: str) -> None:
    """On policy the loss of a token has slope -advantage by its log-probability: its size, scaled, is the token's mass."""
    policy = torch.full(MASK.shape, -1.0, requires_grad=True)
    advantages = torch.tensor(ADVANTAGE, dtype=torch.float32)[:, None].expand(MASK.shape)
    loss = reinforce_loss(policy, policy.detach(), advantages, torch.tensor(MASK)).token_loss
    scale = rollout_scale(torch.tensor(MASK), name, prompt_index=torch.tensor(PROMPT), constant_tokens=7)
    (loss * scale[:, None]).sum().backward()
    assert policy.grad is not None
    tokens = MASK.sum(axis=1)
    own = aggregation.sums(np.abs(ADVANTAGE) * tokens, tokens, PROMPT)[aggregation.SUM_OF[name]]
    counts = aggregation.StepCounts(tokens=6, rollouts=3, prompts=2)
    expected = own / aggregation.divisor(name, counts, constant_tokens=7)
    assert policy.grad.abs().sum(dim=1).numpy() == pytest.approx(expected, rel=1e-5)


def test_a_run_names_its_aggregation() -> None:
    assert aggregation.aggregation_of(Run(algorithm="grpo")) == "rollout_mean"
    assert aggregation.aggregation_of(Run(algorithm="grpo@trl")) == "token_mean"
    own = Run(algorithm="grpo", config={"algorithm_params": {"aggregation": "prompt_mean"}})
    assert aggregation.aggregation_of(own) == "prompt_mean"
    assert aggregation.aggregation_of(Run(algorithm="somebody else's")) is None
    assert aggregation.constant_tokens(Run(config={"sampling": {"max_new_tokens": 64}})) == 64


def test_an_unknown_aggregation_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown aggregation 'mean'"):
        aggregation.divisor("mean", aggregation.StepCounts(1, 1, 1))
