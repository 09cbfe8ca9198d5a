import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.training.golden import CASES
from training.advantages import group_advantages
from training.batching import aggregate, rollout_scale
from training.losses import (
    CLIPPED_HIGH,
    CLIPPED_LOW,
    KEPT,
    LOSSES,
    MASKED,
    LossInputs,
    clipped_policy_loss,
    ratio_statistics,
)
from training.records import CLIP_FLAGS


def loss_of_ratios(ratios: list[float], advantage: float, **bounds: float) -> tuple[list[float], list[float]]:
    """Loss of each token, and minus its derivative by the token's log-probability."""
    policy = torch.tensor([ratios], dtype=torch.float64).log().requires_grad_()
    out = clipped_policy_loss(
        policy, torch.zeros_like(policy), torch.full_like(policy, advantage), torch.ones_like(policy), **bounds
    )
    (gradient,) = torch.autograd.grad(out.token_loss.sum(), policy)
    return out.token_loss[0].tolist(), (-gradient[0]).tolist()


def test_clips_only_the_token_that_moved_too_far() -> None:
    # ratios 1, 2 and 0.5 under advantages +1, +1, -1: objectives 1, min(2, 1.2), min(-0.5, -0.8)
    policy = torch.tensor([[0.0, math.log(2.0), math.log(0.5)]])
    out = clipped_policy_loss(policy, torch.zeros(1, 3), torch.tensor([[1.0, 1.0, -1.0]]), torch.ones(1, 3))
    assert out.token_loss[0].tolist() == pytest.approx([-1.0, -1.2, 0.8])
    assert out.clip_flag[0].tolist() == [KEPT, CLIPPED_HIGH, CLIPPED_LOW]
    stats = ratio_statistics(out.importance_ratio, out.clip_flag)
    assert (stats.clip_fraction, stats.clip_high_fraction, stats.clip_low_fraction) == pytest.approx(
        (2 / 3, 1 / 3, 1 / 3)
    )
    assert (stats.ratio_mean, stats.ratio_min, stats.ratio_max) == pytest.approx((3.5 / 3, 0.5, 2.0))


def test_a_move_against_the_advantage_is_not_clipped() -> None:
    # ratio 2 under A = -1 and 0.5 under A = +1: the unclipped branch is the worse objective and keeps its gradient.
    losses, gradients = loss_of_ratios([2.0], -1.0)
    assert (losses, gradients) == (pytest.approx([2.0]), pytest.approx([-2.0]))
    losses, gradients = loss_of_ratios([0.5], 1.0)
    assert (losses, gradients) == (pytest.approx([-0.5]), pytest.approx([0.5]))


@pytest.mark.parametrize(
    ("name", "bounds", "edges"),
    [
        ("clip.ppo.neg", {"clip_low": 0.2, "clip_high": 0.2}, (0.8, 1.2)),
        ("clip.dapo.neg", {"clip_low": 0.2, "clip_high": 0.28}, (0.8, 1.28)),
    ],
)
def test_matches_the_worked_clip_examples(name: str, bounds: dict, edges: tuple[float, float]) -> None:
    case = CASES[name]
    ratios = case["inputs"]["ratios"]
    losses, gradients = loss_of_ratios(ratios, case["inputs"]["advantage"], **bounds)
    assert losses == pytest.approx(case["expected"]["loss"])
    inside = [index for index, ratio in enumerate(ratios) if ratio not in edges]
    assert [gradients[i] for i in inside] == pytest.approx([case["expected"]["grad_coef"][i] for i in inside])


@pytest.mark.parametrize(("column", "bounds"), [("ppo_0.2", {}), ("dapo_0.2_0.28", {"clip_high": 0.28})])
@pytest.mark.parametrize("ratio", [0.5, 1, 1.5, 3])
@pytest.mark.parametrize("advantage", [1, -1])
def test_matches_the_gradient_table(column: str, bounds: dict, ratio: float, advantage: int) -> None:
    expected = CASES["grad.coefficients"]["expected"][f"r={ratio:g},A={advantage:+d}"][column]
    _, gradients = loss_of_ratios([float(ratio)], float(advantage), **bounds)
    assert gradients == pytest.approx([expected])


