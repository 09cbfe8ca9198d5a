import math
from collections.abc import Callable
from typing import Any

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
    PolicyLoss,
    clipped_policy_loss,
    detached_clip_loss,
    divergence_masked_loss,
    geometric_mean_loss,
    importance_ratio,
    ratio_statistics,
    reinforce_loss,
    soft_gate_loss,
    unclipped_loss,
)
from training.records import CLIP_FLAGS


def loss_of_ratios(
    ratios: list[float], advantage: float, loss: Callable[..., PolicyLoss] = clipped_policy_loss, **bounds: Any
) -> tuple[list[float], list[float]]:
    """Loss of each token, and minus its derivative by the token's log-probability."""
    policy = torch.tensor([ratios], dtype=torch.float64).log().requires_grad_()
    out = loss(policy, torch.zeros_like(policy), torch.full_like(policy, advantage), torch.ones_like(policy), **bounds)
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


@pytest.mark.parametrize(
    ("column", "loss", "bounds"),
    [
        ("ppo_0.2", clipped_policy_loss, {}),
        ("dapo_0.2_0.28", clipped_policy_loss, {"clip_high": 0.28}),
        ("dual_clip_c2", clipped_policy_loss, {"dual_clip": 2.0}),
        ("is_unclipped", clipped_policy_loss, {"clip_low": 1.0, "clip_high": 100.0}),
        ("reinforce", reinforce_loss, {}),
        ("cispo_max5", detached_clip_loss, {}),
        ("cispo_0.2_0.28", detached_clip_loss, {"ratio_low": 0.8, "ratio_high": 1.28}),
        ("sapo", soft_gate_loss, {}),
    ],
)
@pytest.mark.parametrize("ratio", [0.5, 1, 1.5, 3])
@pytest.mark.parametrize("advantage", [1, -1])
def test_matches_the_gradient_table(column: str, loss: Any, bounds: dict, ratio: float, advantage: int) -> None:
    expected = CASES["grad.coefficients"]["expected"][f"r={ratio:g},A={advantage:+d}"][column]
    _, gradients = loss_of_ratios([float(ratio)], float(advantage), loss, **bounds)
    assert gradients == pytest.approx([expected])


def test_a_dual_clip_bounds_the_loss_of_a_bad_token() -> None:
    case = CASES["clip.ppo.dual"]
    losses, gradients = loss_of_ratios(case["inputs"]["ratios"], -1.0, dual_clip=case["params"]["c"])
    assert losses == pytest.approx(case["expected"]["loss"])
    assert gradients[6] == 0.0
    out = clipped_policy_loss(
        torch.tensor([[math.log(4.0), math.log(4.0)]]),
        torch.zeros(1, 2),
        torch.tensor([[-1.0, 1.0]]),
        torch.ones(1, 2),
        dual_clip=3.0,
    )
    assert out.clip_flag[0].tolist() == [CLIPPED_HIGH, CLIPPED_HIGH]
    # A good token is bounded by the ordinary clip.
    assert out.token_loss[0].tolist() == pytest.approx([3.0, -1.2])
    with pytest.raises(ValueError, match="above 1"):
        loss_of_ratios([1.0], 1.0, dual_clip=0.5)


def test_a_cap_on_the_unclipped_branch_is_a_dual_clip() -> None:
    case = CASES["clip.trl_delta"]
    losses, _ = loss_of_ratios(case["inputs"]["ratios"], case["inputs"]["advantage"], dual_clip=case["params"]["delta"])
    assert losses == pytest.approx(case["expected"]["loss"])


def test_selected_tokens_pay_for_their_movement_and_nothing_is_clipped() -> None:
    case = CASES["mask.kl_cov"]
    sampler, advantages = (torch.tensor([case["inputs"][key]], dtype=torch.float64) for key in ("logp", "advantage"))
    selected = torch.tensor([case["expected"]["selected"]]).bool()
    for direction in (1, -1):
        move = direction * torch.tensor([case["inputs"]["log_ratio"]], dtype=torch.float64)
        policy = (sampler + move).requires_grad_()
        out = unclipped_loss(policy, sampler, advantages, torch.ones(1, 5), selected=selected, penalty=1.0)
        (gradient,) = torch.autograd.grad(out.token_loss.sum(), policy)
        # -(r A - penalty sign(log r))
        expected = -(move.exp() * advantages - selected * direction)
        torch.testing.assert_close(gradient, expected)
        assert direction < 0 or out.token_loss[0].tolist() == pytest.approx(case["expected"]["loss"])
    far = unclipped_loss(torch.full((1, 1), 3.0), torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1))
    assert far.token_loss.item() == pytest.approx(-math.exp(3.0))
    assert far.clip_flag.tolist() == [[KEPT]]


