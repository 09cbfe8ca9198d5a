"""Every recipe as a whole: its parts together on worked examples, on policy, and in a short run."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.training.golden import CASES
from training import legality, losses, spool
from training.advantages import ScoredGroups
from training.attempt import Attempt
from training.auxiliary import AUXILIARIES
from training.batching import aggregate, rollout_scale
from training.config import ConfigError, RunConfig
from training.estimators import ADVANTAGES
from training.losses import KEPT, LOSSES, LossInputs, PolicyLoss
from training.params import check_params
from training.recipes import RECIPES, knobs, pages
from training.records import RolloutBatch
from training.run import FINISHED, run_attempt
from training.steps import StepRewards
from training.token_weights import TokenFields, mask_rollouts, weigh_tokens

RUN_UID = "5f0c2d4e-8a51-4c2e-9d57-3b1f0a6c7e21"
E2E = CASES["e2e.dapo"]["inputs"]
LENGTHS = [[4, 2], [3, 1]]
WIDTH = 4
# Their importance ratio is held fixed, so the slope of the value is that at a fixed ratio.
DETACHED = frozenset({"detached_clip", "divergence_masked"})
# Entries of H6 whose draws go by the place of a rollout in the step.
DRAWN = frozenset({"sampled_tokens", "prefix_cut", "covariance_drop"})


class Step:
    """A recipe's parts, resolved as a run would, on groups of completions; every column differs from token to token.

    `order` rearranges the completions inside every group and all their columns with them.
    """

    def __init__(
        self,
        recipe: str,
        rewards: list[list[float]],
        *,
        lengths: list[list[int]] = LENGTHS,
        masked: bool = False,
        width: int = WIDTH,
        order: list[int] | None = None,
        right_above: float = 0.5,
        hooks: dict[str, Any] | None = None,
        **params: Any,
    ) -> None:
        group_size = len(rewards[0])
        if "pass_k" in RECIPES[recipe].params:
            params = {"pass_k": group_size // 2} | params
        raw = {"algorithm": recipe, "algorithm_params": params, "hooks": hooks or {}}
        quick = {"sampling": {"group_size": max(group_size, 4)}, "eval": {"prompts": 1}}
        config = RunConfig.from_dict(raw | quick)
        legality.check(config)
        self.resolved = legality.resolve(config)
        columns = [*range(group_size)] if order is None else order

        def arranged(values: Tensor) -> Tensor:
            """`[P, G, ...]` as `[B, ...]`"""
            return values[:, columns].flatten(0, 1)

        scores = torch.tensor(rewards, dtype=torch.float64)
        ends = arranged(torch.tensor(lengths))
        self.generated = torch.arange(width) < ends[:, None]
        if masked:
            self.generated = self.generated & False
        generator = torch.Generator().manual_seed(3)

        def column() -> Tensor:
            drawn = torch.rand(*scores.shape, WIDTH, generator=generator, dtype=torch.float64)
            return torch.nn.functional.pad(arranged(drawn), (0, width - WIDTH), value=math.nan)

        sampler, entropy, values = -column(), column(), column()
        self.sampler = sampler
        self.owner = torch.arange(len(scores)).repeat_interleave(group_size)
        scores = scores[:, columns]
        last = (ends - 1).clamp(min=0)
        token_rewards = torch.zeros(len(ends), width, dtype=torch.float64)
        token_rewards[torch.arange(len(ends)), last] = scores.reshape(-1)
        is_greedy = torch.tensor(columns) == group_size - 1
        # Half of a completion's reward is earned at its first token, half at its last.
        halves = scores.reshape(-1, 1).expand(-1, 2) / 2
        self.groups = ADVANTAGES[self.part("H5")](
            ScoredGroups(
                scores,
                scores.isfinite(),
                scores > right_above,
                self.generated.sum(dim=1).reshape(scores.shape),
                0.25,
                is_greedy=is_greedy.expand(scores.shape),
                strata=(ends % 2).reshape(scores.shape),
                steps_differ=scores.amax(dim=1) - scores.amin(dim=1) > 1e-6,
                clusters=torch.where(scores > right_above, 0, -1),
                tracker_value=torch.linspace(0.25, 0.75, len(scores)),
                base_majority=torch.ones(len(scores)),
            ),
            self.resolved.params,
        )
        self.mask = mask_rollouts(self.generated, ~self.groups.kept.reshape(-1))
        fields = TokenFields(
            advantage=self.groups.advantage.reshape(-1),
            loss_mask=self.mask,
            sampler_logprobs=sampler,
            # A little off, as two programs are.
            recomputed_logprobs=sampler + 0.001 * torch.arange(width) / WIDTH,
            entropy=entropy,
            token_rewards=token_rewards,
            values=0.1 * values,
            value_after_last=torch.zeros(len(ends)),
            is_finished=torch.ones(len(ends), dtype=torch.bool),
            group_index=self.owner,
            dead_cause=self.groups.dead_cause,
            steps=StepRewards(halves, torch.stack([torch.ones_like(last), last + 1], dim=1)),
            seed=1,
        )
        self.weights = weigh_tokens(self.resolved.parts["H6"], fields, self.resolved.params)

    def part(self, hook: str) -> str:
        return self.resolved.parts[hook][0]

    @property
    def advantages(self) -> Tensor:
        """What a token's slope is multiplied by, the weights of H6 included."""
        return self.weights.token_advantages.double() * self.weights.token_weights.double()

    def scale(self, aggregation: str = "") -> Tensor:
        return rollout_scale(
            self.mask,
            aggregation or self.resolved.params["aggregation"],
            prompt_index=self.owner,
            constant_tokens=self.resolved.params["constant_tokens"],
        )

    def inputs(self, policy: Tensor, sampler: Tensor, reference: Tensor | None = None) -> LossInputs:
        return LossInputs(
            policy,
            sampler,
            self.weights.token_advantages.double(),
            self.weights.token_weights.double(),
            self.mask,
            ref_logprobs=reference,
            selected=self.weights.selected,
        )

    def token_losses(self, policy: Tensor, sampler: Tensor) -> PolicyLoss:
        return LOSSES[self.part("H7")](self.inputs(policy, sampler), self.resolved.params)

    def loss(self, policy: Tensor, sampler: Tensor, reference: Tensor | None = None) -> Tensor:
        token_loss = self.token_losses(policy, sampler).token_loss
        for name in self.resolved.parts["H8"] if reference is not None else ():
            token_loss = token_loss + AUXILIARIES[name](self.inputs(policy, sampler, reference), self.resolved.params)
        return aggregate(token_loss, self.mask, self.scale())

    def moved(self, seed: int = 0, *, spread: float = 0.8) -> Tensor:
        """Log-probabilities of a policy that has left the sampler, by rollout and token."""
        generator = torch.Generator().manual_seed(seed)
        return self.sampler + spread * torch.randn(self.mask.shape, generator=generator, dtype=torch.float64)


