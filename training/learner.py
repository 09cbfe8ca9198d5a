"""One optimiser step after another on the rollouts of a step."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from training.batching import aggregate, rollout_scale
from training.config import OptimizerConfig
from training.distributed import (
    add_up,
    add_up_gradients,
    add_up_numbers,
    filled_in,
    first_problem,
    own_micro_batches,
    processes,
    whole,
)
from training.losses import MASKED, LossInputs, PolicyLoss
from training.optimizers import Optimizer
from training.rectangles import Tokens

if TYPE_CHECKING:
    from training.policy import Policy

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
    top_ids: Tensor | None = None  # [B, T, K] int64
    top_logprobs: Tensor | None = None  # [B, T, K] nats, under the weights that sampled
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
            top_ids=part(self.top_ids),
            top_logprobs=part(self.top_logprobs),
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


def logprobs_under(policy: "Policy", tokens: Tokens, *, temperature: float, micro_batch: int) -> Tensor:
    """`[B, T]` nats of the completions' tokens under the weights of `policy` as they are, without gradient."""
    out = torch.zeros(tokens.completion_ids.shape, device=tokens.completion_ids.device)
    with torch.no_grad():
        for share in own_micro_batches(tokens.completion_mask.sum(dim=1), micro_batch):
            part = tokens.rows(share.rows)
            logprobs = policy.score(part, temperature=temperature).logprobs
            if share.counts:
                out[share.rows, : part.completion_ids.shape[1]] = logprobs
    add_up(out)
    return out


def likeliest_under(
    policy: "Policy", tokens: Tokens, *, temperature: float, micro_batch: int, count: int
) -> tuple[Tensor, Tensor]:
    """Ids and nats, `[B, T, K]`, of the `count` likeliest tokens at every place of the completions and of the one that stands
    there; where that is among the likeliest its second mention has -inf.
    """
    shape = (*tokens.completion_ids.shape, min(count, policy.model.config.vocab_size) + 1)
    ids = torch.zeros(shape, dtype=torch.int64, device=tokens.completion_ids.device)
    logprobs = torch.zeros(shape, device=ids.device)
    for share in own_micro_batches(tokens.completion_mask.sum(dim=1), micro_batch):
        part = tokens.rows(share.rows)
        found, their_logprobs = policy.likeliest(part, temperature=temperature, count=count)
        if share.counts:
            width = part.completion_ids.shape[1]
            ids[share.rows, :width] = found
            logprobs[share.rows, :width] = their_logprobs
    add_up(ids)
    add_up(logprobs)
    return ids, logprobs