@pytest.mark.parametrize(
    ("name", "divide_by_std", "bounds", "aggregation"),
    [
        ("e2e.dapo", True, {"clip_high": 0.28}, {"aggregation": "token_mean"}),
        ("e2e.dr_grpo_const8", False, {}, {"aggregation": "token_sum_constant", "constant_tokens": 8}),
    ],
)
def test_a_whole_step_matches_value_and_gradient(
    name: str, divide_by_std: bool, bounds: dict, aggregation: dict
) -> None:
    case = CASES[name]
    given_ = {key: torch.tensor(value, dtype=torch.float64) for key, value in case["inputs"].items()}
    policy = given_["logp"].requires_grad_()
    advantage = group_advantages(given_["rewards"].reshape(2, 2), divide_by_std=divide_by_std).advantage.reshape(4)
    out = clipped_policy_loss(policy, given_["logp_old"], advantage[:, None].expand(4, 4), given_["mask"], **bounds)
    loss = aggregate(out.token_loss, given_["mask"], rollout_scale(given_["mask"], **aggregation))
    (gradient,) = torch.autograd.grad(loss, policy)
    assert loss.item() == pytest.approx(case["expected"]["loss"], abs=1e-9)
    assert gradient.flatten().tolist() == pytest.approx(
        torch.tensor(case["expected"]["dloss_dlogp"]).flatten().tolist(), abs=1e-6
    )


def test_what_stands_at_masked_tokens_never_matters() -> None:
    mask = torch.tensor([[True, False, False]])
    policy = torch.tensor([[-1.0, math.nan, -math.inf]], requires_grad=True)
    out = clipped_policy_loss(
        policy, torch.tensor([[-1.5, 0.0, math.nan]]), torch.tensor([[1.0, math.nan, math.inf]]), mask
    )
    loss = aggregate(out.token_loss, mask, rollout_scale(mask, "token_mean"))
    loss.backward()
    assert loss.item() == pytest.approx(-1.2)
    assert out.token_loss.tolist()[0][1:] == [0.0, 0.0]
    assert out.clip_flag[0].tolist() == [CLIPPED_HIGH, MASKED, MASKED]
    assert policy.grad is not None
    assert policy.grad[0].tolist() == [0.0, 0.0, 0.0]


def test_a_runaway_ratio_is_clamped_and_counted() -> None:
    losses = clipped_policy_loss(
        torch.tensor([[0.0, 0.0]]), torch.tensor([[-500.0, -1.0]]), -torch.ones(1, 2), torch.ones(1, 2)
    )
    assert losses.token_loss[0, 0].item() == pytest.approx(math.exp(20), rel=1e-6)
    assert losses.clamped_tokens == 1


def test_flags_are_those_of_the_record() -> None:
    assert [CLIP_FLAGS[flag] for flag in (KEPT, CLIPPED_HIGH, CLIPPED_LOW, MASKED)] == [
        "kept",
        "clipped_high",
        "clipped_low",
        "masked",
    ]


def test_statistics_of_nothing_are_finite() -> None:
    stats = ratio_statistics(torch.ones(2, 3), torch.full((2, 3), MASKED, dtype=torch.uint8))
    assert (stats.counted_tokens, stats.clip_fraction, stats.ratio_mean) == (0, 0.0, 1.0)


def test_refuses_shapes_that_would_broadcast() -> None:
    with pytest.raises(ValueError, match="one shape"):
        clipped_policy_loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 1), torch.ones(2, 3))
    with pytest.raises(ValueError, match="not negative"):
        clipped_policy_loss(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), clip_low=-0.1)


