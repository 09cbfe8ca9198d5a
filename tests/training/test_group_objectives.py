import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.golden import CASES
from training.group_objectives import (
    best_of_k_weights,
    difficulty_weight,
    pass_at_k_advantages,
    stratified_advantages,
    tail_weights,
)

REWARDS = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]) | st.floats(0, 5), min_size=2, max_size=7)


def vector(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("name", ["adv.tailrl.013", "adv.tailrl.1001"])
def test_tail_weights_match_the_worked_examples(name: str) -> None:
    case = CASES[name]
    weights = tail_weights(vector(case["inputs"]["rewards"]))
    assert (weights - weights.mean()).tolist() == pytest.approx(case["expected"]["advantages"])


@settings(max_examples=40, deadline=None)
@given(rewards=REWARDS, lowest=st.sampled_from([0.0, -1.0]))
def test_tail_weights_are_the_slope_of_the_log_chances_to_beat_a_threshold(rewards: list[float], lowest: float) -> None:
    # J(p) = integral over v > lowest of log P(reward >= v), by the probability of each rollout.
    values = [round(reward, 2) for reward in rewards]

    def objective(chances: list[float]) -> float:
        total, before = 0.0, lowest
        for level in sorted(set(values)):
            share = math.fsum(chance for chance, value in zip(chances, values, strict=True) if value >= level)
            total, before = total + (level - before) * math.log(share), level
        return total

    even, step = [1 / len(values)] * len(values), 1e-6
    slopes = []
    for number in range(len(values)):
        up, down = ([c + sign * step * (i == number) for i, c in enumerate(even)] for sign in (1, -1))
        slopes.append((objective(up) - objective(down)) / (2 * step))
    assert tail_weights(vector(values), lowest=lowest).tolist() == pytest.approx(slopes, rel=1e-5, abs=1e-5)


@given(right=st.integers(1, 7), wrong=st.integers(1, 7))
def test_of_right_and_wrong_the_tail_is_maximum_likelihood(right: int, wrong: int) -> None:
    weights = tail_weights(vector([1.0] * right + [0.0] * wrong))
    share = right / (right + wrong)
    assert (weights - weights.mean()).tolist() == pytest.approx([1 / share - 1] * right + [-1.0] * wrong)


@given(rewards=REWARDS, shift=st.floats(0, 3))
def test_a_shift_of_all_rewards_leaves_the_centred_tail_alone(rewards: list[float], shift: float) -> None:
    rounded = [round(reward, 3) for reward in rewards]
    plain, moved = tail_weights(vector(rounded)), tail_weights(vector(rounded) + round(shift, 3))
    torch.testing.assert_close(moved - moved.mean(), plain - plain.mean(), rtol=1e-9, atol=1e-9)


def test_the_tail_refuses_a_reward_below_its_lower_bound() -> None:
    with pytest.raises(ValueError, match=r"a reward of -0\.5 lies below the lower bound 0\.0; lower tail_lowest"):
        tail_weights(vector([1.0, -0.5]))


def test_the_best_of_k_matches_the_worked_example() -> None:
    case = CASES["adv.pkpo.binary"]
    found = best_of_k_weights(vector(case["inputs"]["rewards"]), k=case["params"]["k"])
    assert found.tolist() == pytest.approx(case["expected"]["s_loo_minus_one_times_n_over_k"])


def brute_force_best_of_k(rewards: list[float], k: int) -> list[float]:
    """Mean over subsets of k - 1 others of what the rollout adds to the best of them."""
    out = []
    for number, reward in enumerate(rewards):
        others = [*rewards[:number], *rewards[number + 1 :]]
        subsets = list(itertools.combinations(others, k - 1))
        out.append(math.fsum(max(reward, *chosen) - max(chosen) for chosen in subsets) / len(subsets))
    return out


@settings(max_examples=60, deadline=None)
@given(rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]) | st.floats(-3, 3), min_size=2, max_size=7), data=st.data())
def test_the_best_of_k_is_that_of_all_subsets(rewards: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(2, len(rewards)))
    found = best_of_k_weights(vector(rewards), k=k).tolist()
    assert found == pytest.approx(brute_force_best_of_k(rewards, k), abs=1e-9)


