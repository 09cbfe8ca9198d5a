from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from training.config import ModelConfig, OptimizerConfig
from training.divergences import top_k_divergence
from training.learner import (
    LearnerBatch,
    NonFiniteError,
    Objective,
    Update,
    likeliest_under,
    loss_inputs,
    update_policy,
)
from training.losses import LOSSES, LossInputs, PolicyLoss
from training.optimizers import Optimizer
from training.policy import Policy, Tokens, load_policy

PARAMS = {
    "aggregation": "token_mean",
    "constant_tokens": 4,
    "clip_low": 0.2,
    "clip_high": 0.2,
    "ratio_level": "token",
    "dual_clip": 0.0,
    "drift_limit": 0.0,
}


@pytest.fixture
def batch(policy: Policy) -> LearnerBatch:
    """Five completions of two prompts of unequal length, on policy."""
    first, second = policy.encode("12+34="), policy.encode("7*8=")
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.bool)
    tokens = Tokens(
        prompt_ids=torch.tensor([first, [0, 0, *second]]),
        prompt_mask=torch.tensor([[True] * 6, [False] * 2 + [True] * 4]),
        owner=torch.tensor([0, 0, 0, 1, 1]),
        completion_ids=torch.tensor([[20, 21, 22, 1], [30, 1, 0, 0], [1, 0, 0, 0], [9, 8, 1, 0], [7, 1, 0, 0]]),
        completion_mask=mask,
    )
    with torch.no_grad():
        sampler = policy.score(tokens, temperature=1.0).logprobs
    advantages = torch.tensor([1.0, -0.5, 0.25, 2.0, -1.0])[:, None] * mask
    return LearnerBatch(tokens, sampler, advantages, mask.float(), mask, None)


def objective(loss: Any = LOSSES["clipped"], **auxiliary: Any) -> Objective:
    return Objective(loss, auxiliary, PARAMS)


def update(policy: Policy, batch: LearnerBatch, what: Objective, **config: Any) -> Update:
    settings = OptimizerConfig(max_grad_norm=1e9, **config)
    return update_policy(
        policy,
        Optimizer(policy.model, settings),
        batch,
        what,
        settings,
        temperature=1.0,
        learning_rate=1e-3,
        where="at step 7, update 0",
    )


def gradients(policy: Policy) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in policy.model.parameters()])


def test_micro_batches_do_not_change_the_gradient(model_folder: Path, batch: LearnerBatch) -> None:
    whole, parts = (load_policy(ModelConfig(path=str(model_folder))) for _ in range(2))
    one = update(whole, batch, objective(), micro_batch_rollouts=256)
    many = update(parts, batch, objective(), micro_batch_rollouts=2)
    torch.testing.assert_close(gradients(whole), gradients(parts), atol=1e-6, rtol=1e-4)
    assert one.loss == pytest.approx(many.loss, abs=1e-6)
    assert one.grad_norm == pytest.approx(many.grad_norm, rel=1e-4)
    torch.testing.assert_close(one.policy_logprobs[batch.loss_mask], many.policy_logprobs[batch.loss_mask])


def test_on_policy_the_gradient_is_that_of_reinforce(model_folder: Path, batch: LearnerBatch) -> None:
    ours, plain = (load_policy(ModelConfig(path=str(model_folder))) for _ in range(2))
    result = update(ours, batch, objective())
    logprobs = plain.score(batch.tokens, temperature=1.0).logprobs
    (-(batch.token_advantages * logprobs)[batch.loss_mask].sum() / batch.loss_mask.sum()).backward()
    torch.testing.assert_close(gradients(ours), gradients(plain), atol=1e-6, rtol=1e-4)
    assert result.importance_ratio[batch.loss_mask].tolist() == pytest.approx([1.0] * 12, abs=1e-5)


def test_an_update_makes_good_completions_likelier_and_bad_ones_rarer(policy: Policy, batch: LearnerBatch) -> None:
    update(policy, batch, objective())
    with torch.no_grad():
        after = policy.score(batch.tokens, temperature=1.0).logprobs
    moved = ((after - batch.sampler_logprobs) * batch.loss_mask).sum(dim=1)
    assert moved[3] > 0 > moved[4]


