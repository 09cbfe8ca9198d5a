import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training.golden import CASES
from training.config import ModelConfig, OptimizerConfig
from training.learner import LearnerBatch, Objective
from training.losses import LOSSES
from training.policy import Policy, Tokens, load_policy
from training.trust_region import conjugate_gradient, flat, natural_step, step_length, update_within_region

CASE = CASES["trpo.step"]
GRADIENT, CURVATURE = (torch.tensor(CASE["inputs"][key], dtype=torch.float64) for key in ("g", "H_diag"))
DELTA = CASE["params"]["delta"]


def product(vector: Tensor) -> Tensor:
    return CURVATURE * vector


def test_direction_and_length_match_the_worked_example() -> None:
    direction = conjugate_gradient(product, GRADIENT, iterations=10)
    assert direction.tolist() == pytest.approx(CASE["expected"]["x"])
    assert direction.dot(product(direction)).item() == pytest.approx(CASE["expected"]["xHx"])
    assert step_length(direction, product(direction), kl_limit=DELTA) == pytest.approx(CASE["expected"]["alpha"])


def test_conjugate_gradient_solves_in_as_many_iterations_as_there_are_unknowns() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    matrix, target = root @ root.T + torch.eye(8), torch.randn(8, generator=generator, dtype=torch.float64)
    found = conjugate_gradient(lambda vector: matrix @ vector, target, iterations=8, tolerance=0.0)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, target))
    # Stopped early it has made way.
    early = conjugate_gradient(lambda vector: matrix @ vector, target, iterations=3)
    left = (matrix @ early - target).norm()
    assert 0 < left < target.norm()
    assert conjugate_gradient(product, torch.zeros(2, dtype=torch.float64), iterations=5).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bend", [0.0, -1.0, math.nan, math.inf])
def test_curvature_that_is_not_positive_allows_no_step(bend: float) -> None:
    assert step_length(torch.ones(1), torch.tensor([bend]), kl_limit=0.01) == 0.0


def quadratic_step(surrogate_of: Any, *, kl_factor: float = 1.0, attempts: int = 10) -> tuple[Any, Tensor]:
    """A step on two parameters whose KL is quadratic, times a factor that the model of it does not know."""
    parameter = torch.zeros(2, dtype=torch.float64)

    def measure() -> tuple[float, float]:
        kl = kl_factor * 0.5 * parameter.dot(product(parameter)).item()
        return surrogate_of(parameter), kl

    found = natural_step(
        [parameter], GRADIENT, product, measure, kl_limit=DELTA, damping=0.0, backtrack=0.8, attempts=attempts
    )
    return found, parameter


def linear(parameter: Tensor) -> float:
    return GRADIENT.dot(parameter).item()


def test_a_whole_step_matches_the_worked_example() -> None:
    found, parameter = quadratic_step(linear)
    assert parameter.tolist() == pytest.approx(CASE["expected"]["step"])
    assert found.accepted == 0
    assert found.kl == pytest.approx(CASE["expected"]["quadratic_kl"])
    assert found.improvement == pytest.approx(GRADIENT.dot(parameter).item())
    assert found.residual == pytest.approx(0.0, abs=1e-12)


def test_a_step_that_goes_too_far_is_shortened_until_the_divergence_allows_it() -> None:
    # With twice the divergence only 0.8^2 = 0.64 is below 1 / sqrt(2).
    found, parameter = quadratic_step(linear, kl_factor=2.0)
    assert found.accepted == 2
    factor = CASE["expected"]["backtrack_factors"][2]
    assert parameter.tolist() == pytest.approx([factor * one for one in CASE["expected"]["step"]])
    assert found.kl <= DELTA


def test_a_step_that_does_not_help_is_shortened_and_then_given_up() -> None:
    # The surrogate falls beyond 0.03 in length.
    found, parameter = quadratic_step(lambda parameter: -abs(parameter.norm().item() - 0.02))
    assert found.accepted is not None and found.accepted > 0
    assert found.improvement >= 0
    given_up, parameter = quadratic_step(lambda parameter: -linear(parameter))
    assert given_up.accepted is None
    assert parameter.tolist() == [0.0, 0.0]
    assert (given_up.kl, given_up.improvement) == (0.0, 0.0)


def test_a_surrogate_that_is_not_a_number_is_not_accepted() -> None:
    found, parameter = quadratic_step(lambda parameter: 0.0 if not parameter.any() else math.nan)
    assert found.accepted is None
    assert parameter.tolist() == [0.0, 0.0]


