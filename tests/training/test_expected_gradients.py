"""Gradients in expectation, exactly: every group that can be drawn, with its chance, on problems whose gradient is known."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from training.advantages import ScoredGroups
from training.estimators import ADVANTAGES
from training.losses import reinforce_loss
from training.token_weights import TokenFields, weigh_tokens

ARMS = torch.tensor([0.3, -0.4, 0.9], dtype=torch.float64)
GRADED = [0.2, -1.0, 1.5]
RIGHT_OR_WRONG = [0.0, 1.0, 1.0]
PARAMS = {"divide_by_std": True, "ddof": 0, "eps": 0.0, "baseline_decay": 0.95, "pass_k": 3, "tail_lowest": 0.0}


def true_gradient(rewards: list[float]) -> Tensor:
    logits = ARMS.clone().requires_grad_()
    value = (logits.softmax(-1) * torch.tensor(rewards, dtype=torch.float64)).sum()
    return torch.autograd.grad(value, logits)[0]


def expected_gradient(estimator: str, rewards: list[float], group_size: int, *, running_mean: float = 0.0) -> Tensor:
    """Of the mean over a group of A log policy, over all draws of a group from three arms."""
    logits = ARMS.clone().requires_grad_()
    logprobs, worth = logits.log_softmax(-1), torch.tensor(rewards, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for drawn in itertools.product(range(3), repeat=group_size):
        arms = torch.tensor([drawn])
        everywhere = torch.ones_like(arms, dtype=torch.bool)
        groups = ScoredGroups(worth[arms], everywhere, worth[arms] > 0.5, everywhere.long(), running_mean)
        advantages = ADVANTAGES[estimator](groups, PARAMS).advantage
        loss = reinforce_loss(logprobs[arms], logprobs[arms].detach(), advantages, everywhere).token_loss.mean()
        total = total - logprobs.detach()[arms].sum().exp() * loss
    return torch.autograd.grad(total, logits)[0]


@pytest.mark.parametrize("group_size", [2, 3])
@pytest.mark.parametrize(
    ("estimator", "running_mean"), [("no_baseline", 0.0), ("running_mean", 0.7), ("leave_one_out", 0.0)]
)
def test_a_baseline_of_other_samples_leaves_the_policy_gradient_as_it_is(
    estimator: str, running_mean: float, group_size: int
) -> None:
    found = expected_gradient(estimator, GRADED, group_size, running_mean=running_mean)
    torch.testing.assert_close(found, true_gradient(GRADED), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("group_size", [2, 3])
def test_a_mean_that_holds_the_sample_itself_shortens_the_gradient_and_keeps_its_direction(group_size: int) -> None:
    found = expected_gradient("batch_mean", GRADED, group_size)
    torch.testing.assert_close(found, true_gradient(GRADED) * (group_size - 1) / group_size, rtol=1e-9, atol=1e-12)


def binomial(group_size: int, chance: float) -> list[float]:
    return [math.comb(group_size, k) * chance**k * (1 - chance) ** (group_size - k) for k in range(group_size + 1)]


def by_deviation(chance: float, group_size: int) -> float:
    """GRPO's: the mean of k/G (1 - k/G) / deviation, over p (1 - p)."""
    shares = [k / group_size for k in range(group_size + 1)]
    spread = [math.sqrt(share * (1 - share)) for share in shares]
    return math.fsum(w * s for w, s in zip(binomial(group_size, chance), spread, strict=True)) / (chance * (1 - chance))


def truncated_likelihood(chance: float, group_size: int) -> float:
    """MaxRL's: the slope of the log-likelihood, cut after G - 1 terms: sum over k < G of (1 - p)^(k - 1)."""
    return math.fsum((1 - chance) ** (k - 1) for k in range(1, group_size))


def best_of_three(chance: float, group_size: int) -> float:
    """PKPO's: of 1 - (1 - p)^k, over k."""
    return (1 - chance) ** 2


