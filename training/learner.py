"""One optimiser step after another on the rollouts of a step."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.batching import aggregate, micro_batches, rollout_scale
from training.config import OptimizerConfig
from training.losses import LossInputs, PolicyLoss
from training.policy import Policy, Tokens

LossFunction = Callable[[LossInputs, Mapping[str, Any]], PolicyLoss]
AuxiliaryFunction = Callable[[LossInputs, Mapping[str, Any]], Tensor]


class NonFiniteError(ArithmeticError):
    """A number that no training survives: names the tensor, what it held and where."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a step minimises: H7, H8, and how tokens become one number."""

    policy_loss: LossFunction
    auxiliary: Mapping[str, AuxiliaryFunction]
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LearnerBatch:
    """The rollouts of a step as the loss sees them; all `[B, T]`."""

    tokens: Tokens
    sampler_logprobs: Tensor
    token_advantages: Tensor
    token_weights: Tensor
    loss_mask: Tensor  # bool
    ref_logprobs: Tensor | None


@dataclass(frozen=True, slots=True)
class Update:
    """One optimiser step; the rectangles are as the forward pass before it saw them."""

    loss: float
    loss_parts: dict[str, float]  # policy, and each auxiliary by name
    grad_norm: float  # before it was scaled down
    learning_rate: float
    policy_logprobs: Tensor  # [B, T] nats
    importance_ratio: Tensor  # [B, T]
    clip_flag: Tensor  # [B, T] uint8
    clamped_tokens: int


def make_optimizer(policy: Policy, config: OptimizerConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        policy.model.parameters(),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def learning_rate_at(config: OptimizerConfig, step: int) -> float:
    """Linear warm-up over the first steps, then constant."""
    return config.learning_rate * min(1.0, (step + 1) / max(config.warmup_steps, 1))


def reference_logprobs(reference: Policy, tokens: Tokens, *, temperature: float, micro_batch: int) -> Tensor:
    """`[B, T]` nats under the frozen reference."""
    out = torch.zeros(tokens.completion_ids.shape, device=tokens.completion_ids.device)
    with torch.no_grad():
        for rows in micro_batches(len(out), micro_batch):
            part = tokens.rows(rows)
            out[rows, : part.completion_ids.shape[1]] = reference.score(part, temperature=temperature).logprobs
    return out


def update_policy(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: LearnerBatch,
    objective: Objective,
    config: OptimizerConfig,
    *,
    temperature: float,
    learning_rate: float,
    where: str,
) -> Update:
    """One optimiser step on the whole batch; the gradient does not depend on the size of the micro-batches.

    Raises:
        NonFiniteError: log-probabilities, loss or gradient are not finite; the weights are as before.
    """
    scale = rollout_scale(
        batch.loss_mask,
        objective.params["aggregation"],
        prompt_index=batch.tokens.owner,
        constant_tokens=objective.params["constant_tokens"],
    )
    shape = batch.loss_mask.shape
    policy_logprobs = torch.zeros(shape, device=batch.loss_mask.device)
    importance_ratio = torch.ones_like(policy_logprobs)
    clip_flag = torch.full(shape, 3, dtype=torch.uint8, device=policy_logprobs.device)
    loss_parts = dict.fromkeys(("policy", *objective.auxiliary), 0.0)
    clamped_tokens = 0
    optimizer.zero_grad(set_to_none=True)
    for rows in micro_batches(shape[0], config.micro_batch_rollouts):
        tokens = batch.tokens.rows(rows)
        inputs = _loss_inputs(policy, tokens, batch, rows, temperature)
        part = objective.policy_loss(inputs, objective.params)
        losses = {"policy": aggregate(part.token_loss, inputs.loss_mask, scale[rows])}
        for name, term in objective.auxiliary.items():
            losses[name] = aggregate(term(inputs, objective.params), inputs.loss_mask, scale[rows])
        total: Tensor = torch.stack(list(losses.values())).sum()
        width = inputs.loss_mask.shape[1]
        policy_logprobs[rows, :width] = inputs.policy_logprobs.detach()
        importance_ratio[rows, :width] = part.importance_ratio
        clip_flag[rows, :width] = part.clip_flag
        clamped_tokens += part.clamped_tokens
        _check_logprobs(inputs, where)
        for name, value in losses.items():
            loss_parts[name] += value.item()
            _check(loss_parts[name], f"the {name} loss", where)
        total.backward()
    parameters = list(policy.model.parameters())
    grad_norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm).item()
    if not math.isfinite(grad_norm):
        raise NonFiniteError(f"the gradient of {_first_non_finite(policy)} is not finite {where}")
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    return Update(
        loss=sum(loss_parts.values()),
        loss_parts=loss_parts,
        grad_norm=grad_norm,
        learning_rate=learning_rate,
        policy_logprobs=policy_logprobs,
        importance_ratio=importance_ratio,
        clip_flag=clip_flag,
        clamped_tokens=clamped_tokens,
    )


def _loss_inputs(policy: Policy, tokens: Tokens, batch: LearnerBatch, rows: slice, temperature: float) -> LossInputs:
    width = tokens.completion_ids.shape[1]
    return LossInputs(
        policy_logprobs=policy.score(tokens, temperature=temperature).logprobs,
        sampler_logprobs=batch.sampler_logprobs[rows, :width],
        token_advantages=batch.token_advantages[rows, :width],
        token_weights=batch.token_weights[rows, :width],
        loss_mask=batch.loss_mask[rows, :width],
        ref_logprobs=None if batch.ref_logprobs is None else batch.ref_logprobs[rows, :width],
    )


def _check_logprobs(inputs: LossInputs, where: str) -> None:
    counted = inputs.policy_logprobs.detach()[inputs.loss_mask]
    bad = ~counted.isfinite()
    if bool(bad.any()):
        raise NonFiniteError(
            f"policy_logprobs are not finite {where}: {int(bad.sum())} of {counted.numel()} counted tokens, "
            f"the first is {counted[bad][0].item()}"
        )


def _check(value: float, name: str, where: str) -> None:
    if not math.isfinite(value):
        raise NonFiniteError(f"{name} is {value} {where}")


def _first_non_finite(policy: Policy) -> str:
    for name, parameter in policy.model.named_parameters():
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            return name
    return "the whole model (its norm overflows)"
