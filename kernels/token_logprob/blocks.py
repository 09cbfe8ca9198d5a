"""Log-probability of tokens under a linear output layer, block after block of the vocabulary.

With logits z = (W h + b) / temperature, p = softmax(z), the token's number k and the entropy H = -sum p log p:

    top = max z, log_sum = log sum exp(z - top)
    log p_k = z_k - top - log_sum
    d log p_k / dz = onehot(k) - p
    d H / dz = -p (log p + H)

A block of columns needs top and log_sum of all to know its p, two numbers a token; added up, large logits would round the
second away. So the forward pass walks over the vocabulary and keeps these; the backward pass walks again, makes each block's
logits anew (four matrix products where plain autograd has three) and turns them into gradients at once. Blocks of columns rather than of tokens, because each row of
W's gradient is then written once instead of being added to for every block.

Two blocks join by the chain rule of entropy: with w the probability of a block and H_b the entropy inside it,
H = sum of w (H_b - log w).
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits at a time: 8 MiB in fp32, about what stays in a processor's cache. Narrower blocks starve the matrix product.
BLOCK_ELEMENTS, MIN_COLUMNS = 1 << 21, 256


def linear_token_logprob(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    token_ids: Tensor,
    *,
    temperature: float,
    with_entropy: bool,
    tiles: ModuleType,
) -> tuple[Tensor, Tensor | None]:
    """See `kernels.linear_token_logprob`; `tiles` is the module whose `statistics` and `logit_gradient` look at logits."""
    logprobs, entropy = _LinearTokenLogprob.apply(hidden, weight, bias, token_ids, temperature, with_entropy, tiles)  # type: ignore[no-untyped-call]
    return logprobs, entropy


class _LinearTokenLogprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        token_ids: Tensor,
        temperature: float,
        with_entropy: bool,
        tiles: ModuleType,
    ) -> tuple[Tensor, Tensor | None]:
        own_logit, top, log_sum, entropy = tiles.statistics(hidden, weight, bias, token_ids, temperature, with_entropy)
        ctx.save_for_backward(hidden, weight, bias, token_ids, top, log_sum, entropy)
        ctx.temperature, ctx.tiles = temperature, tiles
        ctx.set_materialize_grads(False)
        return own_logit - top - log_sum, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logprob_grad: Tensor | None, entropy_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, token_ids, top, log_sum, entropy = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        if logprob_grad is None:
            logprob_grad = torch.zeros_like(top)
        hidden_grad = torch.zeros_like(hidden, dtype=top.dtype) if wants_hidden else None
        weight_grad = torch.empty_like(weight) if wants_weight else None
        bias_grad = torch.empty_like(bias) if wants_bias else None
        space = block_space(hidden, weight, ctx.tiles.gradient_dtype(hidden))
        for columns in vocabulary_blocks(hidden, weight):
            grad = ctx.tiles.logit_gradient(
                hidden,
                weight[columns],
                None if bias is None else bias[columns],
                token_ids - columns.start,
                ctx.temperature,
                top,
                log_sum,
                entropy,
                logprob_grad,
                entropy_grad,
                out=space[:, : columns.stop - columns.start],
            )
            if hidden_grad is not None:
                hidden_grad += grad @ weight[columns].to(grad.dtype)
            if weight_grad is not None:
                weight_grad[columns] = grad.T @ hidden.to(grad.dtype)
            if bias_grad is not None:
                bias_grad[columns] = grad.sum(dim=0)
        return None if hidden_grad is None else hidden_grad.to(hidden.dtype), weight_grad, bias_grad, *[None] * 4


def vocabulary_blocks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    step = max(BLOCK_ELEMENTS // max(len(hidden), 1), MIN_COLUMNS)
    for start in range(0, len(weight), step):
        yield slice(start, min(start + step, len(weight)))


def block_space(hidden: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for the widest block, made once: blocks that come and go leave holes in the heap."""
    widest = next(vocabulary_blocks(hidden, weight))
    return torch.empty(len(hidden), widest.stop, dtype=dtype, device=hidden.device)


