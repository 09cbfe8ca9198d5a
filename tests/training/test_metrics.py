import itertools

import pytest
import torch

from tests.training.builders import scores_of
from training.metrics import counted_mean, pass_at_k, reward_part_means, scored_moments
from training.rewards import RewardSpan, Scored


@pytest.mark.parametrize(("samples", "correct"), [(4, 0), (4, 1), (4, 3), (4, 4), (6, 2)])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_pass_at_k_is_the_share_of_all_draws_with_a_success(samples: int, correct: int, k: int) -> None:
    outcomes = [True] * correct + [False] * (samples - correct)
    draws = list(itertools.combinations(outcomes, k))
    assert pass_at_k(samples, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_of_more_than_was_sampled_is_refused() -> None:
    with pytest.raises(ValueError, match="k=5, 1 of 4"):
        pass_at_k(4, 1, 5)


def test_rewards_that_are_missing_are_left_out_of_the_moments() -> None:
    assert scored_moments(torch.tensor([1.0, float("nan"), 0.0])) == (0.5, 0.5)


def test_the_mean_over_counted_tokens_ignores_the_rest() -> None:
    values, mask = torch.tensor([[1.0, 3.0], [float("nan"), 9.0]]), torch.tensor([[True, True], [False, False]])
    assert counted_mean(values, mask) == 2.0
    assert counted_mean(values, torch.zeros_like(mask)) == 0.0


def spans(*parts: tuple[str, float]) -> Scored:
    return Scored(tuple(RewardSpan(0, 1, value, "outcome", name) for name, value in parts))


def test_every_part_of_the_reward_has_a_mean_where_there_are_several() -> None:
    scores = scores_of([spans(("task", 1.0), ("format", 0.5)), spans(("task", 0.0)), Scored(), spans(("task", 9.0))])
    sampled = torch.tensor([True, True, True, False])
    # Over the two that were scored; what one lacks counts as nothing earned.
    assert reward_part_means(scores, sampled) == {"reward_part_task": 0.5, "reward_part_format": 0.25}
    assert reward_part_means(scores_of([spans(("task", 1.0))]), torch.tensor([True])) == {}
    many = scores_of([spans(*((f"answer {number}", 1.0) for number in range(21)))])
    assert reward_part_means(many, torch.tensor([True])) == {}
