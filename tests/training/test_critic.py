import copy
import math

import pytest
import torch

from tests.training.golden import CASES
from training.critic import Critic, explained_variance, value_loss
from training.policy import Policy, Tokens

PARAMS = {"critic_learning_rate": 3e-3, "critic_updates": 4, "critic_max_grad_norm": 1.0, "value_clip": 0.0}


def row(values: list[float]) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_the_value_loss_matches_the_worked_example() -> None:
    case = CASES["value.clipped"]
    new, old, returns = (row(case["inputs"][key]) for key in ("v_new", "v_old", "returns"))
    new.requires_grad_()
    out = value_loss(new, old, returns, torch.ones(1, 3), clip=case["params"]["clip"])
    assert out.token_loss.mean().item() == pytest.approx(case["expected"]["loss_token_mean"])
    assert out.is_clipped.float().mean().item() == pytest.approx(case["expected"]["clipfrac"])
    worse = [max(pair) / 2 for pair in zip(case["expected"]["unclipped"], case["expected"]["clipped"], strict=True)]
    assert out.token_loss[0].tolist() == pytest.approx(worse)
    # What moved too far towards its return has no gradient; the last pulls by V - R.
    (gradient,) = torch.autograd.grad(out.token_loss.sum(), new)
    assert gradient[0].tolist() == pytest.approx([0.0, 0.0, -0.4])
    plain = value_loss(new, old, returns, torch.ones(1, 3), clip=0.0)
    assert (2 * plain.token_loss[0]).tolist() == pytest.approx(case["expected"]["unclipped"])
    assert not bool(plain.is_clipped.any())


def test_masked_values_never_matter() -> None:
    values = torch.tensor([[1.0, math.nan]], requires_grad=True)
    out = value_loss(values, row([0.0, math.nan]), row([3.0, math.inf]), torch.tensor([[1, 0]]), clip=5.0)
    assert out.token_loss[0].tolist() == [2.0, 0.0]
    (gradient,) = torch.autograd.grad(out.token_loss.sum(), values)
    assert gradient[0].tolist() == [-2.0, 0.0]


def test_explained_variance_is_one_for_the_truth_and_none_for_a_constant() -> None:
    returns, mask = row([1.0, 2.0, 3.0, 99.0]), torch.tensor([[True, True, True, False]])
    assert explained_variance(returns + 5, returns, mask) == pytest.approx(1.0)
    assert explained_variance(row([2.0] * 4), returns, mask) == pytest.approx(0.0)
    # What is left over is 0, 1, 2: as far spread as the returns are.
    assert explained_variance(row([1.0, 1.0, 1.0, 0.0]), returns, mask) == pytest.approx(0.0)
    # Left over: 0, 0, 1 with the variance 2/9; of the returns 2/3.
    assert explained_variance(row([1.0, 2.0, 2.0, 0.0]), returns, mask) == pytest.approx(2 / 3)
    assert explained_variance(returns, row([1.0] * 4), mask) == 0.0
    assert explained_variance(returns, returns, mask & False) == 0.0


@pytest.fixture
def tokens(policy: Policy) -> Tokens:
    """Four completions of two prompts; a completion that begins with token 20 is worth 1, with 30 nothing."""
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]], dtype=torch.bool)
    return Tokens(
        prompt_ids=torch.tensor([policy.encode("12+34="), [0, 0, *policy.encode("7*8=")]]),
        prompt_mask=torch.tensor([[True] * 6, [False] * 2 + [True] * 4]),
        owner=torch.tensor([0, 0, 1, 1]),
        completion_ids=torch.tensor([[20, 21, 1], [30, 1, 0], [20, 9, 1], [30, 0, 0]]),
        completion_mask=mask,
    )


RETURNS = torch.tensor([[1.0], [0.0], [1.0], [0.0]], dtype=torch.float64).expand(4, 3)


