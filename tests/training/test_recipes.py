"""Every recipe as a whole: its parts together on worked examples, on policy, and in a short run."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.golden import CASES
from training import legality, losses, spool
from training.advantages import ScoredGroups
from training.attempt import Attempt
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
MASK = torch.tensor(E2E["mask"]).bool()
# Of the recipes whose loss is one number per completion, what its gradient adds up like.
LEVELS = {"rloo": "rollout_sum"}


class Step:
    """A recipe's parts, resolved as a run would, on two prompts with two completions of 4, 2, 3 and 1 tokens."""

    def __init__(self, recipe: str, rewards: list[list[float]], *, mask: Tensor = MASK, **params: Any) -> None:
        config = RunConfig.from_dict({"algorithm": recipe, "algorithm_params": params, "sampling": {"group_size": 2}})
        legality.check(config)
        self.resolved = legality.resolve(config)
        scores = torch.tensor(rewards, dtype=torch.float64)
        everywhere = torch.ones_like(scores, dtype=torch.bool)
        groups = ScoredGroups(
            scores,
            everywhere,
            scores > 0.5,
            mask.sum(dim=1).reshape(scores.shape),
            0.25,
            is_greedy=torch.tensor([[False, True]] * len(scores)),
            strata=torch.zeros_like(scores, dtype=torch.int64),
            steps_differ=scores.amax(dim=1) > scores.amin(dim=1),
        )
        self.groups = ADVANTAGES[self.part("H5")](groups, self.resolved.params)
        self.mask = mask_rollouts(mask, ~self.groups.kept.reshape(-1))
        last = mask.sum(dim=1) - 1
        token_rewards = torch.zeros(mask.shape, dtype=torch.float64)
        token_rewards[torch.arange(len(mask)), last] = scores.reshape(-1)
        fields = TokenFields(
            advantage=self.groups.advantage.reshape(-1),
            loss_mask=self.mask,
            sampler_logprobs=torch.zeros(mask.shape),
            recomputed_logprobs=torch.zeros(mask.shape),
            entropy=torch.linspace(0.1, 1.0, mask.numel()).reshape(mask.shape),
            token_rewards=token_rewards,
            values=torch.zeros(mask.shape),
            value_after_last=torch.zeros(len(mask)),
            is_finished=torch.ones(len(mask), dtype=torch.bool),
            group_index=torch.arange(len(mask)) // 2,
            dead_cause=self.groups.dead_cause,
            steps=StepRewards(scores.reshape(-1, 1), last[:, None] + 1),
        )
        self.weights = weigh_tokens(self.resolved.parts["H6"], fields, self.resolved.params)

    def part(self, hook: str) -> str:
        return self.resolved.parts[hook][0]

    def scale(self, aggregation: str) -> Tensor:
        owner = torch.arange(len(self.mask)) // 2
        return rollout_scale(
            self.mask,
            aggregation,
            prompt_index=owner,
            constant_tokens=self.resolved.params["constant_tokens"],
        )

    def token_losses(self, policy: Tensor, sampler: Tensor) -> PolicyLoss:
        inputs = LossInputs(
            policy, sampler, self.weights.token_advantages.double(), self.weights.token_weights.double(), self.mask
        )
        return LOSSES[self.part("H7")](inputs, self.resolved.params)

    def loss(self, policy: Tensor, sampler: Tensor) -> Tensor:
        token_loss = self.token_losses(policy, sampler).token_loss
        return aggregate(token_loss, self.mask, self.scale(self.resolved.params["aggregation"]))


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
    given, expected = CASES[case]["inputs"], CASES[case]["expected"]
    policy = torch.tensor(given["logp"], dtype=torch.float64, requires_grad=True)
    rewards = torch.tensor(given["rewards"]).reshape(2, 2).tolist()
    loss = Step(recipe, rewards, **params).loss(policy, torch.tensor(given["logp_old"], dtype=torch.float64))
    (gradient,) = torch.autograd.grad(loss, policy)
    # The advantages pass through float32.
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-7)
    assert gradient.flatten().tolist() == pytest.approx(
        torch.tensor(expected["dloss_dlogp"]).flatten().tolist(), abs=1e-6
    )


def policy_of(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1)[..., 0]


