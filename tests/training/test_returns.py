import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.golden import CASES
from training.returns import gae, normalised_steps, process_advantages, return_to_go
from training.steps import StepRewards
from training.token_weights import whitened


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_return_carries_across_tokens_of_the_environment() -> None:
    case = CASES["adv.rpp.observation_gap"]
    given_ = {key: torch.tensor(value, dtype=torch.float64) for key, value in case["inputs"].items()}
    out = return_to_go(given_["token_rewards"], given_["mask"], discount=case["params"]["gamma"])
    assert out.tolist() == case["expected"]["returns_carry"]


@pytest.mark.parametrize("name", ["gamma1", "gamma0.9"])
def test_returns_and_their_whitening_match_the_worked_examples(name: str) -> None:
    case = CASES[f"adv.rpp.kl_in_reward.{name}"]
    mask = torch.tensor(case["inputs"]["mask"]).bool()
    out = return_to_go(rows(*case["expected"]["token_rewards"]), mask, discount=case["params"]["gamma"])
    torch.testing.assert_close(out, rows(*case["expected"]["returns"]))
    torch.testing.assert_close(
        whitened(out, mask, ddof=1), rows(*case["expected"]["advantages_bessel"]), rtol=0, atol=1e-8
    )


def test_only_counted_tokens_take_a_step_of_the_discount() -> None:
    # 1 + 0.5 (2 + 0.5 * 4), whatever stands between; tokens before the first counted one get nothing.
    out = return_to_go(rows([7.0, 1.0, 0.0, 2.0, 0.0, 0.0, 4.0]), rows([0, 1, 0, 1, 0, 0, 1]), discount=0.5)
    assert out.tolist() == [[0.0, 3.0, 0.0, 4.0, 0.0, 0.0, 4.0]]


@pytest.mark.parametrize("name", ["g1.l0.95", "g1.l1", "g1.l0"])
def test_generalised_advantages_match_the_worked_examples(name: str) -> None:
    case = CASES[f"adv.gae.{name}"]
    out = gae(
        rows(case["inputs"]["rewards"]),
        rows(case["inputs"]["values"]),
        torch.ones(1, 5),
        discount=case["params"]["gamma"],
        trace_decay=case["params"]["lambda"],
        value_after_last=torch.tensor([case["inputs"]["value_after_last"]]),
    )
    assert out.advantages[0].tolist() == pytest.approx(case["expected"]["advantages"])
    assert out.returns[0].tolist() == pytest.approx(case["expected"]["returns"])


def test_whitening_changes_the_advantages_and_not_the_returns() -> None:
    case = CASES["adv.gae.whitened"]
    out = gae(rows(case["inputs"]["rewards"]), rows(case["inputs"]["values"]), torch.ones(1, 5), trace_decay=0.95)
    scaled = whitened(out.advantages, torch.ones(1, 5), ddof=1)
    assert scaled[0].tolist() == pytest.approx(case["expected"]["advantages"], abs=1e-8)
    assert out.returns[0].tolist() == pytest.approx(case["expected"]["returns"])


def test_generalised_advantages_carry_values_across_masked_tokens() -> None:
    # Without the two tokens of the environment: d_1 = 1 - 0.4 = 0.6, d_0 = 0.9 * 0.4 - 0.5, A_0 = d_0 + 0.9 * 0.5 * 0.6.
    mask = rows([1, 0, 0, 1])
    out = gae(rows([0, 0, 0, 1.0]), rows([0.5, math.nan, 9.0, 0.4]), mask, discount=0.9, trace_decay=0.5)
    assert out.advantages[0].tolist() == pytest.approx([0.9 * 0.4 - 0.5 + 0.45 * 0.6, 0.0, 0.0, 0.6])
    assert out.returns[0].tolist() == pytest.approx([out.advantages[0, 0].item() + 0.5, 0.0, 0.0, 1.0])


def test_a_cut_completion_goes_on_with_the_value_after_its_last_token() -> None:
    # One token each: d = r + 0.9 V_after - V.
    out = gae(
        rows([0.0], [0.0]), rows([0.5], [0.5]), torch.ones(2, 1), discount=0.9, value_after_last=rows([0.7, 0])[0]
    )
    assert out.advantages.flatten().tolist() == pytest.approx([0.9 * 0.7 - 0.5, -0.5])
    # The value stands after the last counted token, whatever padding is to its right.
    padded = gae(rows([0.0, 0.0]), rows([0.5, 8.0]), rows([1, 0]), discount=0.9, value_after_last=torch.tensor([0.7]))
    assert padded.advantages[0].tolist() == pytest.approx([0.9 * 0.7 - 0.5, 0.0])