def test_a_fresh_critic_expects_nothing_and_learns_what_a_prefix_is_worth(policy: Policy, tokens: Tokens) -> None:
    critic, mask = Critic(policy, PARAMS, 256), tokens.completion_mask
    before = critic.values(tokens)
    assert before.shape == (4, 4)
    assert before.abs().max().item() == 0.0
    weights = [parameter.clone() for parameter in policy.model.parameters()]
    for _ in range(12):
        metrics = critic.update(tokens, critic.values(tokens)[:, :-1], RETURNS, mask)
    values = critic.values(tokens)[:, :-1]
    # What no critic can know: the four first tokens of nine, each half a unit off.
    assert metrics["value_loss"] == pytest.approx(4 / 9 * 0.5**2 / 2, rel=0.05)
    # Before the first token both outcomes are as likely; after it the critic knows.
    assert values[:, 0].tolist() == pytest.approx([0.5] * 4, abs=0.15)
    assert values[0, 1:].tolist() == pytest.approx([1.0, 1.0], abs=0.2)
    assert values[1, 1].item() == pytest.approx(0.0, abs=0.2)
    # Half of the variance of the returns is what no critic can know.
    assert metrics["explained_variance"] == pytest.approx(0.5, abs=0.02)
    # The policy is none of the critic's business.
    assert all(torch.equal(one, two) for one, two in zip(weights, policy.model.parameters(), strict=True))


def test_a_value_is_of_the_state_before_its_token_and_the_last_of_the_state_after(
    policy: Policy, tokens: Tokens
) -> None:
    critic = Critic(policy, PARAMS, 256)
    for _ in range(3):
        critic.update(tokens, critic.values(tokens)[:, :-1], RETURNS, tokens.completion_mask)
    values = critic.values(tokens)
    other = Tokens(
        tokens.prompt_ids,
        tokens.prompt_mask,
        tokens.owner,
        torch.where(torch.arange(3) == 1, 40, tokens.completion_ids),
        tokens.completion_mask,
    )
    moved = critic.values(other)
    # The second token of the first completion changed: what stands before it is as it was, what follows is not.
    torch.testing.assert_close(moved[0, :2], values[0, :2])
    assert bool(((moved[0, 2:] - values[0, 2:]).abs() > 1e-6).all())
    # The one-token completion has its last value in column 1, and padding is not read: its row stays.
    torch.testing.assert_close(moved[3, :2], values[3, :2])
    # Alone it is the same: columns of others do not shift it.
    torch.testing.assert_close(critic.values(tokens.rows(torch.tensor([3])))[0], values[3, :2], atol=1e-6, rtol=1e-5)


def test_micro_batches_do_not_change_what_the_critic_learns(policy: Policy, tokens: Tokens) -> None:
    whole, parts = Critic(policy, PARAMS, 256), Critic(policy, PARAMS, 1)
    params = PARAMS | {"value_clip": 0.05}
    whole._params = parts._params = params
    mask = tokens.completion_mask.clone()
    mask[1] = False
    for critic in (whole, parts):
        for _ in range(2):
            metrics = critic.update(tokens, critic.values(tokens)[:, :-1], RETURNS, mask)
        assert metrics["value_clip_fraction"] > 0
    reached = torch.nn.functional.pad(tokens.completion_mask, (1, 0), value=True)
    torch.testing.assert_close(whole.values(tokens)[reached], parts.values(tokens)[reached], atol=1e-5, rtol=1e-4)


def test_a_critic_goes_on_where_its_checkpoint_was_taken(policy: Policy, tokens: Tokens) -> None:
    straight, resumed = Critic(policy, PARAMS, 256), Critic(policy, PARAMS, 256)

    def learn(critic: Critic) -> None:
        critic.update(tokens, critic.values(tokens)[:, :-1], RETURNS, tokens.completion_mask)

    learn(straight)
    state = copy.deepcopy(straight.state())
    resumed.restore(copy.deepcopy(state))
    assert torch.equal(resumed.values(tokens), straight.values(tokens))
    learn(straight)
    # The moments of the optimiser are part of it: without them the next step would be another.
    fresh = Critic(policy, PARAMS, 256)
    fresh._scorer.model.load_state_dict(state["model"])
    learn(resumed)
    learn(fresh)
    assert torch.equal(resumed.values(tokens), straight.values(tokens))
    assert not torch.equal(fresh.values(tokens), straight.values(tokens))


def test_a_step_without_counted_tokens_teaches_the_critic_nothing(policy: Policy, tokens: Tokens) -> None:
    critic = Critic(policy, PARAMS, 256)
    assert critic.update(tokens, critic.values(tokens)[:, :-1], RETURNS, tokens.completion_mask & False) == {}
    assert critic.values(tokens).abs().max().item() == 0.0


def test_a_return_that_is_not_finite_stops_the_critic(policy: Policy, tokens: Tokens) -> None:
    critic = Critic(policy, PARAMS, 256)
    with pytest.raises(ArithmeticError, match="critic's value loss is nan at its update 0"):
        critic.update(tokens, critic.values(tokens)[:, :-1], RETURNS * math.inf, tokens.completion_mask)
    assert critic.values(tokens).abs().max().item() == 0.0
