import math

import pytest
import torch

from tests.training.golden import CASES
from training.divergences import (
    KL_ESTIMATORS,
    adapted_coefficient,
    adapted_entropy_coefficient,
    kl_k1,
    kl_k2,
    kl_k3,
    top_k_divergence,
)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_matches_the_worked_examples_in_value_and_slope(number: int, estimator: str) -> None:
    case = CASES[f"kl.estimators.{number}"]
    policy = torch.tensor(case["inputs"]["logp"], dtype=torch.float64, requires_grad=True)
    value = KL_ESTIMATORS[estimator](policy, torch.tensor(case["inputs"]["logp_ref"], dtype=torch.float64))
    value.backward()
    assert value.item() == pytest.approx(case["expected"][estimator], abs=1e-9)
    assert policy.grad is not None
    assert policy.grad.item() == pytest.approx(case["expected"][f"d{estimator}_dlogp"], abs=1e-9)


def test_expected_values_are_the_divergence_and_expected_gradients_are_as_documented() -> None:
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    policy, other = logits.log_softmax(-1), torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64).log()
    probability = policy.exp().detach()
    reverse = (policy.exp() * (policy - other)).sum()
    assert (probability * kl_k1(policy, other)).sum().item() == pytest.approx(reverse.item())
    assert (probability * kl_k3(policy, other)).sum().item() == pytest.approx(reverse.item())

    def gradient(loss: torch.Tensor) -> list[float]:
        return torch.autograd.grad(loss, logits, retain_graph=True)[0].tolist()

    assert gradient((probability * kl_k1(policy, other)).sum()) == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)
    assert gradient((probability * kl_k2(policy, other)).sum()) == pytest.approx(gradient(reverse))
    # Forward KL: policy minus reference.
    assert gradient((probability * kl_k3(policy, other)).sum()) == pytest.approx((probability - other.exp()).tolist())


def test_k3_is_never_negative_and_never_infinite() -> None:
    policy = torch.linspace(-2000, 0, 4001)
    value = kl_k3(policy, policy.flip(0))
    assert value.min().item() >= 0.0
    assert torch.isfinite(value).all()


def test_k3_keeps_small_differences() -> None:
    # exp(d) - 1 - d is d**2 / 2 to first order; in float32 exp(1e-4) - 1 alone has lost half the digits.
    assert kl_k3(torch.tensor(-1e-3), torch.tensor(0.0)).item() == pytest.approx(5e-7, rel=2e-2)


def test_the_coefficient_follows_its_target_as_in_the_worked_example() -> None:
    case = CASES["kl.adaptive"]
    params, coefficient, found = case["params"], case["params"]["beta0"], []
    for kl in case["inputs"]["kl_sequence"]:
        coefficient = adapted_coefficient(
            coefficient, kl, target=params["target"], horizon=params["horizon"], rollouts=params["n"]
        )
        found.append(coefficient)
    assert found == pytest.approx(case["expected"]["beta"])


def test_the_entropy_coefficient_follows_its_target_as_in_the_worked_example() -> None:
    case = CASES["entropy.adaptive"]
    coefficient, found = 0.0, []
    for entropy in case["inputs"]["entropy_sequence"]:
        coefficient = adapted_entropy_coefficient(coefficient, entropy, target=0.2, step=0.005)
        found.append(coefficient)
    assert found == pytest.approx(case["expected"]["coef"])
    assert adapted_entropy_coefficient(0.002, 1.0, target=0.2, step=0.005) == 0.0
    assert adapted_entropy_coefficient(0.998, 0.1, target=0.2, step=0.005) == 1.0


def test_the_divergence_of_the_likeliest_tokens_matches_the_worked_example() -> None:
    case = CASES["mask.dppo_topk_tv"]
    policy, sampler = (torch.tensor(case["inputs"][key], dtype=torch.float64).log() for key in ("p", "mu"))
    k = case["inputs"]["K"]
    few = top_k_divergence(policy[:k], sampler[:k], kind="tv").item()
    assert few == pytest.approx(case["expected"]["tv_topk"])
    assert top_k_divergence(policy, sampler, kind="tv").item() == pytest.approx(case["expected"]["tv_full"])
    # Three ways: 0.5, 0.3 and 0.2 against 0.6, 0.2 and 0.2.
    expected = 0.5 * math.log(0.5 / 0.6) + 0.3 * math.log(0.3 / 0.2)
    assert top_k_divergence(policy[:k], sampler[:k], kind="kl").item() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_more_tokens_show_more_divergence_and_equal_distributions_none(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    policy, sampler = torch.randn(2, 50, 8, generator=generator, dtype=torch.float64).log_softmax(-1)
    found = torch.stack([top_k_divergence(policy[:, :k], sampler[:, :k], kind=kind) for k in range(1, 9)])
    assert bool((found.diff(dim=0) >= -1e-7).all())
    assert found[0].min() >= -1e-7
    assert top_k_divergence(policy, policy, kind=kind).abs().max().item() == pytest.approx(0.0, abs=1e-12)
    padded = [torch.nn.functional.pad(one[:, :3], (0, 2), value=-math.inf) for one in (policy, sampler)]
    torch.testing.assert_close(top_k_divergence(padded[0], padded[1], kind=kind), found[2])


def test_refuses_divergences_of_different_tokens() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        top_k_divergence(torch.zeros(2, 3), torch.zeros(2, 2), kind="tv")
    with pytest.raises(ValueError, match="unknown divergence 'js'; known: tv, kl"):
        top_k_divergence(torch.zeros(1), torch.zeros(1), kind="js")