def closed_gradient(step: Step, policy: Tensor, sampler: Tensor) -> Tensor:
    """Minus the gradient coefficient of every token times its share of the aggregation, token by token."""
    params, loss = step.resolved.params, step.part("H7")
    out, scale = torch.zeros_like(policy), step.scale()
    for row in range(len(policy)):
        places = step.mask[row].nonzero()[:, 0].tolist()
        moves = {t: (policy[row, t] - sampler[row, t]).item() for t in places}
        mean = math.fsum(moves.values()) / max(len(places), 1)
        for t in places:
            a = step.advantages[row, t].item()
            r = math.exp(moves[t])
            share = scale[row].item()
            if loss == "reinforce":
                g = a
            elif loss == "trust_region":
                g = r * a
            elif loss == "unclipped":
                is_selected = step.weights.selected is not None and bool(step.weights.selected[row, t])
                g = r * a - params["selected_penalty"] * math.copysign(1, moves[t]) * is_selected
            elif loss == "detached_clip":
                g = min(max(r, params["ratio_low"]), params["ratio_high"]) * a
            elif loss == "soft_gate":
                gate = 1 / (1 + math.exp(-(params["tau_positive"] if a > 0 else params["tau_negative"]) * (r - 1)))
                g = 4 * gate * (1 - gate) * r * a
            elif loss == "geometric_mean":
                high, low = params["log_clip_high"], -params["log_clip_low"]
                held = [min(one, high) if a > 0 else max(one, low) for one in moves.values()]
                is_free = moves[t] <= high if a > 0 else moves[t] >= low
                g = math.exp(math.fsum(held) / len(held)) * a * is_free
            elif loss == "divergence_masked":
                change = math.exp(policy[row, t].item()) - math.exp(sampler[row, t].item())
                is_dropped = abs(change) > params["tv_limit"] and change * a > 0
                g = 0.0 if is_dropped else min(r, params["ratio_cap"]) * a
            else:
                if params["ratio_level"] == "sequence_sum":
                    r, share = math.exp(math.fsum(moves.values())), share * len(places)
                elif params["ratio_level"] != "token":
                    r = math.exp(mean)
                is_clipped = r > 1 + params["clip_high"] if a > 0 else r < 1 - params["clip_low"]
                is_dropped = bool(params["drift_limit"]) and a < 0 and -mean > params["drift_limit"]
                g = 0.0 if is_clipped or is_dropped else r * a
            out[row, t] = -share * g
    return out


