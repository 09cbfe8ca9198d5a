"""The gradient of a step is one, however its rollouts are cut into micro-batches."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from training.batching import AGGREGATIONS
from training.config import OptimizerConfig
from training.learner import LearnerBatch, Objective, Update, accumulate_gradient
from training.losses import LOSSES, MASKED
from training.policy import Policy, Tokens
from training.recipes import RECIPES

LENGTHS = [4, 2, 1, 3, 2]


@pytest.fixture
def batch(policy: Policy) -> LearnerBatch:
    """Five completions of two prompts of unequal length, off policy; one does not count, no two tokens weigh the same."""
    first, second = policy.encode("12+34="), policy.encode("7*8=")
    completions = torch.arange(4) < torch.tensor(LENGTHS)[:, None]
    tokens = Tokens(
        prompt_ids=torch.tensor([first, [0, 0, *second]]),
        prompt_mask=torch.tensor([[True] * 6, [False] * 2 + [True] * 4]),
        owner=torch.tensor([0, 0, 0, 1, 1]),
        completion_ids=torch.tensor([[20, 21, 22, 1], [30, 1, 0, 0], [1, 0, 0, 0], [9, 8, 1, 0], [7, 1, 0, 0]]),
        completion_mask=completions,
    )
    with torch.no_grad():
        policy_logprobs = policy.score(tokens, temperature=1.0).logprobs
    noise = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    mask = completions.clone()
    mask[1] = False
    return LearnerBatch(
        tokens,
        policy_logprobs + 0.3 * noise,
        torch.tensor([1.0, -0.5, 0.25, 2.0, -1.0])[:, None] * mask,
        torch.linspace(0.5, 2, 20).view(5, 4) * mask,
        mask,
        selected=noise > 0,
    )


def gradient(policy: Policy, batch: LearnerBatch, objective: Objective, size: int) -> tuple[Tensor, Update]:
    policy.model.zero_grad(set_to_none=True)
    config = OptimizerConfig(micro_batch_rollouts=size)
    found = accumulate_gradient(policy, batch, objective, config, temperature=1.0, where="here")
    parts = [parameter.grad.flatten() for parameter in policy.model.parameters() if parameter.grad is not None]
    return torch.cat(parts), found


def objective_of(recipe: str, **params: Any) -> Objective:
    named = RECIPES[recipe]
    found = {name: param.default for name, param in named.params.items()}
    return Objective(LOSSES[named.parts["H7"][0]], {}, found | {"constant_tokens": 4} | params)


def assert_one_gradient(policy: Policy, batch: LearnerBatch, objective: Objective, size: int) -> None:
    whole, one = gradient(policy, batch, objective, 256)
    parts, many = gradient(policy, batch, objective, size)
    assert whole.norm() > 0
    torch.testing.assert_close(parts / whole.norm(), whole / whole.norm(), atol=1e-5, rtol=0)
    assert many.loss == pytest.approx(one.loss, rel=1e-5, abs=1e-6)
    assert torch.equal(many.clip_flag, one.clip_flag)
    torch.testing.assert_close(many.importance_ratio[batch.loss_mask], one.importance_ratio[batch.loss_mask])


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_aggregation_has_one_gradient(policy: Policy, batch: LearnerBatch, aggregation: str, size: int) -> None:
    assert_one_gradient(policy, batch, objective_of("grpo", aggregation=aggregation), size)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_one_gradient(policy: Policy, batch: LearnerBatch, name: str) -> None:
    # Ratios of completions as far from 1 as these would all be clipped.
    wide = {"clip_low": 1.0, "clip_high": 9.0} if "clip_low" in RECIPES[name].params else {}
    given = replace(batch, token_weights=batch.loss_mask.float())
    assert_one_gradient(policy, given, objective_of(name, **wide), 2)


@pytest.mark.parametrize("size", [1, 2, 256])
@pytest.mark.parametrize("name", ["nat_rpc", "gspo_token"])
def test_a_cut_saves_the_forward_pass_behind_it(
    policy: Policy, batch: LearnerBatch, name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = torch.tensor([2, 0, 1, 2, 1])
    behind = torch.arange(4) >= cut[:, None]
    given = replace(batch, token_weights=torch.where(behind, 0.0, batch.token_weights))
    objective = objective_of(name, clip_low=1.0, clip_high=9.0)
    # The ratio of a whole completion is then that of what is left of it.
    seen = replace(given, loss_mask=given.loss_mask & ~behind)
    kept = objective if name == "nat_rpc" else objective_of(name, clip_low=1.0, clip_high=9.0, aggregation="token_sum")
    expected, _ = gradient(policy, given if name == "nat_rpc" else seen, kept, 256)
    widths: list[int] = []
    score = policy.score

    def counted(tokens: Tokens, **options: Any) -> Any:
        widths.append(tokens.completion_ids.shape[1])
        return score(tokens, **options)

    monkeypatch.setattr(policy, "score", counted)
    found, update = gradient(policy, replace(given, forward_tokens=cut), kept, size)
    torch.testing.assert_close(found / expected.norm(), expected / expected.norm(), atol=1e-5, rtol=0)
    assert max(widths) == 2
    # Behind a cut nothing is known of the token, whatever stood beside it in the micro-batch.
    assert bool((update.clip_flag[behind] == MASKED).all())
    assert bool(update.policy_logprobs[behind].isnan().all())
    assert bool(update.policy_logprobs[seen.loss_mask].isfinite().all())