@pytest.mark.parametrize("name", RECIPES)
def test_on_policy_the_gradient_is_that_of_reinforce(name: str) -> None:
    step = Step(name, [[1.0, 0.0], [1.0, 1.0]])
    logits = torch.randn(4, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    policy = policy_of(logits)
    (found,) = torch.autograd.grad(step.loss(policy, policy.detach()), logits, retain_graph=True)
    aggregation = LEVELS.get(name, step.resolved.params["aggregation"])
    plain = aggregate(-step.weights.token_advantages.double() * policy, step.mask, step.scale(aggregation))
    (expected,) = torch.autograd.grad(plain, logits)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert found.abs().sum() > 0
    assert bool((step.token_losses(policy, policy.detach()).clip_flag[step.mask] == KEPT).all())


@pytest.mark.parametrize("name", RECIPES)
def test_a_descent_step_favours_the_right_completion(name: str) -> None:
    step = Step(name, [[1.0, 0.0], [0.0, 1.0]])
    logits = torch.zeros(4, 4, 5, dtype=torch.float64, requires_grad=True)
    policy = policy_of(logits)
    (gradient,) = torch.autograd.grad(step.loss(policy, policy.detach()), logits)
    moved = (policy_of(logits - 0.1 * gradient) - policy).detach().mul(step.mask).sum(dim=1).tolist()
    right, wrong = moved[0] + moved[3], moved[1] + moved[2]
    assert right > wrong
    assert right > 0 or name == "nsr"
    assert wrong <= 0 or name in ("vpg", "reinforce")


@pytest.mark.parametrize("name", RECIPES)
def test_what_stands_at_masked_tokens_never_matters(name: str) -> None:
    step = Step(name, [[1.0, 0.0], [0.0, 1.0]])
    sampler = torch.tensor(E2E["logp_old"], dtype=torch.float64)
    clean = torch.tensor(E2E["logp"], dtype=torch.float64, requires_grad=True)
    dirty = torch.where(step.mask, clean.detach(), math.nan).requires_grad_()
    expected, found = step.loss(clean, sampler), step.loss(dirty, sampler.masked_fill(~step.mask, math.inf))
    assert found.item() == expected.item()
    assert torch.equal(torch.autograd.grad(found, dirty)[0], torch.autograd.grad(expected, clean)[0])


@pytest.mark.parametrize("name", RECIPES)
def test_a_runaway_ratio_stays_finite(name: str) -> None:
    step = Step(name, [[1.0, 0.0], [0.0, 1.0]])
    for distance in (-300.0, 300.0):
        policy = torch.full((4, 4), -400.0, requires_grad=True)
        loss = step.loss(policy, torch.full((4, 4), -400.0 - distance))
        (gradient,) = torch.autograd.grad(loss, policy)
        assert loss.isfinite() and bool(gradient.isfinite().all())


@pytest.mark.parametrize("name", RECIPES)
def test_dead_groups_have_no_advantage_unless_the_recipe_says_so(name: str) -> None:
    step = Step(name, [[0.7, 0.7], [0.7, 0.7]] if RECIPES[name].parts["H5"] != ("signed",) else [[1, 1], [1, 1]])
    rewards_count = {"vpg": 0.7, "reinforce": 0.7 - 0.25, "psr": 1.0, "w_reinforce": 0.1}
    assert step.groups.advantage.flatten().tolist() == pytest.approx([rewards_count.get(name, 0.0)] * 4)
    assert bool(step.groups.is_dead.all()) == (name not in rewards_count)


def test_group_relative_recipes_refuse_a_group_of_one_and_the_others_take_it() -> None:
    alone = []
    for name in RECIPES:
        try:
            legality.check(RunConfig.from_dict({"algorithm": name, "sampling": {"group_size": 1}}))
            alone.append(name)
        except ConfigError as error:
            assert error.key == "sampling.group_size"
    assert alone == ["vpg", "reinforce", "reinforce_plus_plus", "psr", "nsr", "w_reinforce"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_defaults_of_a_recipe_are_knobs_of_its_parts(name: str) -> None:
    recipe = RECIPES[name]
    assert set(recipe.defaults) <= set(recipe.params)
    assert check_params(recipe.params, {}, where="x").items() >= dict(recipe.defaults).items()


def test_the_knobs_offer_what_the_functions_know() -> None:
    assert knobs.RATIO_LEVELS == losses.RATIO_LEVELS
    assert knobs.KNOBS["H7", "divergence_masked"]["divergence"].options == losses.DIVERGENCES


@pytest.mark.parametrize("name", RECIPES)
def test_a_short_run_of_every_recipe_trains(name: str, make_run: Callable[..., Path]) -> None:
    folder = make_run(steps=3, top=f"algorithm = '{name}'", tables="[task]\nname = 'natbool_dag'")
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
    headings = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    parent = RECIPES[name].parent
    first = f"What changes from {RECIPES[parent].title}" if parent else "What it is made of"
    assert headings == [first, "When to use it", "What to watch"]


def test_the_table_of_all_algorithms_is_that_of_the_recipes() -> None:
    page = (pages.FOLDER / "README.md").read_text(encoding="utf-8")
    assert pages.filled(page, pages.table()) == page
    assert {path.stem for path in pages.FOLDER.glob("*.md")} == {"README", *RECIPES}