MIXED = [[1.0, 0.0], [0.0, 1.0]]


def spread_of(name: str) -> float:
    """How far the policy moves in a test: a ratio by the mean over a completion little, or it would always be clipped."""
    params = RECIPES[name].params
    is_mean = "ratio_level" in params and str(params["ratio_level"].default).startswith("sequence_mean")
    return params["clip_high"].default if is_mean else 0.8


def gradient_of(step: Step, policy: Tensor, sampler: Tensor) -> Tensor:
    leaf = policy.detach().clone().requires_grad_()
    return torch.autograd.grad(step.loss(leaf, sampler), leaf)[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RECIPES)
def test_the_gradient_is_its_closed_coefficient(name: str, seed: int) -> None:
    step = Step(name, MIXED)
    policy = step.moved(seed, spread=spread_of(name))
    found = gradient_of(step, policy, step.sampler)
    torch.testing.assert_close(found, closed_gradient(step, policy, step.sampler), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", RECIPES)
def test_the_gradient_is_the_slope_of_the_loss(name: str) -> None:
    step, h = Step(name, MIXED), 1e-6
    policy = step.moved(1, spread=spread_of(name))
    slopes = torch.zeros_like(policy)
    for row, column in step.mask.nonzero().tolist():
        pair = []
        for sign in (1, -1):
            change = torch.zeros_like(policy)
            change[row, column] = sign * h
            sampler = step.sampler + change if step.part("H7") in DETACHED else step.sampler
            pair.append(step.loss(policy + change, sampler).item())
        slopes[row, column] = (pair[0] - pair[1]) / (2 * h)
    torch.testing.assert_close(gradient_of(step, policy, step.sampler), slopes, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("recipe", "case", "params"),
    [
        ("rloo", "e2e.rloo_sequence_ratio", {}),
        ("dr_grpo", "e2e.dr_grpo_const8", {"constant_tokens": 8}),
        ("cispo", "e2e.cispo_abs_max1.3", {"ratio_high": 1.3}),
        ("gmpo", "e2e.gmpo", {}),
        ("sapo", "e2e.sapo", {}),
        ("dapo", "e2e.dapo", {}),
    ],
)
def test_a_whole_step_matches_value_and_gradient(recipe: str, case: str, params: dict[str, Any]) -> None:
    given_, expected = CASES[case]["inputs"], CASES[case]["expected"]
    policy = torch.tensor(given_["logp"], dtype=torch.float64, requires_grad=True)
    rewards = torch.tensor(given_["rewards"]).reshape(2, 2).tolist()
    loss = Step(recipe, rewards, **params).loss(policy, torch.tensor(given_["logp_old"], dtype=torch.float64))
    (gradient,) = torch.autograd.grad(loss, policy)
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-9)
    assert gradient.flatten().tolist() == pytest.approx(
        torch.tensor(expected["dloss_dlogp"]).flatten().tolist(), abs=1e-7
    )