def statistics(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, token_ids: Tensor, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Of all logits of each token: that of its own number, top and log_sum, and the entropy where asked for; `[N]`."""
    tops, sums, entropies = [], [], []
    space = block_space(hidden, weight, gradient_dtype(hidden))
    own_logit = torch.full_like(space[:, 0], torch.nan)
    for columns in vocabulary_blocks(hidden, weight):
        logits = _logits(
            hidden,
            weight[columns],
            None if bias is None else bias[columns],
            temperature,
            space[:, : columns.stop - columns.start],
        )
        rows, own = _own_columns(token_ids - columns.start, logits)
        own_logit[rows] = logits[rows, own]
        # Finite, since -inf minus -inf is nan; a block without any possible token then has the sum 0.
        tops.append(logits.amax(dim=1).clamp_(min=torch.finfo(logits.dtype).min))
        sums.append(logits.sub_(tops[-1][:, None]).exp_().sum(dim=1))
        if with_entropy:
            p = logits.div_(sums[-1].clamp(min=1)[:, None])
            entropies.append(torch.special.entr(p).sum(dim=1))
    return own_logit, *join(torch.stack(tops), torch.stack(sums), torch.stack(entropies) if with_entropy else None)


def join(tops: Tensor, sums: Tensor, entropies: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """top, log_sum and entropy `[N]` of everything, from those of every block, `[blocks, N]`."""
    top = tops.amax(dim=0)
    shares = sums * (tops - top).exp_()
    total = shares.sum(dim=0)
    if entropies is None:
        return top, total.log(), None
    w = shares.div_(total)
    return top, total.log(), (w * entropies + torch.special.entr(w)).sum(dim=0)


def logit_gradient(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    token_ids: Tensor,
    temperature: float,
    top: Tensor,
    log_sum: Tensor,
    entropy: Tensor | None,
    logprob_grad: Tensor,
    entropy_grad: Tensor | None,
    *,
    out: Tensor,
) -> Tensor:
    """`out`, `[N, columns]`, with respect to `W h + b` of some columns; `token_ids` are counted from the first of them."""
    p = _logits(hidden, weight, bias, temperature, out).sub_(top[:, None]).sub_(log_sum[:, None]).exp_()
    rows, own = _own_columns(token_ids, p)
    logprob_grad = logprob_grad / temperature
    if entropy is None or entropy_grad is None:
        grad = p.mul_(-logprob_grad[:, None])
    else:
        entropy_grad = entropy_grad / temperature
        surprise = torch.special.entr(p).mul_(entropy_grad[:, None])
        grad = p.mul_(-(logprob_grad + entropy_grad * entropy)[:, None]).add_(surprise)
    grad[rows, own] += logprob_grad[rows]
    return grad


def check(hidden: Tensor, weight: Tensor, bias: Tensor | None, token_ids: Tensor, temperature: float) -> None:
    """Raises ValueError when the arguments of `linear_token_logprob` do not belong together."""
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(f"hidden must be [N, H] and weight [V, H], got {list(hidden.shape)} and {list(weight.shape)}")
    if token_ids.shape != hidden.shape[:1] or (bias is not None and bias.shape != weight.shape[:1]):
        raise ValueError(
            f"token_ids must be [{len(hidden)}] and bias [{len(weight)}], got {list(token_ids.shape)} and "
            f"{None if bias is None else list(bias.shape)}"
        )
    if hidden.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype):
        raise ValueError(f"hidden is {hidden.dtype} and weight {weight.dtype}; they and the bias must be of one dtype")
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")


def gradient_dtype(hidden: Tensor) -> torch.dtype:
    """Of logits and their gradients here."""
    return torch.promote_types(hidden.dtype, torch.float32)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, out: Tensor) -> Tensor:
    scale = 1 / temperature
    start = out.new_zeros(1) if bias is None else bias.to(out.dtype)
    return torch.addmm(start, hidden.to(out.dtype), weight.to(out.dtype).T, beta=scale, alpha=scale, out=out)


def _own_columns(token_ids: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose token lies in the block, and where it lies."""
    rows = ((token_ids >= 0) & (token_ids < block.shape[1])).nonzero()[:, 0]
    return rows, token_ids[rows]
