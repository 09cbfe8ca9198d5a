"""One optimiser step after another on the rollouts of a step."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from training.batching import aggregate, micro_batches, rollout_scale
from training.config import OptimizerConfig
from training.losses import MASKED, LossInputs, PolicyLoss
from training.policy import Policy, Tokens

LossFunction = Callable[[LossInputs, Mapping[str, Any]], PolicyLoss]
AuxiliaryFunction = Callable[[LossInputs, Mapping[str, Any]], Tensor]

# An error names so many completions.
TOLD_ROLLOUTS = 5


class NonFiniteError(ArithmeticError):
    """A number that no training survives: names the tensor, what it held and where."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a step minimises: H7, H8, and how tokens become one number."""

    policy_loss: LossFunction
    auxiliary: Mapping[str, AuxiliaryFunction]
    params: Mapping[str, Any]
    needs_entropy: bool = False


@dataclass(frozen=True, slots=True)
class LearnerBatch:
    """The rollouts of a step as the loss sees them; all `[B, T]`."""

    tokens: Tokens
    sampler_logprobs: Tensor
    token_advantages: Tensor
    token_weights: Tensor
    loss_mask: Tensor  # bool
    ref_logprobs: Tensor | None = None
    recomputed_logprobs: Tensor | None = None
    selected: Tensor | None = None  # bool
    forward_tokens: Tensor | None = None  # [B] int64; behind so many tokens nothing is needed. None: all are

    @property
    def lengths(self) -> Tensor:
        """[B] int64: tokens that a forward pass has to cover."""
        sampled = self.tokens.completion_mask.sum(dim=1)
        return sampled if self.forward_tokens is None else sampled.minimum(self.forward_tokens)

    def rows(self, rows: Tensor) -> "LearnerBatch":
        """Some rollouts, as wide as the longest of them has to be."""
        lengths = self.lengths[rows]
        reach = torch.arange(self.loss_mask.shape[1], device=lengths.device) < self.lengths[:, None]
        tokens = replace(self.tokens, completion_mask=self.tokens.completion_mask & reach).rows(rows)
        width = tokens.completion_ids.shape[1]

        def part(rectangle: Tensor | None) -> Tensor | None:
            return None if rectangle is None else rectangle[rows, :width]

        return LearnerBatch(
            tokens=tokens,
            sampler_logprobs=self.sampler_logprobs[rows, :width],
            token_advantages=self.token_advantages[rows, :width],
            token_weights=self.token_weights[rows, :width],
            loss_mask=(self.loss_mask & reach)[rows, :width],
            ref_logprobs=part(self.ref_logprobs),
            recomputed_logprobs=part(self.recomputed_logprobs),
            selected=part(self.selected),
        )


@dataclass(frozen=True, slots=True)
class Update:
    """One optimiser step; the rectangles are as the forward pass before it saw them."""

    loss: float
    loss_parts: dict[str, float]  # policy, and each auxiliary by name
    grad_norm: float  # before it was scaled down
    learning_rate: float
    policy_logprobs: Tensor  # [B, T] nats; NaN where no forward pass went
    importance_ratio: Tensor  # [B, T]
    clip_flag: Tensor  # [B, T] uint8
    clamped_tokens: int
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the way the step was made


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


def logprobs_under(policy: Policy, tokens: Tokens, *, temperature: float, micro_batch: int) -> Tensor:
    """`[B, T]` nats of the completions' tokens under the weights of `policy` as they are, without gradient."""
    out = torch.zeros(tokens.completion_ids.shape, device=tokens.completion_ids.device)
    with torch.no_grad():
        for rows in micro_batches(tokens.completion_mask.sum(dim=1), micro_batch):
            part = tokens.rows(rows)
            out[rows, : part.completion_ids.shape[1]] = policy.score(part, temperature=temperature).logprobs
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
    optimizer.zero_grad(set_to_none=True)
    found = accumulate_gradient(policy, batch, objective, config, temperature=temperature, where=where)
    grad_norm = torch.nn.utils.clip_grad_norm_(list(policy.model.parameters()), config.max_grad_norm).item()
    if not math.isfinite(grad_norm):
        raise NonFiniteError(f"the gradient of {_first_non_finite(policy)} is not finite {where}")
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    return replace(found, grad_norm=grad_norm, learning_rate=learning_rate)