@pytest.mark.parametrize(
    ("recipe", "params", "expected"),
    [
        ("grpo", {"kl_coefficient": 0.04}, 0.02532058),
        ("gspo", {"clip_low": 0.1, "clip_high": 0.1}, 0.04117802),
        ("gspo_token", {"clip_low": 0.1, "clip_high": 0.1}, 0.04117802),
        ("dppo", {"tv_limit": 0.15, "aggregation": "prompt_mean"}, -0.06551676),
        ("dppo", {"tv_limit": 0.15, "aggregation": "token_mean"}, -0.06349036),
    ],
)
def test_a_whole_step_matches_the_value_that_others_found(recipe: str, params: dict[str, Any], expected: float) -> None:
    policy, sampler, reference = (
        torch.tensor(E2E[key], dtype=torch.float64) for key in ("logp", "logp_old", "logp_ref")
    )
    step = Step(recipe, torch.tensor(E2E["rewards"]).reshape(2, 2).tolist(), **params)
    if recipe == "dppo":
        # The value of -ratio A has the gradient of -sg(ratio) A log policy.
        kept = step.token_losses(policy, sampler).clip_flag == KEPT
        loss = aggregate(-(policy - sampler).exp() * step.advantages * kept, step.mask, step.scale())
    else:
        loss = step.loss(policy, sampler, reference)
    assert loss.item() == pytest.approx(expected, abs=1e-8)


def test_luspo_is_the_mean_over_completions_of_length_times_gspos_loss() -> None:
    step = Step("luspo", MIXED, lengths=[[4, 2], [3, 1]])
    leaf = step.moved(8, spread=0.004).requires_grad_()
    found = step.loss(leaf, step.sampler)
    counts, log_ratio = step.mask.sum(dim=1), torch.where(step.mask, leaf - step.sampler, 0)
    ratio = (log_ratio.sum(dim=1) / counts).exp()
    held, advantage = ratio.clamp(1 - 0.002, 1 + 0.0025), step.groups.advantage.reshape(-1)
    expected = (counts * -torch.minimum(ratio * advantage, held * advantage)).mean()
    assert 0 < int(((ratio * advantage) > (held * advantage)).sum()) < len(ratio)
    torch.testing.assert_close(found, expected)
    (of_found,), (of_expected,) = torch.autograd.grad(found, leaf), torch.autograd.grad(expected, leaf)
    torch.testing.assert_close(of_found, of_expected)
    # Completions with losses of 0.5 and -0.2 and lengths 2 and 8.
    case = CASES["agg.luspo"]
    lengths, losses = torch.tensor(case["inputs"]["lengths"]), torch.tensor(case["inputs"]["loss"])
    mask = torch.arange(8) < lengths[:, None]
    scale = rollout_scale(mask, str(RECIPES["luspo"].params["aggregation"].default))
    assert aggregate(losses[:, None].expand(2, 8), mask, scale).item() == pytest.approx(case["expected"]["value"])


def policy_of(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1)[..., 0]