def test_flat_fills_up_what_took_no_part() -> None:
    parameters = [torch.zeros(1, 2), torch.zeros(3)]
    assert flat([torch.ones(1, 2), None], parameters).tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.fixture
def batch(policy: Policy) -> LearnerBatch:
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)
    tokens = Tokens(
        prompt_ids=torch.tensor([policy.encode("12+34="), [0, 0, *policy.encode("7*8=")]]),
        prompt_mask=torch.tensor([[True] * 6, [False] * 2 + [True] * 4]),
        owner=torch.tensor([0, 0, 1, 1]),
        completion_ids=torch.tensor([[20, 21, 22, 1], [30, 1, 0, 0], [1, 0, 0, 0], [9, 8, 1, 0]]),
        completion_mask=mask,
    )
    with torch.no_grad():
        sampler = policy.score(tokens, temperature=0.7).logprobs
    advantages = torch.tensor([1.0, -0.5, 0.25, -1.0])[:, None] * mask
    return LearnerBatch(tokens, sampler, advantages, mask.float(), mask)


REGION = {
    "aggregation": "token_mean",
    "constant_tokens": 4,
    "kl_limit": 0.01,
    "conjugate_iterations": 10,
    "damping": 0.1,
    "backtrack": 0.8,
}


def step(policy: Policy, batch: LearnerBatch, **params: Any) -> Any:
    objective = Objective(LOSSES["trust_region"], {}, REGION | params)
    return update_within_region(
        policy, batch, objective, OptimizerConfig(micro_batch_rollouts=2), temperature=0.7, where="at step 0"
    )


def all_logprobs(policy: Policy, batch: LearnerBatch) -> Tensor:
    with torch.no_grad():
        return (policy.completion_logits(batch.tokens)[batch.loss_mask] / 0.7).log_softmax(-1)


def test_a_step_on_a_model_stays_inside_the_region_and_helps(policy: Policy, batch: LearnerBatch) -> None:
    before = all_logprobs(policy, batch)
    found = step(policy, batch)
    after = all_logprobs(policy, batch)
    kl = (before.exp() * (before - after)).sum(dim=-1).mean().item()
    assert 0 < kl <= 0.01
    assert found.metrics["trust_region_kl"] == pytest.approx(kl, rel=1e-3)
    assert found.metrics["trust_region_accepted"] == 1.0
    with torch.no_grad():
        ratio = (policy.score(batch.tokens, temperature=0.7).logprobs - batch.sampler_logprobs).exp()
    gain = ((ratio - 1) * batch.token_advantages)[batch.loss_mask].mean().item()
    assert found.metrics["trust_region_improvement"] == pytest.approx(gain, rel=1e-3)
    assert gain > 0
    # The bound is used, not only kept: damping takes some of it.
    assert kl > 0.0005


def test_a_smaller_region_makes_a_smaller_step(model_folder: Path, batch: LearnerBatch) -> None:
    large, small = (load_policy(ModelConfig(path=str(model_folder))) for _ in range(2))
    far, near = step(large, batch, kl_limit=0.01), step(small, batch, kl_limit=0.0001)
    assert near.metrics["trust_region_kl"] <= 0.0001 < far.metrics["trust_region_kl"]


class TinyModel(nn.Module):
    """Logits by position, so that the Fisher matrix can be written down."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([[0.3, -0.2, 0.1], [1.0, 0.0, -1.0]], dtype=torch.float64))


def test_the_products_are_those_of_the_fisher_matrix() -> None:
    # The Hessian of the KL at the old policy is diag(p) - p p' for each token, over the tokens' number.
    model = TinyModel()
    old = model.logits.detach().log_softmax(-1)
    kl = (old.exp() * (old - model.logits.log_softmax(-1))).sum() / 2
    (slope,) = torch.autograd.grad(kl, model.logits, create_graph=True)
    vector = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)
    found = flat(torch.autograd.grad(flat([slope], [model.logits]).dot(vector), [model.logits]), [model.logits])
    blocks = [torch.diag(p) - torch.outer(p, p) for p in old.exp()]
    torch.testing.assert_close(found, torch.block_diag(*blocks) @ vector / 2)


def test_a_step_without_advantage_leaves_the_weights_alone(policy: Policy, batch: LearnerBatch) -> None:
    before = [parameter.clone() for parameter in policy.model.parameters()]
    found = step(policy, replace(batch, token_advantages=batch.token_advantages * 0))
    assert found.metrics["trust_region_accepted"] == 0.0
    assert all(torch.equal(one, two) for one, two in zip(before, policy.model.parameters(), strict=True))