def drifted(moves: list[list[float]], advantages: list[float], **bounds: Any) -> tuple[PolicyLoss, Tensor]:
    """Completions whose tokens moved by so many nats; the loss and its gradient."""
    policy = torch.tensor(moves, dtype=torch.float64).requires_grad_()
    wide = torch.tensor(advantages, dtype=torch.float64)[:, None].expand_as(policy)
    out = clipped_policy_loss(policy, torch.zeros_like(policy), wide, torch.ones_like(policy), clip_low=1.0, **bounds)
    return out, torch.autograd.grad(out.token_loss.sum(), policy)[0]


def test_a_bad_completion_that_drifted_away_is_dropped_whole() -> None:
    # Means of log sampler - log policy: 0.6 and 0.4 for bad ones, 0.6 for a good one.
    moves = [[-1.0, -0.2], [-0.6, -0.2], [-1.0, -0.2]]
    out, gradient = drifted(moves, [-1.0, -1.0, 1.0], drift_limit=0.5)
    assert out.clip_flag.tolist() == [[CLIPPED_LOW] * 2, [KEPT] * 2, [KEPT] * 2]
    assert out.token_loss[0].tolist() == [0.0, 0.0]
    assert gradient[0].tolist() == [0.0, 0.0]
    assert gradient[1].tolist() == pytest.approx([math.exp(-0.6), math.exp(-0.2)])
    assert gradient[2].tolist() == pytest.approx([-math.exp(-1.0), -math.exp(-0.2)])
    # One that became likelier is not far in this sense, however far it moved; without a limit nothing is dropped.
    assert drifted([[1.0, 1.0]], [-1.0], drift_limit=0.5)[0].clip_flag.tolist() == [[KEPT] * 2]
    assert drifted(moves, [-1.0, -1.0, 1.0])[1][0].tolist() == pytest.approx([math.exp(-1.0), math.exp(-0.2)])


def test_the_drift_is_the_mean_over_counted_tokens() -> None:
    policy = torch.tensor([[-0.8, math.nan, -0.4]])
    mask = torch.tensor([[True, False, True]])
    for limit, flag in ((0.59, CLIPPED_LOW), (0.61, KEPT)):
        out = clipped_policy_loss(policy, torch.zeros(1, 3), -torch.ones(1, 3), mask, clip_low=1.0, drift_limit=limit)
        assert out.clip_flag[0].tolist() == [flag, MASKED, flag]


def test_a_capped_ratio_keeps_its_gradient_and_is_flagged() -> None:
    case = CASES["clip.cispo"]
    ratios = case["inputs"]["ratios"]
    for column, low, high in (("trl_liger_absolute_max5", 0.0, 5.0), ("verl_slime_0.2_0.28", 0.8, 1.28)):
        _, gradients = loss_of_ratios(ratios, 1.0, detached_clip_loss, ratio_low=low, ratio_high=high)
        assert gradients == pytest.approx(case["expected"][column])
    policy = torch.tensor([ratios]).log()
    out = detached_clip_loss(
        policy, torch.zeros(1, 5), torch.ones(1, 5), torch.ones(1, 5), ratio_low=0.8, ratio_high=1.28
    )
    assert out.clip_flag[0].tolist() == [CLIPPED_LOW, KEPT, KEPT, CLIPPED_HIGH, CLIPPED_HIGH]
    assert out.importance_ratio[0].tolist() == pytest.approx(ratios)
    with pytest.raises(ValueError, match="ratios around 1"):
        loss_of_ratios([1.0], 1.0, detached_clip_loss, ratio_high=0.28)


def test_the_soft_gate_matches_the_worked_example() -> None:
    case = CASES["gate.sapo.neg"]
    ratios = case["inputs"]["ratios"]
    losses, gradients = loss_of_ratios(ratios, -1.0, soft_gate_loss)
    assert losses == pytest.approx(case["expected"]["loss"])
    slopes = [-gradient / ratio for gradient, ratio in zip(gradients, ratios, strict=True)]
    assert slopes == pytest.approx(case["expected"]["dgate_dr"])
    # 4 sigmoid(0) = 2 where the policy has not moved, with tau 1 for a good token.
    assert loss_of_ratios([1.0], 1.0, soft_gate_loss) == ([pytest.approx(-2.0)], [pytest.approx(1.0)])