@pytest.mark.parametrize("name", RECIPES)
def test_on_policy_the_gradient_is_that_of_reinforce(name: str) -> None:
    step = Step(name, [[1.0, 0.0], [1.0, 1.0]])
    logits = torch.randn(4, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    policy = policy_of(logits)
    (found,) = torch.autograd.grad(step.loss(policy, policy.detach()), logits, retain_graph=True)
    # A ratio of the whole completion is a product: its slopes add up over the tokens.
    level = "rollout_sum" if step.resolved.params.get("ratio_level") == "sequence_sum" else ""
    plain = aggregate(-step.advantages * policy, step.mask, step.scale(level))
    (expected,) = torch.autograd.grad(plain, logits)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert found.abs().sum() > 0
    assert bool((step.token_losses(policy, policy.detach()).clip_flag[step.mask] == KEPT).all())


@pytest.mark.parametrize("name", RECIPES)
def test_a_descent_step_favours_the_right_completion(name: str) -> None:
    # Of every group the last completion is ReMax's greedy one.
    step = Step(name, [[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]] if name == "remax" else MIXED, lengths=descent_lengths(name))
    logits = torch.zeros(*step.mask.shape, 5, dtype=torch.float64, requires_grad=True)
    policy = policy_of(logits)
    (gradient,) = torch.autograd.grad(step.loss(policy, policy.detach()), logits)
    moved = (policy_of(logits - 0.1 * gradient) - policy).detach().mul(step.mask).sum(dim=1)
    wide = moved.reshape(2, -1).tolist()
    right, wrong = wide[0][0] + wide[1][1], wide[0][1] + wide[1][0]
    assert right > wrong
    assert right > 0 or name == "nsr"
    assert wrong <= 0 or name in ("vpg", "reinforce")


def descent_lengths(name: str) -> list[list[int]]:
    return [[4, 2, 3], [3, 1, 2]] if name == "remax" else LENGTHS


@pytest.mark.parametrize("name", RECIPES)
def test_what_stands_at_masked_tokens_never_matters(name: str) -> None:
    step = Step(name, MIXED)
    sampler = torch.tensor(E2E["logp_old"], dtype=torch.float64)
    clean = torch.tensor(E2E["logp"], dtype=torch.float64, requires_grad=True)
    dirty = torch.where(step.mask, clean.detach(), math.nan).requires_grad_()
    expected, found = step.loss(clean, sampler), step.loss(dirty, sampler.masked_fill(~step.mask, math.inf))
    assert found.item() == expected.item()
    assert torch.equal(torch.autograd.grad(found, dirty)[0], torch.autograd.grad(expected, clean)[0])


@pytest.mark.parametrize("distance", [-300.0, -25.0, 25.0, 300.0])
@pytest.mark.parametrize("name", RECIPES)
def test_a_runaway_ratio_stays_finite(name: str, distance: float) -> None:
    step = Step(name, MIXED)
    policy = torch.full((4, 4), -400.0, requires_grad=True)
    loss = step.loss(policy, torch.full((4, 4), -400.0 - distance))
    (gradient,) = torch.autograd.grad(loss, policy)
    assert loss.isfinite() and bool(gradient.isfinite().all())


@pytest.mark.parametrize("name", RECIPES)
def test_a_step_whose_tokens_are_all_masked_is_zero(name: str) -> None:
    step = Step(name, MIXED, masked=True)
    policy = torch.full((4, 4), -1.0, requires_grad=True)
    loss = step.loss(policy, policy.detach())
    (gradient,) = torch.autograd.grad(loss, policy)
    assert loss.item() == 0.0
    assert gradient.abs().sum().item() == 0.0


@pytest.mark.parametrize("name", RECIPES)
def test_the_order_inside_a_group_does_not_matter(name: str) -> None:
    rewards, lengths = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]], [[4, 2, 3, 1], [3, 1, 2, 4]]
    order = [2, 0, 3, 1]
    # A draw goes by the place: without it every token is in.
    hooks = {"H6": [one for one in RECIPES[name].parts["H6"] if one not in DRAWN] or "uniform"}
    plain = Step(name, rewards, lengths=lengths, hooks=hooks)
    mixed = Step(name, rewards, lengths=lengths, hooks=hooks, order=order)
    place = torch.tensor([*order, *(4 + one for one in order)])
    policy = plain.moved(2, spread=spread_of(name))
    expected = gradient_of(plain, policy, plain.sampler)
    torch.testing.assert_close(gradient_of(mixed, policy[place], plain.sampler[place]), expected[place])
    assert expected.abs().sum() > 0


@pytest.mark.parametrize("name", RECIPES)
def test_padding_does_not_matter(name: str) -> None:
    plain, wide = Step(name, MIXED), Step(name, MIXED, width=WIDTH + 3)
    policy = plain.moved(2, spread=spread_of(name))
    padded = torch.nn.functional.pad(policy, (0, 3), value=math.nan)
    expected = gradient_of(plain, policy, plain.sampler)
    torch.testing.assert_close(gradient_of(wide, padded, wide.sampler)[:, :WIDTH], expected)


# What a constant added to all rewards leaves alone: whatever subtracts a mean, a greedy reward or an order statistic.
SHIFT_FREE = [
    name
    for name, recipe in RECIPES.items()
    if recipe.parts["H5"][0]
    in (
        "group",
        "leave_one_out",
        "length_weighted",
        "batch_mean",
        "greedy_baseline",
        "difficulty",
        "stratified",
        "process",
        "tail",
        "best_of_k",
    )
    and "dead_entropy" not in recipe.parts["H6"]
]
# What divides by a deviation cancels the unit as well.
SCALE_FREE = [
    name
    for name, recipe in RECIPES.items()
    if ("divide_by_std" in recipe.params and recipe.params["divide_by_std"].default)
    or recipe.parts["H5"][0] in ("stratified", "process")
    or (recipe.parts["H6"][-1] == "whitened" and "gae" not in recipe.parts["H6"] and recipe.parts["H5"] != ("tracked",))
]


