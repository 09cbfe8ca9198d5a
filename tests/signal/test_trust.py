"""How far a step moved, on tokens whose numbers can be worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from rlviewer.signal.measures import trust
from rlviewer.signal.measures.tokens import tokens_of
from rlviewer.signal.measures.trust import TrustSignals, trust_signals
from tests.signal.material import material
from training.divergences import kl_k1, kl_k2, kl_k3
from training.losses import clipped_policy_loss, divergence_masked_loss

LN2 = math.log(2)


def signals(*rollouts: dict[str, Any], **extra: Any) -> TrustSignals:
    of = material(list(rollouts), **extra)
    return trust_signals(of, tokens_of(of))


def two_tokens(**extra: Any) -> dict[str, Any]:
    """Ratios 2 and 1/2 under an advantage of 1 and -1."""
    return {
        "token_ids": [5, 6],
        "sampler_logprobs": [math.log(0.25), math.log(0.5)],
        "policy_logprobs": [math.log(0.5), math.log(0.25)],
        "token_advantages": [1.0, -1.0],
        "token_weights": [1.0, 1.0],
        "loss_mask": [1, 1],
        "clip_flag": [1, 0],
        **extra,
    }


def test_ratios_and_divergences() -> None:
    step = signals(two_tokens()).step
    assert step["ratio_quantiles"][0] == pytest.approx(0.5)
    assert step["ratio_quantiles"][-1] == pytest.approx(2)
    assert step["tv_mean"] == pytest.approx(0.25)
    # (2 + 1/2)^2 / (2 (4 + 1/4))
    assert step["ess_share"] == pytest.approx(6.25 / 8.5)
    first = 0.25 * math.log(0.5) + 0.75 * math.log(0.75 / 0.5)
    second = 0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75)
    assert step["binary_kl_mean"] == pytest.approx((first + second) / 2, abs=1e-6)
    k1, k2, k3 = step["sampler_kl"]
    assert (k1, k2) == pytest.approx((0, LN2**2 / 2), abs=1e-6)
    assert k3 == pytest.approx(((0.5 - 1 + LN2) + (2 - 1 - LN2)) / 2, abs=1e-6)
    assert step["reference_kl"] is None
    assert step["gap_mean"] is None


def test_estimators_are_the_trainers() -> None:
    rng = np.random.default_rng(1)
    policy, other = -rng.gamma(1, 1, 50), -rng.gamma(1, 1, 50)
    expected = [one(torch.tensor(policy), torch.tensor(other)).mean().item() for one in (kl_k1, kl_k2, kl_k3)]
    assert trust.kl_estimates(policy, other) == pytest.approx(expected)


def test_tokens_are_counted_by_the_sign_of_their_advantage() -> None:
    masked = two_tokens(token_advantages=[0.0, -2.0], advantage=-1.0, loss_mask=[0, 1], clip_flag=[3, 2])
    flat = two_tokens(token_advantages=[0.0, 0.0], advantage=0.0, clip_flag=[0, 0])
    assert signals(flat).step["counted_by_sign"] == [0, 0, 2]
    step = signals(two_tokens(advantage=0.0), masked).step
    assert step["counted_by_sign"] == [1, 2, 0]
    assert step["clipped_by_sign"] == [1, 1, 0]
    assert step["masked_by_sign"] == [0, 1, 0]
    assert (step["counted_tokens"], step["counted_rollouts"], step["counted_prompts"]) == (3, 2, 1)


def test_recomputed_log_probabilities_are_the_anchor_and_their_gap_is_told() -> None:
    step = signals(two_tokens(recomputed_logprobs=[math.log(0.5), math.log(0.25)])).step
    assert step["ratio_quantiles"] == pytest.approx([1.0] * 9)
    assert step["gap_mean"] == pytest.approx(LN2)
    assert step["gap_max"] == pytest.approx(LN2)


def test_without_log_probabilities_nothing_is_said_of_ratios() -> None:
    found = signals({"token_ids": [1, 2], "advantage": 1.0})
    assert found.step["ratio_quantiles"] is None
    assert found.step["ess_share"] is None
    assert found.step["clipped_by_sign"] is None
    assert found.step["counted_by_sign"] == [2, 0, 0]
    assert found.histograms == {}


def test_groups_have_an_effective_share_of_their_own() -> None:
    of_one = {"group": 1, "policy_logprobs": [-1.0, -1.0], "sampler_logprobs": [-1.0, -1.0]}
    assert signals(two_tokens(), two_tokens() | of_one).group_ess == pytest.approx([6.25 / 8.5, 1.0])


def test_ledger_of_versions() -> None:
    mixed = two_tokens(token_policy_version=[3, 4], origin=[2, 2])
    fed = two_tokens(token_policy_version=[4, 0], origin=[2, 4], loss_mask=[1, 0], clip_flag=[0, 3])
    old, new = signals(mixed, fed, index=4).versions
    assert (old.version, old.rollouts, old.mixing, old.tokens, old.kept, old.clipped) == (3, 1, 1, 1, 0, 1)
    assert (new.version, new.rollouts, new.mixing, new.tokens, new.kept, new.dropped) == (4, 2, 1, 2, 2, 0)
    assert old.spread == pytest.approx([2.0] * 3)
    rollouts = signals(two_tokens(policy_version=7)).versions
    assert [(one.version, one.tokens) for one in rollouts] == [(7, 2)]


def test_why_no_token_counts() -> None:
    none = {"loss_mask": [0, 0]}
    found = signals(
        two_tokens(),
        two_tokens(**none, drop_reason="not_mixed", kept=False),
        two_tokens(**none),
        two_tokens(**none, kept=False),
    )
    assert found.uncounted == {"not_mixed": 1, "loss mask is empty": 1, "left out, no reason told": 1}


@pytest.mark.parametrize("kind", ["ratio", "mismatch", "tv", "kl"])
def test_a_value_lies_in_its_bin(kind: str) -> None:
    edges = trust.edges(kind)
    values = np.array([0.0, 1e-4, 0.02, 0.15, 0.9])
    for value in values:
        (place,) = np.flatnonzero(trust._histogram(np.array([value]), kind))
        assert edges[place] <= value + 1e-12
        assert value <= edges[place + 1] + 1e-12


def test_histograms_count_what_another_limit_would_cut() -> None:
    rng = np.random.default_rng(0)
    sampler = -rng.gamma(1, 1, 4000).astype(np.float32)
    policy = np.minimum(sampler + rng.normal(0, 0.3, 4000), 0).astype(np.float32)
    advantage = rng.choice([-1.0, 1.0], 4000).astype(np.float32)
    row = {
        "sampler_logprobs": sampler, "policy_logprobs": policy, "token_advantages": advantage,
        "loss_mask": np.ones(4000), "token_ids": np.zeros(4000),
    }  # fmt: skip
    found = signals(row).histograms
    tensors = [torch.tensor(each)[None] for each in (policy, sampler, advantage, np.ones(4000))]
    clipped = clipped_policy_loss(*tensors, clip_low=0.2, clip_high=0.28).clip_flag
    masked = divergence_masked_loss(*tensors, divergence="tv", limit=0.05).clip_flag
    above = found["ratio_positive"][trust.edges("ratio")[:-1] >= math.log(1.28)].sum()
    below = found["ratio_negative"][trust.edges("ratio")[1:] <= math.log(0.8)].sum()
    assert above == pytest.approx(int((clipped == 1).sum()), rel=0.05)
    assert below == pytest.approx(int((clipped == 2).sum()), rel=0.05)
    moved = found["tv_positive"][trust.edges("tv")[:-1] >= 0.05].sum()
    assert moved == pytest.approx(int((masked == 1).sum()), rel=0.05)
    assert found["ratio_positive"].sum() + found["ratio_negative"].sum() == 4000
