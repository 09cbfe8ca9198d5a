import math
from fractions import Fraction

import pytest
import torch

from tests.training.golden import CASES
from training.token_selection import (
    covariance,
    covariance_band,
    covariance_top,
    dead_group_entropy_advantages,
    ends_weight,
    prefix_cut,
    sampled_tokens,
    top_entropy,
)


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_ends_of_a_completion_weigh_more_by_a_u() -> None:
    # tau 0, 1/4, 1/2, 3/4, 1 over counted tokens: (2 tau - 1)^2 is 1, 1/4, 0, 1/4, 1.
    found = ends_weight(rows([1, 1, 0, 1, 1, 1]), strength=2.0)
    assert found[0].tolist() == pytest.approx([3.0, 1.5, 0.0, 1.0, 1.5, 3.0])
    assert ends_weight(rows([0, 1, 0]), strength=2.0)[0].tolist() == [0.0, 1.0, 0.0]
    assert ends_weight(rows([0, 0]), strength=2.0)[0].tolist() == [0.0, 0.0]


def dead(causes: list[str | None], finished: list[bool], mask: torch.Tensor | None = None) -> torch.Tensor:
    """Two rollouts a group, with the entropies of the worked example each."""
    entropies = rows(*[CASES["adv.rlzvp"]["inputs"]["entropies"]] * (2 * len(causes)))
    return dead_group_entropy_advantages(
        entropies,
        torch.ones_like(entropies) if mask is None else mask,
        torch.arange(len(entropies)) // 2,
        causes,
        torch.tensor(finished),
        strength=CASES["adv.rlzvp"]["params"]["alpha"],
    )


def test_entropy_teaches_dead_groups_as_in_the_worked_example() -> None:
    expected = CASES["adv.rlzvp"]["expected"]
    found = dead(["all_right", "all_wrong", None, "same_score", "single"], [True] * 10)
    assert found[0].tolist() == found[1].tolist() == pytest.approx(expected["all_correct"])
    assert found[2].tolist() == found[3].tolist() == pytest.approx(expected["all_wrong"])
    assert found[4:].abs().sum().item() == 0.0


def test_a_group_that_was_cut_off_altogether_is_not_taught_by_entropy() -> None:
    found = dead(["all_wrong", "all_wrong"], [False, False, True, False])
    assert found[:2].abs().sum().item() == 0.0
    assert found[2:].abs().sum().item() > 0.0


def test_the_highest_entropy_is_that_of_the_counted_tokens() -> None:
    # The token of entropy 1 does not count: the highest is 0.5.
    found = dead(["all_wrong"], [True, True], rows([1, 0, 1], [1, 1, 1]))
    assert found[0].tolist() == pytest.approx([-0.03, 0.0, 0.0])
    assert found[1].tolist() == pytest.approx(CASES["adv.rlzvp"]["expected"]["all_wrong"])


def test_the_highest_entropies_match_the_worked_example() -> None:
    case = CASES["mask.forking_tokens"]
    found = top_entropy(rows(case["inputs"]["entropy"]), torch.ones(1, 10), share=case["params"]["rho"])
    assert found[0].int().tolist() == case["expected"]["mask"]


def test_the_threshold_of_entropy_is_of_the_counted_tokens_of_the_whole_step() -> None:
    # 4, 3 | 2, 1 count, so half of them are 4 and 3; the nine does not.
    found = top_entropy(rows([4, 3, 9], [2, 1, math.nan]), rows([1, 1, 0], [1, 1, 0]), share=0.5)
    assert found.tolist() == [[True, True, False], [False, False, False]]
    assert not bool(top_entropy(rows([1.0]), rows([0]), share=0.5).any())
    # Ties with the threshold are in.
    assert top_entropy(rows([1, 1, 1, 1]), torch.ones(1, 4), share=0.25).tolist() == [[True] * 4]


def test_drawn_tokens_weigh_as_in_the_worked_example_and_one_on_average() -> None:
    case = CASES["weight.nat_urs"]
    losses, share, mask = rows(case["inputs"]["loss"]), case["params"]["p"], torch.ones(1, 4)
    estimates = {}
    for seed in range(400):
        weights = sampled_tokens(mask, share=share, seed=seed)
        assert set(weights.flatten().tolist()) <= {0.0, 1 / share}
        estimates[tuple((weights[0] > 0).int().tolist())] = (weights * losses).sum().item() / 4
    assert estimates[tuple(case["inputs"]["selected"])] == pytest.approx(case["expected"]["estimate"])
    # Every one of the 16 draws is as likely, so their plain mean is the expectation.
    assert len(estimates) == 16
    assert sum(estimates.values()) / 16 == pytest.approx(case["expected"]["expectation_over_masks"])


def test_tokens_are_drawn_with_their_chance_and_only_counted_ones() -> None:
    mask = torch.ones(100, 100)
    mask[:, ::2] = 0
    weights = sampled_tokens(mask, share=0.3, seed=5)
    assert weights[:, ::2].abs().sum().item() == 0.0
    # 5000 draws: four standard errors are 0.026.
    assert (weights > 0).double().sum().item() / 5000 == pytest.approx(0.3, abs=0.026)
    torch.testing.assert_close(weights, sampled_tokens(mask, share=0.3, seed=5))
    assert not torch.equal(weights, sampled_tokens(mask, share=0.3, seed=6))
    assert torch.equal(sampled_tokens(mask, share=1.0, seed=5), mask)