@settings(max_examples=8, deadline=None)
@given(shift=st.floats(0, 5), rewards=st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=8, max_size=8))
@pytest.mark.parametrize("name", SHIFT_FREE)
def test_a_constant_added_to_all_rewards_changes_nothing(name: str, shift: float, rewards: list[float]) -> None:
    rows, lengths = [rewards[:4], rewards[4:]], [[4, 2, 3, 1], [3, 1, 2, 4]]
    plain = Step(name, rows, lengths=lengths)
    moved = Step(name, [[one + shift for one in row] for row in rows], lengths=lengths, right_above=0.5 + shift)
    torch.testing.assert_close(moved.advantages, plain.advantages, rtol=1e-6, atol=1e-6)


@settings(max_examples=8, deadline=None)
@given(scale=st.floats(0.5, 20), rewards=st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=8, max_size=8))
@pytest.mark.parametrize("name", SCALE_FREE)
def test_the_unit_of_the_reward_cancels(name: str, scale: float, rewards: list[float]) -> None:
    rows, lengths = [rewards[:4], rewards[4:]], [[4, 2, 3, 1], [3, 1, 2, 4]]
    plain = Step(name, rows, lengths=lengths)
    scaled = Step(name, [[one * scale for one in row] for row in rows], lengths=lengths, right_above=0.5 * scale)
    torch.testing.assert_close(scaled.advantages, plain.advantages, rtol=1e-3, atol=1e-4)


# What a group of equal rewards of 1 still teaches, by design: a reward without a baseline of its own group, or entropy.
TAUGHT_BY_EQUALS = frozenset({"vpg", "reinforce", "psr", "w_reinforce", "a2c", "ppo", "trpo", "rl_zvp", "spo"})


