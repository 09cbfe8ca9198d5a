import itertools

import pytest
import torch

from training.metrics import counted_mean, pass_at_k, scored_moments


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