@pytest.mark.parametrize(("tokens", "shortest"), [(5, 1), (5, 3), (5, 5), (3, 8), (1, 1)])
def test_a_random_cut_weighs_every_token_one_on_average(tokens: int, shortest: int) -> None:
    mask = torch.zeros(1, tokens + 2)
    mask[0, 1 : tokens + 1] = 1
    found = {}
    for seed in range(200):
        weights = prefix_cut(mask, shortest=shortest, seed=seed)[0].tolist()
        found[sum(weight > 0 for weight in weights)] = weights
    # All cuts are as likely, so the mean over them is the expectation.
    assert sorted(found) == list(range(min(shortest, tokens), tokens + 1))
    for column in range(tokens + 2):
        mean = sum(Fraction(weights[column]) for weights in found.values()) / len(found)
        assert float(mean) == pytest.approx(mask[0, column].item(), abs=1e-12)


def test_cuts_are_drawn_row_by_row_and_uniformly() -> None:
    weights = prefix_cut(torch.ones(3000, 3), shortest=1, seed=1)
    counts = (weights > 0).sum(dim=1).bincount(minlength=4).tolist()
    # 1000 each; four standard errors are 103.
    assert counts[0] == 0
    assert counts[1:] == pytest.approx([1000] * 3, abs=104)


def test_a_rollout_of_masked_tokens_has_no_cut() -> None:
    assert prefix_cut(torch.zeros(1, 3), shortest=1, seed=0).tolist() == [[0.0] * 3]


KL_COV = {key: rows(value) for key, value in CASES["mask.kl_cov"]["inputs"].items()}


def test_covariances_match_the_worked_example() -> None:
    case = CASES["mask.kl_cov"]
    ones = torch.ones(1, 5)
    found = covariance(KL_COV["logp"], KL_COV["advantage"], ones)
    assert found[0].tolist() == pytest.approx(case["expected"]["cov"])
    top = covariance_top(KL_COV["logp"], KL_COV["advantage"], ones, share=case["params"]["fraction"])
    assert top[0].int().tolist() == case["expected"]["selected"]
    band = CASES["mask.clip_cov"]
    eligible = covariance_band(KL_COV["logp"], KL_COV["advantage"], ones, low=1, high=5, share=2e-4, seed=0)
    assert eligible[0].int().tolist() == band["expected"]["eligible"]
    assert int(eligible.sum()) == band["expected"]["n_zeroed"]


def test_covariances_are_of_the_counted_tokens_of_the_whole_step() -> None:
    # The five tokens of the example in two rows, among others that do not count.
    def spread(values: torch.Tensor, filler: float) -> torch.Tensor:
        flat = values[0].tolist()
        return rows([*flat[:2], filler, filler], [flat[2], filler, *flat[3:]])

    mask = spread(torch.ones(1, 5), 0.0)
    logprobs, advantages = spread(KL_COV["logp"], math.nan), spread(KL_COV["advantage"], 40.0)
    found = covariance(logprobs, advantages, mask)
    assert found[mask.bool()].tolist() == pytest.approx(CASES["mask.kl_cov"]["expected"]["cov"])
    assert found[~mask.bool()].abs().sum().item() == 0.0
    top = covariance_top(logprobs, advantages, mask, share=0.4)
    # 2.016 and 0.976; one at least, whatever the share.
    assert top[mask.bool()].tolist() == [True, False, False, True, False]
    assert int(covariance_top(logprobs, advantages, mask, share=0.0).sum()) == 1


def test_tokens_of_the_band_are_drawn_at_random_by_seed() -> None:
    logprobs = torch.linspace(-3, 0, 40, dtype=torch.float64)[None]
    advantages = torch.linspace(-1, 1, 40, dtype=torch.float64)[None]
    ones = torch.ones(1, 40)
    value = covariance(logprobs, advantages, ones)
    eligible = (value > 0.2) & (value < 1.0)
    draws = [covariance_band(logprobs, advantages, ones, low=0.2, high=1.0, share=0.1, seed=s) for s in range(30)]
    assert all(int(draw.sum()) == 4 and not bool((draw & ~eligible).any()) for draw in draws)
    assert torch.equal(torch.stack(draws).any(dim=0), eligible)
    again = covariance_band(logprobs, advantages, ones, low=0.2, high=1.0, share=0.1, seed=3)
    assert torch.equal(again, draws[3])


def test_nothing_counted_picks_nothing() -> None:
    zeros = torch.zeros(2, 3, dtype=torch.float64)
    assert covariance(zeros, zeros, zeros).abs().sum().item() == 0.0
    assert not bool(covariance_top(zeros, zeros, zeros, share=0.5).any())
    assert not bool(covariance_band(zeros, zeros, zeros, low=-1, high=1, share=0.5, seed=0).any())