def update_policy(
    policy: "Policy",
    optimizer: Optimizer,
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
    optimizer.zero_grad()
    found = accumulate_gradient(policy, batch, objective, config, temperature=temperature, where=where)
    add_up_gradients(optimizer.parameters)
    grad_norm = whole(torch.nn.utils.clip_grad_norm_(optimizer.parameters, config.max_grad_norm)).item()
    if not math.isfinite(grad_norm):
        raise NonFiniteError(f"the gradient of {_first_non_finite(policy)} is not finite {where}")
    optimizer.step(learning_rate)
    return replace(found, grad_norm=grad_norm, learning_rate=learning_rate)


def accumulate_gradient(
    policy: "Policy",
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
    own = torch.zeros_like(batch.loss_mask)
    clamped_tokens = 0
    problem: str | None = None
    for share in own_micro_batches(batch.lengths, config.micro_batch_rollouts):
        rows, part_batch = share.rows, batch.rows(share.rows)
        if not share.counts:
            part_batch = replace(part_batch, loss_mask=torch.zeros_like(part_batch.loss_mask))
        inputs = loss_inputs(policy, part_batch, temperature, with_entropy=objective.needs_entropy)
        part = objective.policy_loss(inputs, objective.params)
        token_losses = {"policy": part.token_loss}
        token_losses |= {name: term(inputs, objective.params) for name, term in objective.auxiliary.items()}
        losses = {name: aggregate(loss, inputs.loss_mask, scale[rows]) for name, loss in token_losses.items()}
        problem = problem or _problem(inputs, token_losses, losses, batch.tokens.owner, rows, where)
        for name, value in losses.items():
            loss_parts[name] += value.item()
        if share.counts:
            reach = (rows, slice(inputs.loss_mask.shape[1]))
            own[reach] = True
            is_reached = part_batch.tokens.completion_mask
            policy_logprobs[reach] = inputs.policy_logprobs.detach().masked_fill(~is_reached, torch.nan)
            importance_ratio[reach] = part.importance_ratio
            clip_flag[reach] = part.clip_flag
            clamped_tokens += part.clamped_tokens
        # Gradients of several processes are averaged, and these have to be summed.
        (torch.stack(list(losses.values())).sum() * processes()).backward()
    # Only now: a process that stopped on its own would leave the others waiting for it.
    if found := first_problem(problem):
        raise NonFiniteError(found)
    *totals, clamped = add_up_numbers([*loss_parts.values(), clamped_tokens])
    return Update(
        loss=sum(totals),
        loss_parts=dict(zip(loss_parts, totals, strict=True)),
        grad_norm=math.nan,
        learning_rate=math.nan,
        policy_logprobs=filled_in(policy_logprobs, own),
        importance_ratio=filled_in(importance_ratio, own),
        clip_flag=filled_in(clip_flag, own),
        clamped_tokens=int(clamped),
    )


def loss_inputs(policy: "Policy", batch: LearnerBatch, temperature: float, *, with_entropy: bool) -> LossInputs:
    """What the losses are given of a micro-batch, with the policy's gradient."""
    scores = policy.score(batch.tokens, temperature=temperature, with_entropy=with_entropy, alternatives=batch.top_ids)
    top = batch.top_logprobs
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
        top_sampler_logprobs=top,
        top_policy_logprobs=None
        if top is None or scores.alternatives is None
        else scores.alternatives.masked_fill(top == -torch.inf, -torch.inf),
    )


def _problem(
    inputs: LossInputs,
    token_losses: Mapping[str, Tensor],
    losses: Mapping[str, Tensor],
    owner: Tensor,
    rows: Tensor,
    where: str,
) -> str | None:
    """What of a micro-batch is not finite, in words."""
    bad = inputs.loss_mask & ~inputs.policy_logprobs.detach().isfinite()
    if bool(bad.any()):
        first = inputs.policy_logprobs.detach()[bad][0].item()
        return (
            f"policy_logprobs are not finite {where}: {int(bad.sum())} of {int(inputs.loss_mask.sum())} counted tokens, "
            f"the first is {first}, in {named_completions(owner, rows[bad.any(dim=1)])}"
        )
    for name, loss in losses.items():
        if not bool(loss.isfinite()):
            bad = (inputs.loss_mask & ~token_losses[name].isfinite()).any(dim=1)
            culprits = named_completions(owner, rows[bad] if bool(bad.any()) else rows)
            return f"the {name} loss is {loss.item()} {where}, in {culprits}"
    return None


def named_completions(owner: Tensor, rows: Tensor) -> str:
    """Names the first of `rows` as a reader finds them: by their prompt in the step and their number in its group."""
    first_of_prompt = torch.searchsorted(owner, owner[rows])
    named = [
        f"completion {row - first} of prompt {prompt}"
        for row, first, prompt in zip(rows.tolist(), first_of_prompt.tolist(), owner[rows].tolist(), strict=True)
    ]
    return ", ".join(named[:TOLD_ROLLOUTS]) + (
        f" and {len(named) - TOLD_ROLLOUTS} more" if len(named) > TOLD_ROLLOUTS else ""
    )


def _first_non_finite(policy: "Policy") -> str:
    for name, parameter in policy.model.named_parameters():
        if parameter.grad is not None and not bool(whole(parameter.grad).isfinite().all()):
            return name
    return "the whole model (its norm overflows)"