@pytest.mark.parametrize("group_size", [3, 4])
@pytest.mark.parametrize(
    ("estimator", "factor"),
    [
        ("group", by_deviation),
        ("max_likelihood", truncated_likelihood),
        ("tail", truncated_likelihood),
        ("best_of_k", best_of_three),
    ],
)
def test_other_objectives_scale_the_gradient_by_the_chance_of_success(
    estimator: str, factor: Callable[[float, int], float], group_size: int
) -> None:
    chance = (ARMS.softmax(-1) * torch.tensor(RIGHT_OR_WRONG)).sum().item()
    found = expected_gradient(estimator, RIGHT_OR_WRONG, group_size)
    torch.testing.assert_close(found, true_gradient(RIGHT_OR_WRONG) * factor(chance, group_size), rtol=1e-9, atol=1e-12)


# Two tokens of two kinds: the logits of the first, then those of the second after each first.
LOGITS = torch.tensor([[0.4, -0.3], [0.2, 0.9], [-0.5, 0.1]], dtype=torch.float64)
PATHS = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
FIRST_REWARD = torch.tensor([0.3, -0.2], dtype=torch.float64)
SECOND_REWARD = torch.tensor([[1.0, 0.0], [0.5, -1.0]], dtype=torch.float64)
REWARDS = torch.stack([FIRST_REWARD[PATHS[:, 0]], SECOND_REWARD[PATHS[:, 0], PATHS[:, 1]]], dim=1)


def path_logprobs(logits: Tensor) -> Tensor:
    """`[4, 2]`"""
    logprobs = logits.log_softmax(-1)
    return torch.stack([logprobs[0, PATHS[:, 0]], logprobs[1 + PATHS[:, 0], PATHS[:, 1]]], dim=1)


def true_path_gradient() -> Tensor:
    logits = LOGITS.clone().requires_grad_()
    value = (path_logprobs(logits).sum(dim=1).exp() * REWARDS.sum(dim=1)).sum()
    return torch.autograd.grad(value, logits)[0]


def exact_values() -> Tensor:
    """`[4, 2]` of the state before each token."""
    second = (LOGITS[1:].softmax(-1) * SECOND_REWARD).sum(dim=1)
    first = (LOGITS[0].softmax(-1) * (FIRST_REWARD + second)).sum()
    return torch.stack([first.expand(4), second[PATHS[:, 0]]], dim=1)


def path_gradient(chain: tuple[str, ...], *, values: Tensor | None = None, trace_decay: float = 1.0) -> Tensor:
    """Expected gradient of sum_t A_t log policy, over the four completions."""
    logits = LOGITS.clone().requires_grad_()
    logprobs, everywhere = path_logprobs(logits), torch.ones_like(PATHS, dtype=torch.bool)
    fields = TokenFields(
        advantage=REWARDS.sum(dim=1),
        loss_mask=everywhere,
        sampler_logprobs=logprobs.detach(),
        token_rewards=REWARDS,
        values=values,
    )
    params = {"discount": 1.0, "trace_decay": trace_decay, "bootstrap_truncated": False}
    advantages = weigh_tokens(chain, fields, params).token_advantages
    loss = reinforce_loss(logprobs, logprobs.detach(), advantages, everywhere).token_loss.sum(dim=1)
    return torch.autograd.grad(-(logprobs.detach().sum(dim=1).exp() * loss).sum(), logits)[0]


def test_rewards_to_come_and_the_whole_reward_have_one_expected_gradient() -> None:
    for chain in (("uniform",), ("return_to_go",)):
        torch.testing.assert_close(path_gradient(chain), true_path_gradient(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("trace_decay", [0.0, 0.5, 1.0])
def test_a_true_critic_leaves_the_policy_gradient_as_it_is(trace_decay: float) -> None:
    found = path_gradient(("gae",), values=exact_values(), trace_decay=trace_decay)
    torch.testing.assert_close(found, true_path_gradient(), rtol=1e-9, atol=1e-12)


def test_a_wrong_critic_biases_what_it_is_believed_for() -> None:
    wrong = exact_values() + torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, -1.0], [0.0, -1.0]])
    # The whole return needs no critic to be right; the one-step error believes it.
    torch.testing.assert_close(
        path_gradient(("gae",), values=wrong, trace_decay=1.0), true_path_gradient(), rtol=1e-9, atol=1e-12
    )
    believed = path_gradient(("gae",), values=wrong, trace_decay=0.0)
    assert (believed - true_path_gradient()).abs().max() > 0.1