@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_a_reward_on_a_masked_token_belongs_to_the_token_before(discount: float) -> None:
    moved, placed = rows([0.0, 0.0, 2.0, 0.0, 1.0]), rows([0.0, 2.0, 0.0, 1.0, 0.0])
    mask = rows([1, 1, 0, 1, 0])
    torch.testing.assert_close(
        return_to_go(moved, mask, discount=discount), return_to_go(placed, mask, discount=discount)
    )
    values = rows([0.3, 0.2, 0.0, 0.1, 0.0])
    torch.testing.assert_close(
        gae(moved, values, mask, discount=discount).advantages, gae(placed, values, mask, discount=discount).advantages
    )
    assert return_to_go(moved, mask, discount=discount)[0, 3].item() == 1.0


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), discount=st.floats(0, 1), trace_decay=st.floats(0, 1))
def test_both_ends_of_lambda_are_the_return_and_the_one_step_error(
    seed: int, discount: float, trace_decay: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 3, 6, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 6, generator=generator) < 0.6
    to_go = return_to_go(rewards, mask, discount=discount)
    whole = gae(rewards, values, mask, discount=discount, trace_decay=1.0)
    torch.testing.assert_close(whole.returns, to_go)
    torch.testing.assert_close(whole.advantages, torch.where(mask, to_go - values, 0))
    found = gae(rewards, values, mask, discount=discount, trace_decay=trace_decay).advantages
    for row in range(3):
        # The same without the tokens that do not count; what the environment earned goes to the token before.
        places = mask[row].nonzero()[:, 0].tolist()
        ends = [*places, 6][1:]
        earned = [rewards[row, place:end].sum().item() for place, end in zip(places, ends, strict=True)]
        kept = [values[row, place].item() for place in places]
        ahead = 0.0
        expected: list[float] = []
        for number in reversed(range(len(places))):
            after = kept[number + 1] if number + 1 < len(places) else 0.0
            ahead = earned[number] + discount * after - kept[number] + discount * trace_decay * ahead
            expected.insert(0, ahead)
        assert found[row, places].tolist() == pytest.approx(expected, abs=1e-9)
        assert found[row, ~mask[row]].abs().sum().item() == 0.0


def process_case() -> tuple[StepRewards, dict]:
    case = CASES["adv.grpo.process"]
    short, long = case["inputs"]["step_rewards"][1], case["inputs"]["step_rewards"][0]
    ends = case["inputs"]["step_ends"]
    steps = StepRewards(rows(long, [*short, math.nan]), torch.tensor([ends[0], [*ends[1], 0]]))
    return steps, case


def test_process_rewards_match_the_worked_example() -> None:
    steps, case = process_case()
    mask = torch.arange(6) < torch.tensor([[6], [5]])
    out = process_advantages(steps, torch.tensor([0, 0]), mask, eps=0.0)
    expected = case["expected"]["advantages"]
    assert out[0].tolist() == pytest.approx(expected[0])
    assert out[1].tolist() == pytest.approx([*expected[1], 0.0])


def test_steps_are_normalised_by_all_steps_of_their_group_only() -> None:
    steps, _ = process_case()
    alone = normalised_steps(steps, torch.tensor([0, 0]), eps=1e-6)
    others = StepRewards(
        torch.cat([steps.values, rows([5.0, -9.0, math.nan])]), torch.cat([steps.ends, torch.tensor([[1, 2, 0]])])
    )
    beside = normalised_steps(others, torch.tensor([0, 0, 1]), eps=1e-6)
    torch.testing.assert_close(beside[:2], alone, equal_nan=True)
    # 5 and -9 have the mean -2 and the deviation 7 sqrt(2).
    assert beside[2].tolist()[:2] == pytest.approx([1 / math.sqrt(2), -1 / math.sqrt(2)])


def test_steps_of_equal_reward_have_no_signal_and_a_rollout_without_steps_none() -> None:
    steps = StepRewards(rows([0.7, 0.7], [0.7 + 5e-7, math.nan], [math.nan, math.nan]), torch.ones(3, 2).long())
    assert normalised_steps(steps, torch.tensor([0, 0, 1]), eps=0.0)[:2].nan_to_num(0.0).abs().sum().item() == 0.0
    out = process_advantages(steps, torch.tensor([0, 0, 1]), torch.ones(3, 2), eps=0.0)
    assert out.tolist() == [[0.0, 0.0]] * 3


def test_steps_that_end_on_the_environments_tokens_teach_the_policys_before() -> None:
    steps = StepRewards(rows([1.0, 0.0]), torch.tensor([[2, 4]]))
    scale = math.sqrt(0.5)
    out = process_advantages(steps, torch.tensor([0]), rows([1, 0, 1, 1]), eps=0.0)
    # Both steps end at or after token 0, only the second after token 2.
    assert out[0].tolist() == pytest.approx([0.0, 0.0, -0.5 / scale, -0.5 / scale])