def test_the_geometric_mean_matches_the_worked_example() -> None:
    case = CASES["ratio.gmpo"]
    ratios = [math.exp(value) for value in case["inputs"]["log_ratio"]]
    for sign in (1, -1):
        losses, gradients = loss_of_ratios(ratios, float(sign), geometric_mean_loss)
        assert losses == pytest.approx([case["expected"][f"loss_A={sign:+d}"]] * 3)
        # Every token carries the rollout's loss; the clipped one has no gradient, the others a third of three.
        mean = case["expected"]["A>0" if sign > 0 else "A<0"]
        clipped = 1 if sign > 0 else 2
        assert gradients == pytest.approx([0.0 if token == clipped else sign * mean for token in range(3)])
    losses, _ = loss_of_ratios(ratios, 1.0, geometric_mean_loss, log_clip_low=20.0, log_clip_high=20.0)
    assert losses == pytest.approx([-case["expected"]["no_clip"]] * 3)


@pytest.mark.parametrize(
    ("name", "divergence", "limit", "suffix"),
    [
        ("mask.dppo_tv", "tv", 0.15, "_delta0.15"),
        ("mask.dppo_tv", "tv", 0.2, "_delta0.2"),
        ("mask.dppo_kl", "kl", 0.05, ""),
    ],
)
def test_the_divergence_mask_matches_the_worked_examples(name: str, divergence: str, limit: float, suffix: str) -> None:
    case = CASES[name]
    policy = torch.tensor([case["inputs"]["p"]], dtype=torch.float64).log().requires_grad_()
    sampler = torch.tensor([case["inputs"]["mu"]], dtype=torch.float64).log()
    ratio = (policy - sampler).exp()[0].tolist()
    for sign, side in ((1.0, "A>0"), (-1.0, "A<0")):
        advantages = torch.full_like(sampler, sign)
        out = divergence_masked_loss(
            policy, sampler, advantages, torch.ones_like(sampler), divergence=divergence, limit=limit, ratio_cap=2.0
        )
        keep = case["expected"][f"keep_{side}{suffix}"]
        assert [int(flag == KEPT) for flag in out.clip_flag[0].tolist()] == keep
        (gradient,) = torch.autograd.grad(out.token_loss.sum(), policy)
        capped = [sign * min(one, 2.0) * kept for one, kept in zip(ratio, keep, strict=True)]
        assert (-gradient[0]).tolist() == pytest.approx(capped)


def test_both_sides_of_the_divergence_mask_have_their_limit_and_flag() -> None:
    # Changes of +0.1, +0.2, -0.1 and -0.2; only the large ones in the direction of the advantage are dropped.
    sampler = torch.full((1, 4), 0.5).log()
    policy = torch.tensor([[0.6, 0.7, 0.4, 0.3]]).log()
    for sign, flags in ((1.0, [KEPT, CLIPPED_HIGH, KEPT, KEPT]), (-1.0, [KEPT, KEPT, KEPT, CLIPPED_LOW])):
        out = divergence_masked_loss(policy, sampler, torch.full((1, 4), sign), torch.ones(1, 4), limit=0.15)
        assert out.clip_flag[0].tolist() == flags


def test_the_binary_divergence_is_that_of_the_worked_example() -> None:
    # Just below the divergence of token 0 it is dropped, just above it is kept.
    case = CASES["mask.dppo_kl"]
    policy, sampler = (torch.tensor([case["inputs"][key]], dtype=torch.float64).log() for key in ("p", "mu"))
    value = case["expected"]["binary_kl"][0]
    for limit, flag in ((value - 1e-6, CLIPPED_HIGH), (value + 1e-6, KEPT)):
        out = divergence_masked_loss(
            policy, sampler, torch.ones_like(policy), torch.ones_like(policy), divergence="kl", limit=limit
        )
        assert out.clip_flag[0, 0].item() == flag


def test_a_divergence_over_more_tokens_replaces_that_of_the_sampled_one() -> None:
    # The sampled token itself hardly moved, the others of its place did.
    policy, sampler = torch.tensor([[0.51, 0.51, 0.49]]).log(), torch.full((1, 3), 0.5).log()
    far = torch.tensor([[0.3, 0.1, 0.3]])
    out = divergence_masked_loss(policy, sampler, torch.ones(1, 3), torch.ones(1, 3), limit=0.15, distance=far)
    assert out.clip_flag[0].tolist() == [CLIPPED_HIGH, KEPT, KEPT]
    nothing = torch.tensor([[False, True, True]])
    masked = divergence_masked_loss(policy, sampler, torch.ones(1, 3), nothing, limit=0.15, distance=far * math.nan)
    assert masked.clip_flag[0].tolist() == [MASKED, KEPT, KEPT]


GSPO = {key: torch.tensor(value, dtype=torch.float64) for key, value in CASES["ratio.gspo"]["inputs"].items()}