def test_what_stands_at_masked_tokens_never_matters(model_folder: Path, batch: LearnerBatch) -> None:
    clean, dirty = (load_policy(ModelConfig(path=str(model_folder))) for _ in range(2))
    update(clean, batch, objective())
    batch.sampler_logprobs[~batch.loss_mask] = torch.nan
    batch.tokens.completion_ids[~batch.loss_mask] = 77
    update(dirty, batch, objective())
    assert torch.equal(gradients(clean), gradients(dirty))


def test_auxiliary_losses_are_added_and_named(model_folder: Path, batch: LearnerBatch) -> None:
    def constant(inputs: LossInputs, params: Mapping[str, Any]) -> Tensor:
        return inputs.policy_logprobs * 0 + 0.5

    result = update(load_policy(ModelConfig(path=str(model_folder))), batch, objective(pull=constant))
    assert result.loss_parts["pull"] == pytest.approx(0.5)
    assert result.loss == pytest.approx(result.loss_parts["policy"] + 0.5)


def weights(policy: Policy) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()])


def test_log_probabilities_that_are_not_finite_stop_the_run(policy: Policy, batch: LearnerBatch) -> None:
    with torch.no_grad():
        policy.model.model.norm.weight[3] = torch.nan
    with pytest.raises(NonFiniteError, match=r"policy_logprobs are not finite at step 7, update 0: 12 of 12"):
        update(policy, batch, objective())


def test_a_loss_that_is_not_finite_stops_the_run_before_the_weights_move(policy: Policy, batch: LearnerBatch) -> None:
    before = weights(policy)
    batch.token_advantages[0, 0] = torch.inf
    with pytest.raises(NonFiniteError, match="the policy loss is -inf at step 7"):
        update(policy, batch, objective())
    assert torch.equal(weights(policy), before)


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_weights_move(
    policy: Policy, batch: LearnerBatch
) -> None:
    def steep(inputs: LossInputs, params: Mapping[str, Any]) -> PolicyLoss:
        # The square root has no finite slope at 0.
        loss = (inputs.policy_logprobs - inputs.policy_logprobs.detach()).abs().sqrt()
        return PolicyLoss(loss, torch.ones_like(loss), torch.zeros_like(loss, dtype=torch.uint8), 0)

    before = weights(policy)
    with pytest.raises(NonFiniteError, match=r"the gradient of model\.embed_tokens\.weight is not finite at step 7"):
        update(policy, batch, objective(steep))
    assert torch.equal(weights(policy), before)


def test_the_likeliest_tokens_and_the_one_that_stands_there_are_named_once(policy: Policy, batch: LearnerBatch) -> None:
    ids, logprobs = likeliest_under(policy, batch.tokens, temperature=1.0, micro_batch=2, count=3)
    assert ids.shape == (5, 4, 4)
    with torch.no_grad():
        everything = policy.completion_logits(batch.tokens).log_softmax(dim=-1)
    torch.testing.assert_close(logprobs[0, :, :3], everything[0].topk(3).values, atol=1e-5, rtol=1e-5)
    own = batch.tokens.completion_ids[..., None]
    is_known = (ids[..., :3] == own).any(dim=-1)
    assert torch.equal((logprobs[..., 3] == -torch.inf)[batch.loss_mask], is_known[batch.loss_mask])
    # The policy that sampled has not moved: no divergence over the likeliest tokens either.
    top = replace(batch, top_ids=ids, top_logprobs=logprobs)
    inputs = loss_inputs(policy, top.rows(torch.arange(5)), 1.0, with_entropy=False)
    assert inputs.top_policy_logprobs is not None and inputs.top_sampler_logprobs is not None
    distance = top_k_divergence(inputs.top_policy_logprobs, inputs.top_sampler_logprobs, kind="tv")
    assert distance[batch.loss_mask].abs().max() < 1e-5