def batch(seed: int, rollouts: int, width: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, width + 1, (rollouts,), generator=generator)
    return {
        "logits": torch.randn(rollouts, width, 5, generator=generator, dtype=torch.float64),
        "ids": torch.randint(5, (rollouts, width), generator=generator),
        "advantage": torch.randn(rollouts, generator=generator, dtype=torch.float64),
        "mask": torch.arange(width)[None] < lengths[:, None],
    }


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), rollouts=st.integers(1, 5), width=st.integers(1, 6))
def test_on_policy_the_gradient_is_that_of_reinforce(seed: int, rollouts: int, width: int) -> None:
    made = batch(seed, rollouts, width)
    logits = made["logits"].requires_grad_()
    policy = logits.log_softmax(-1).gather(-1, made["ids"][..., None]).squeeze(-1)
    advantages = made["advantage"][:, None].expand_as(policy)
    scale = rollout_scale(made["mask"], "rollout_mean")
    out = clipped_policy_loss(policy, policy.detach(), advantages, made["mask"])
    (clipped,) = torch.autograd.grad(aggregate(out.token_loss, made["mask"], scale), logits, retain_graph=True)
    (reinforce,) = torch.autograd.grad(aggregate(-advantages * policy, made["mask"], scale), logits)
    torch.testing.assert_close(clipped, reinforce, rtol=1e-10, atol=1e-12)
    assert bool((out.clip_flag[made["mask"]] == KEPT).all())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), padding=st.integers(1, 4))
def test_padding_changes_neither_loss_nor_gradient(seed: int, padding: int) -> None:
    made = batch(seed, 3, 4)
    policy = -made["logits"][..., 0].abs()
    sampler = -made["logits"][..., 1].abs()
    advantages = made["advantage"][:, None].expand_as(policy)

    def loss_and_gradient(pad: int) -> tuple[float, Tensor]:
        def padded(values: Tensor, filler: float) -> Tensor:
            return torch.nn.functional.pad(values, (0, pad), value=filler)

        leaf = policy.clone().requires_grad_()
        mask = padded(made["mask"], False)
        out = clipped_policy_loss(padded(leaf, -7.0), padded(sampler, 3.0), padded(advantages, 9.0), mask)
        loss = aggregate(out.token_loss, mask, rollout_scale(mask, "token_mean"))
        return loss.item(), torch.autograd.grad(loss, leaf)[0]

    plain, wide = loss_and_gradient(0), loss_and_gradient(padding)
    assert wide[0] == pytest.approx(plain[0], rel=1e-12)
    torch.testing.assert_close(wide[1], plain[1])


def test_no_advantage_no_gradient() -> None:
    policy = torch.tensor([[-1.0, -3.0]], requires_grad=True)
    out = clipped_policy_loss(policy, torch.tensor([[-2.0, -1.0]]), torch.zeros(1, 2), torch.ones(1, 2))
    out.token_loss.sum().backward()
    assert out.token_loss.abs().sum().item() == 0.0
    assert policy.grad is not None and policy.grad.abs().sum().item() == 0.0
    assert out.clip_flag[0].tolist() == [KEPT, KEPT]


def test_the_entry_of_the_registry_weighs_tokens_and_anchors_on_recomputed_logprobs() -> None:
    inputs = LossInputs(
        policy_logprobs=torch.tensor([[-1.0, -1.0]]),
        sampler_logprobs=torch.tensor([[-9.0, -9.0]]),
        token_advantages=torch.ones(1, 2),
        token_weights=torch.tensor([[1.0, 0.5]]),
        loss_mask=torch.ones(1, 2, dtype=torch.bool),
        recomputed_logprobs=torch.tensor([[-1.0, -1.0]]),
    )
    params = {"clip_low": 0.2, "clip_high": 0.2, "ratio_level": "token", "dual_clip": 0.0}
    out = LOSSES["clipped"](inputs, params)
    assert out.token_loss[0].tolist() == pytest.approx([-1.0, -0.5])