@pytest.mark.parametrize(
    ("level", "column"),
    [("sequence_mean", "s"), ("sequence_mean_token", "s"), ("sequence_sum", "product_ratio_for_contrast")],
)
def test_a_ratio_of_the_completion_matches_the_worked_example(level: str, column: str) -> None:
    expected = CASES["ratio.gspo"]["expected"][column]
    out = importance_ratio(GSPO["logp"], GSPO["logp_old"], GSPO["mask"], level=level)
    assert out.ratio[0].tolist() == pytest.approx([expected[0]] * 3)
    assert out.ratio[1].tolist() == pytest.approx([expected[1]] * 2 + [1.0])


@pytest.mark.parametrize("level", ["sequence_mean", "sequence_mean_token"])
def test_both_forms_of_a_sequence_ratio_have_one_gradient(level: str) -> None:
    case = CASES["grad.gspo_token"]
    lengths = case["inputs"]["lengths"]
    mask = torch.arange(3)[None] < torch.tensor(lengths)[:, None]
    sampler = torch.zeros(2, 3, dtype=torch.float64)
    policy = torch.full_like(sampler, math.log(case["inputs"]["s"])).requires_grad_()
    out = clipped_policy_loss(
        policy, sampler, torch.ones_like(sampler), mask, clip_low=3e-4, clip_high=4e-4, level=level
    )
    loss = aggregate(out.token_loss, mask, rollout_scale(mask, "rollout_mean"))
    (gradient,) = torch.autograd.grad(loss, policy)
    assert (-gradient)[mask].tolist() == pytest.approx(
        [case["expected"]["coef_row0"]] * 3 + [case["expected"]["coef_row1"]] * 2
    )


def test_a_sequence_ratio_clips_the_whole_completion() -> None:
    # Ratios 2 and 1/2 have the mean log-ratio 0; 2 and 1 have sqrt(2).
    log_two = math.log(2.0)
    policy = torch.tensor([[log_two, -log_two], [log_two, 0.0]], requires_grad=True)
    out = clipped_policy_loss(policy, torch.zeros(2, 2), torch.ones(2, 2), torch.ones(2, 2), level="sequence_mean")
    assert out.token_loss.flatten().tolist() == pytest.approx([-1.0, -1.0, -1.2, -1.2])
    assert out.clip_flag.tolist() == [[KEPT, KEPT], [CLIPPED_HIGH, CLIPPED_HIGH]]
    (gradient,) = torch.autograd.grad(out.token_loss.sum(), policy)
    assert gradient.flatten().tolist() == pytest.approx([-1.0, -1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    "loss",
    [
        geometric_mean_loss,
        lambda *tensors: clipped_policy_loss(*tensors, level="sequence_mean"),
        lambda *tensors: clipped_policy_loss(*tensors, level="sequence_sum"),
    ],
)
def test_a_loss_of_completions_refuses_advantages_of_tokens(loss: Callable[..., PolicyLoss]) -> None:
    with pytest.raises(ValueError, match="one advantage per rollout"):
        loss(torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([[1.0, 0.5]]), torch.ones(1, 2))


def test_refuses_names_it_does_not_know() -> None:
    zeros, ones = torch.zeros(1, 1), torch.ones(1, 1)
    with pytest.raises(ValueError, match="unknown ratio level 'sentence'; known: token, sequence_mean"):
        importance_ratio(zeros, zeros, ones, level="sentence")
    with pytest.raises(ValueError, match="unknown divergence 'js'; known: tv, kl"):
        divergence_masked_loss(zeros, zeros, ones, ones, divergence="js")


def test_reinforce_takes_the_token_sums_of_the_worked_example() -> None:
    case = CASES["loss.reinforce.levels"]
    policy, mask = torch.tensor(case["inputs"]["logp"]), torch.tensor(case["inputs"]["mask"])
    advantages = torch.tensor(case["inputs"]["advantage"])[:, None].expand_as(policy)
    # Far from the sampler: the ratio must not enter.
    out = reinforce_loss(policy, policy - 1, advantages, mask)
    for name, column in (
        ("token_mean", "token_mean"),
        ("rollout_sum", "completion_sum_mean"),
        ("rollout_mean", "completion_mean_mean"),
    ):
        loss = aggregate(out.token_loss, mask, rollout_scale(mask, name))
        assert loss.item() == pytest.approx(case["expected"][column])


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
    params = {"clip_low": 0.2, "clip_high": 0.2, "ratio_level": "token", "dual_clip": 0.0, "drift_limit": 0.0}
    out = LOSSES["clipped"](inputs, params)
    assert out.token_loss[0].tolist() == pytest.approx([-1.0, -0.5])
