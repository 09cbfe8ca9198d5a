"""TRPO's step: the natural gradient, as far as a bound on the KL to the old policy allows.

A method for small models: every Fisher-vector product is two passes backwards through the whole batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from training.batching import aggregate, micro_batches, rollout_scale
from training.config import OptimizerConfig
from training.learner import LearnerBatch, NonFiniteError, Objective, Update, accumulate_gradient, loss_inputs
from training.policy import Policy

Products = Callable[[Tensor], Tensor]
# Added to the denominator of the step's length.
LENGTH_EPS = 1e-8
# Lengths tried before a step is given up.
ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class TrustRegionStep:
    """What became of a step; `accepted` is the backtracking it took, None when no length was good enough."""

    accepted: int | None
    kl: float  # nats, mean over counted tokens, after the step
    improvement: float  # of the surrogate, in advantage units
    residual: float  # norm of what conjugate gradient left over


def conjugate_gradient(product: Products, target: Tensor, *, iterations: int, tolerance: float = 1e-10) -> Tensor:
    """`x` with `product(x)` near `target`, for a symmetric positive product.

    Source: Hestenes and Stiefel 1952.
    """
    x = torch.zeros_like(target)
    residual, direction = target.clone(), target.clone()
    size = residual.dot(residual)
    for _ in range(iterations):
        if size <= tolerance:
            break
        image = product(direction)
        length = size / direction.dot(image)
        x += length * direction
        residual -= length * image
        new_size = residual.dot(residual)
        direction = residual + new_size / size * direction
        size = new_size
    return x


def step_length(direction: Tensor, curvature: Tensor, *, kl_limit: float) -> float:
    """`sqrt(2 kl_limit / (x' H x))`: as far as the quadratic model of the KL allows; 0 when the curvature is not positive.

    Source: Schulman et al. 2015, arXiv:1502.05477, app. C.
    """
    bend = direction.dot(curvature).item()
    return math.sqrt(2 * kl_limit / (bend + LENGTH_EPS)) if bend > 0 and math.isfinite(bend) else 0.0


def natural_step(
    parameters: Sequence[Tensor],
    gradient: Tensor,
    product: Products,
    measure: Callable[[], tuple[float, float]],
    *,
    kl_limit: float,
    iterations: int = 10,
    damping: float = 0.1,
    backtrack: float = 0.8,
    attempts: int = ATTEMPTS,
) -> TrustRegionStep:
    """Move `parameters` along the natural gradient; they stay as they are when no length is accepted.

    Args:
        gradient: `[N]` of the surrogate to be raised.
        product: Fisher-vector product at the old parameters, `[N]` to `[N]`.
        measure: surrogate and mean KL at the parameters as they are.
        kl_limit: nats.
    Source: Schulman et al. 2015, arXiv:1502.05477.
    """

    def damped(vector: Tensor) -> Tensor:
        return product(vector) + damping * vector

    direction = conjugate_gradient(damped, gradient, iterations=iterations)
    curvature = damped(direction)
    residual = (curvature - gradient).norm().item()
    length = step_length(direction, curvature, kl_limit=kl_limit)
    before, old = measure()[0], [parameter.detach().clone() for parameter in parameters]
    for number in range(attempts if length else 0):
        _move(parameters, old, direction, length * backtrack**number)
        surrogate, kl = measure()
        if kl <= kl_limit and surrogate >= before:
            return TrustRegionStep(number, kl, surrogate - before, residual)
    _move(parameters, old, direction, 0.0)
    return TrustRegionStep(None, 0.0, 0.0, residual)


@torch.no_grad()
def _move(parameters: Sequence[Tensor], old: Sequence[Tensor], direction: Tensor, length: float) -> None:
    start = 0
    for parameter, before in zip(parameters, old, strict=True):
        end = start + parameter.numel()
        parameter.copy_(before + length * direction[start:end].view_as(parameter).to(parameter.dtype))
        start = end


def flat(tensors: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """One vector of all; zeros where a parameter took no part."""
    return torch.cat(
        [
            (torch.zeros_like(parameter) if tensor is None else tensor).reshape(-1)
            for tensor, parameter in zip(tensors, parameters, strict=True)
        ]
    )


def update_within_region(
    policy: Policy,
    batch: LearnerBatch,
    objective: Objective,
    config: OptimizerConfig,
    *,
    temperature: float,
    where: str,
) -> Update:
    """One trust-region step on the whole batch. The KL is exact, over the whole vocabulary, and a mean of counted tokens.

    Raises:
        NonFiniteError: log-probabilities, loss or gradient are not finite; the weights are as before.
    """
    parameters = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]
    parts = [batch.rows(rows) for rows in micro_batches(batch.lengths, config.micro_batch_rollouts)]
    scale = rollout_scale(
        batch.loss_mask,
        objective.params["aggregation"],
        prompt_index=batch.tokens.owner,
        constant_tokens=objective.params["constant_tokens"],
    )
    scales = [scale[rows] for rows in micro_batches(batch.lengths, config.micro_batch_rollouts)]
    tokens = int(batch.loss_mask.sum())

    def log_softmax(part: LearnerBatch) -> Tensor:
        logits: Tensor = policy.completion_logits(part.tokens).float()[part.loss_mask]
        return (logits / temperature).log_softmax(dim=-1)

    with torch.no_grad():
        old = [log_softmax(part) for part in parts]

    def kl(number: int) -> Tensor:
        now = log_softmax(parts[number])
        return (old[number].exp() * (old[number] - now)).sum() / tokens

    def product(vector: Tensor) -> Tensor:
        out = torch.zeros_like(vector)
        # The fused attention kernels have no second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            for number in range(len(parts)):
                first = torch.autograd.grad(kl(number), parameters, create_graph=True, allow_unused=True)
                slope = flat(first, parameters).dot(vector)
                out += flat(torch.autograd.grad(slope, parameters, allow_unused=True), parameters)
        return out

    @torch.no_grad()
    def measure() -> tuple[float, float]:
        surrogate = 0.0
        for part, part_scale in zip(parts, scales, strict=True):
            inputs = loss_inputs(policy, part, temperature, with_entropy=False)
            loss = objective.policy_loss(inputs, objective.params).token_loss
            surrogate -= aggregate(loss, inputs.loss_mask, part_scale).item()
        return surrogate, sum(kl(number).item() for number in range(len(parts)))

    policy.model.zero_grad(set_to_none=True)
    found = accumulate_gradient(policy, batch, objective, config, temperature=temperature, where=where)
    gradient = -flat([parameter.grad for parameter in parameters], parameters)
    norm = gradient.norm().item()
    if not math.isfinite(norm):
        raise NonFiniteError(f"the gradient of the surrogate is not finite {where}")
    params = objective.params
    step = natural_step(
        parameters,
        gradient,
        product,
        measure,
        kl_limit=params["kl_limit"],
        iterations=params["conjugate_iterations"],
        damping=params["damping"],
        backtrack=params["backtrack"],
    )
    metrics = {
        "trust_region_accepted": 0.0 if step.accepted is None else 1.0,
        "trust_region_backtracks": float(ATTEMPTS) if step.accepted is None else float(step.accepted),
        "trust_region_kl": step.kl,
        "trust_region_improvement": step.improvement,
        "trust_region_residual": step.residual,
    }
    return replace(found, grad_norm=norm, learning_rate=0.0, metrics=metrics)