def test_the_best_of_k_is_unbiased_for_the_gradient_of_the_expected_best() -> None:
    # Two arms of reward 0 and 1, chance p of the second: E[best of k] = 1 - (1 - p)^k, slope k (1 - p)^(k - 1).
    chance, size, k = 0.3, 4, 3
    expected = 0.0
    for arms in itertools.product([0, 1], repeat=size):
        weight = math.prod(chance if arm else 1 - chance for arm in arms)
        slopes = [1 / chance if arm else -1 / (1 - chance) for arm in arms]
        advantages = best_of_k_weights(vector([float(arm) for arm in arms]), k=k).tolist()
        expected += weight * math.fsum(a * s for a, s in zip(advantages, slopes, strict=True)) / size
    # Per rollout: the mean over a group of A_i d log p is 1 / k of the slope.
    assert k * expected == pytest.approx(k * (1 - chance) ** (k - 1))


@pytest.mark.parametrize("k", [0, 3])
def test_the_best_of_k_refuses_more_than_there_are(k: int) -> None:
    with pytest.raises(ValueError, match="k must be 1 to the group's 2 scored rollouts"):
        best_of_k_weights(vector([0.0, 1.0]), k=k)
    with pytest.raises(ValueError, match="k must be 1 to the group's 2 scored rollouts"):
        pass_at_k_advantages(2, 1, k=k)


def test_the_best_of_one_is_the_reward() -> None:
    assert best_of_k_weights(vector([0.25, -1.0]), k=1).tolist() == [0.25, -1.0]


@pytest.mark.parametrize("name", ["adv.passk_training.n4c1k2", "adv.passk_training.n8c2k4"])
def test_pass_at_k_matches_the_worked_examples(name: str) -> None:
    case = CASES[name]
    found = pass_at_k_advantages(
        case["inputs"]["n"], case["inputs"]["c"], k=case["params"]["k"], eps=case["params"]["eps"]
    )
    assert found == pytest.approx((case["expected"]["A_pos"], case["expected"]["A_neg"]))


@pytest.mark.parametrize(("total", "right", "k"), [(5, 2, 2), (6, 1, 3), (7, 4, 3), (6, 3, 3)])
def test_pass_at_k_is_the_mean_over_all_draws_of_their_normalised_reward(total: int, right: int, k: int) -> None:
    is_right = [number < right for number in range(total)]
    draws = list(itertools.combinations(range(total), k))
    rewards = {draw: float(any(is_right[number] for number in draw)) for draw in draws}
    mean = math.fsum(rewards.values()) / len(draws)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards.values()) / len(draws))
    expected = []
    for number in (0, total - 1):
        mine = [(rewards[draw] - mean) / deviation for draw in draws if number in draw]
        expected.append(math.fsum(mine) / len(mine))
    assert pass_at_k_advantages(total, right, k=k, eps=0.0) == pytest.approx(tuple(expected))


@pytest.mark.parametrize(("right", "k"), [(0, 2), (4, 2), (3, 2)])
def test_pass_at_k_has_no_signal_when_the_draws_are_all_alike(right: int, k: int) -> None:
    assert pass_at_k_advantages(4, right, k=k) == (0.0, 0.0)


def test_the_difficulty_weight_matches_the_worked_example_and_falls() -> None:
    expected = CASES["adv.grpo_lead"]["expected"]
    assert difficulty_weight(0.75) == pytest.approx(expected["w_p"])
    assert difficulty_weight(0.25) == pytest.approx(expected["w_1_minus_p"])
    assert difficulty_weight(0.0) > difficulty_weight(0.5) > difficulty_weight(1.0) > 0.4


def test_strata_match_the_worked_example() -> None:
    case = CASES["adv.san"]
    found = stratified_advantages(
        vector(case["inputs"]["rewards"]),
        torch.tensor(case["inputs"]["stratum"]),
        blend=case["params"]["alpha"],
        eps=case["params"]["eps"],
    )
    assert found.tolist() == pytest.approx(case["expected"]["advantages"])


def test_a_stratum_of_one_takes_the_groups_comparison_or_nothing() -> None:
    # Deviations divide by n: of 1, 0, 0 it is sqrt(2) / 3, so the z-scores are sqrt(2) and -1 / sqrt(2).
    rewards, strata = vector([1.0, 0.0, 0.0]), torch.tensor([9, 4, 4])
    root = math.sqrt(2)
    shared = stratified_advantages(rewards, strata, blend=0.8, eps=0.0)
    assert shared.tolist() == pytest.approx([root, -0.2 / root, -0.2 / root])
    zero = stratified_advantages(rewards, strata, blend=0.8, eps=0.0, lone="zero")
    assert zero.tolist() == pytest.approx([0.2 * root, -0.2 / root, -0.2 / root])