@pytest.mark.parametrize("name", RECIPES)
def test_equal_rewards_teach_exactly_nothing_unless_the_recipe_says_so(name: str) -> None:
    step = Step(name, [[1.0, 1.0], [1.0, 1.0]])
    assert bool((step.advantages == 0).all()) == (name not in TAUGHT_BY_EQUALS)
    assert bool(step.groups.is_dead.all()) == (name not in TAUGHT_BY_EQUALS - {"rl_zvp"})
    policy = torch.full((4, 4), -1.0, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(step.loss(policy, policy.detach()), policy)
    assert bool((gradient == 0).all()) == (name not in TAUGHT_BY_EQUALS)


@pytest.mark.parametrize("name", sorted(set(RECIPES) - TAUGHT_BY_EQUALS - {"nsr", "maxrl", "passk_training", "tailrl"}))
def test_equal_partial_rewards_teach_exactly_nothing(name: str) -> None:
    step = Step(name, [[0.7, 0.7], [0.7, 0.7]])
    assert bool((step.advantages == 0).all())


def test_the_baselines_of_the_plain_recipes() -> None:
    equal = [[1.0, 1.0], [1.0, 1.0]]
    found = {
        name: Step(name, equal).groups.advantage.flatten().tolist() for name in ("vpg", "reinforce", "w_reinforce")
    }
    assert found == {"vpg": [1.0] * 4, "reinforce": [0.75] * 4, "w_reinforce": [0.1] * 4}


def test_group_relative_recipes_refuse_a_group_of_one_and_the_others_take_it() -> None:
    alone = []
    for name in RECIPES:
        try:
            legality.check(RunConfig.from_dict({"algorithm": name, "sampling": {"group_size": 1}}))
            alone.append(name)
        except ConfigError as error:
            assert error.key == "sampling.group_size"
    assert alone == [
        "vpg",
        "reinforce",
        "remax",
        "reinforce_plus_plus",
        "a2c",
        "ppo",
        "trpo",
        "psr",
        "nsr",
        "w_reinforce",
        "spo",
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_the_defaults_of_a_recipe_are_knobs_of_its_parts(name: str) -> None:
    recipe = RECIPES[name]
    assert set(recipe.defaults) <= set(recipe.params)
    assert check_params(recipe.params, {}, where="x").items() >= dict(recipe.defaults).items()


def test_the_knobs_offer_what_the_functions_know() -> None:
    assert knobs.RATIO_LEVELS == losses.RATIO_LEVELS
    assert knobs.KNOBS["H7", "divergence_masked"]["divergence"].options == (
        *losses.DIVERGENCES,
        *(f"topk_{kind}" for kind in losses.DIVERGENCES),
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_short_run_of_every_recipe_trains(name: str, make_run: Callable[..., Path]) -> None:
    # Every iteration of conjugate gradient is two passes backwards through a second derivative.
    quick = "[algorithm_params]\nconjugate_iterations = 1\n" if name == "trpo" else ""
    folder = make_run(steps=3, top=f"algorithm = '{name}'", tables=quick + "[task]\nname = 'natbool_dag'")
    assert run_attempt(Attempt(folder, 1), RUN_UID, is_resume=False, draws_bar=False) == FINISHED
    status = json.loads((folder / "attempts" / "1" / "status.json").read_text())
    assert status["plugins"]["recipe"] == name
    stored = [RolloutBatch.from_bytes(path.read_bytes(), where=path.name) for path in spool.waiting(folder / "spool")]
    trained = 0
    for batch in stored:
        found = dict(zip(batch.metrics["name"].to_pylist(), batch.metrics["value"].to_pylist(), strict=True))
        assert all(math.isfinite(value) for value in found.values())
        trained += found.get("grad_norm", 0.0) > 0
    assert trained


@pytest.mark.parametrize("name", RECIPES)
def test_its_page_says_what_the_recipe_does(name: str) -> None:
    page = (pages.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert pages.filled(page, pages.head(RECIPES[name])) == page
    found = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert found == pages.headings(RECIPES[name])
    # Every heading with something below it.
    assert all(part.strip() for part in re.split("^## .*$", page, flags=re.MULTILINE)[1:])


def test_the_page_of_a_new_algorithm_is_begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    (tmp_path / "README.md").write_text(f"top\n{pages.START}old\n{pages.END}bottom\n")
    pages.main()
    assert (tmp_path / "README.md").read_text() == f"top\n{pages.START}{pages.table()}{pages.END}bottom\n"
    begun = (tmp_path / "rloo.md").read_text()
    assert begun.startswith(f"{pages.START}# RLOO (`rloo`)\n")
    (tmp_path / "rloo.md").write_text(begun + "\nWritten by hand.\n")
    pages.main()
    assert (tmp_path / "rloo.md").read_text() == begun + "\nWritten by hand.\n"
    with pytest.raises(ValueError, match="once each"):
        pages.filled("no markers", "")


def test_the_table_of_all_algorithms_is_that_of_the_recipes() -> None:
    page = (pages.FOLDER / "README.md").read_text(encoding="utf-8")
    assert pages.filled(page, pages.table()) == page
    assert {path.stem for path in pages.FOLDER.glob("*.md")} == {"README", *RECIPES}


def test_dppo_measures_over_the_likeliest_tokens_and_stores_them(make_run: Callable[..., Path]) -> None:
    folder = make_run(
        steps=2,
        top="algorithm = 'dppo'\nalgorithm_params = { divergence = 'topk_kl', top_count = 2 }",
        tables="[task]\nname = 'natbool_dag'",
    )
    assert run_attempt(Attempt(folder, 1), RUN_UID, is_resume=False, draws_bar=False) == FINISHED
    stored = [RolloutBatch.from_bytes(path.read_bytes(), where=path.name) for path in spool.waiting(folder / "spool")]
    rollouts = next(batch for batch in stored if batch.header.split == "train").rollouts
    first = {name: rollouts[name][0].as_py() for name in rollouts.column_names if name.startswith("x_top")}
    assert sorted(first) == [f"x_top{number}_{kind}" for number in (1, 2, 3) for kind in ("id", "logprob")]
    sampled, likeliest = rollouts["sampler_logprobs"][0].as_py(), first["x_top1_logprob"]
    assert all(own <= best + 1e-4 for own, best in zip(sampled, likeliest, strict=True))
    assert first["x_top3_id"] == rollouts["token_ids"][0].as_py()