def accumulate_gradient(
    policy: Policy,
    batch: LearnerBatch,
    objective: Objective,
    config: OptimizerConfig,
    *,
    temperature: float,
    where: str,
) -> Update:
    """The gradient of the whole batch, added to the parameters' own; what the forward passes saw on the way.

    Raises:
        NonFiniteError: log-probabilities or loss are not finite.
    """
    scale = rollout_scale(
        batch.loss_mask,
        objective.params["aggregation"],
        prompt_index=batch.tokens.owner,
        constant_tokens=objective.params["constant_tokens"],
    )
    shape = batch.loss_mask.shape
    policy_logprobs = torch.full(shape, torch.nan, device=batch.loss_mask.device)
    importance_ratio = torch.ones_like(policy_logprobs)
    clip_flag = torch.full(shape, MASKED, dtype=torch.uint8, device=policy_logprobs.device)
    loss_parts = dict.fromkeys(("policy", *objective.auxiliary), 0.0)
    clamped_tokens = 0
    for rows in micro_batches(batch.lengths, config.micro_batch_rollouts):
        micro_batch = batch.rows(rows)
        inputs = loss_inputs(policy, micro_batch, temperature, with_entropy=objective.needs_entropy)
        part = objective.policy_loss(inputs, objective.params)
        token_losses = {"policy": part.token_loss}
        token_losses |= {name: term(inputs, objective.params) for name, term in objective.auxiliary.items()}
        losses = {name: aggregate(loss, inputs.loss_mask, scale[rows]) for name, loss in token_losses.items()}
        _check_logprobs(inputs, batch.tokens.owner, rows, where)
        for name, value in losses.items():
            loss_parts[name] += value.item()
            if not math.isfinite(loss_parts[name]):
                bad = (inputs.loss_mask & ~token_losses[name].isfinite()).any(dim=1)
                culprits = _completions(batch.tokens.owner, rows[bad] if bool(bad.any()) else rows)
                raise NonFiniteError(f"the {name} loss is {loss_parts[name]} {where}, in {culprits}")
        width = inputs.loss_mask.shape[1]
        is_reached = micro_batch.tokens.completion_mask
        policy_logprobs[rows, :width] = inputs.policy_logprobs.detach().masked_fill(~is_reached, torch.nan)
        importance_ratio[rows, :width] = part.importance_ratio
        clip_flag[rows, :width] = part.clip_flag
        clamped_tokens += part.clamped_tokens
        torch.stack(list(losses.values())).sum().backward()
    return Update(
        loss=sum(loss_parts.values()),
        loss_parts=loss_parts,
        grad_norm=math.nan,
        learning_rate=math.nan,
        policy_logprobs=policy_logprobs,
        importance_ratio=importance_ratio,
        clip_flag=clip_flag,
        clamped_tokens=clamped_tokens,
    )


def loss_inputs(policy: Policy, batch: LearnerBatch, temperature: float, *, with_entropy: bool) -> LossInputs:
    """What the losses are given of a micro-batch, with the policy's gradient."""
    scores = policy.score(batch.tokens, temperature=temperature, with_entropy=with_entropy)
    return LossInputs(
        policy_logprobs=scores.logprobs,
        sampler_logprobs=batch.sampler_logprobs,
        token_advantages=batch.token_advantages,
        token_weights=batch.token_weights,
        loss_mask=batch.loss_mask,
        recomputed_logprobs=batch.recomputed_logprobs,
        ref_logprobs=batch.ref_logprobs,
        selected=batch.selected,
        policy_entropy=scores.entropy,
    )


def _check_logprobs(inputs: LossInputs, owner: Tensor, rows: Tensor, where: str) -> None:
    bad = inputs.loss_mask & ~inputs.policy_logprobs.detach().isfinite()
    if bool(bad.any()):
        first = inputs.policy_logprobs.detach()[bad][0].item()
        raise NonFiniteError(
            f"policy_logprobs are not finite {where}: {int(bad.sum())} of {int(inputs.loss_mask.sum())} counted tokens, "
            f"the first is {first}, in {_completions(owner, rows[bad.any(dim=1)])}"
        )


def _completions(owner: Tensor, rows: Tensor) -> str:
    """Names the first of `rows` as a reader finds them: by their prompt in the step and their number in its group."""
    first_of_prompt = torch.searchsorted(owner, owner[rows])
    named = [
        f"completion {row - first} of prompt {prompt}"
        for row, first, prompt in zip(rows.tolist(), first_of_prompt.tolist(), owner[rows].tolist(), strict=True)
    ]
    return ", ".join(named[:TOLD_ROLLOUTS]) + (
        f" and {len(named) - TOLD_ROLLOUTS} more" if len(named) > TOLD_ROLLOUTS else ""
    )


def _first_non_finite(policy: Policy) -> str:
    for name, parameter in policy.model.named_parameters():
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            return name
    return "the whole model (its norm overflows)"
