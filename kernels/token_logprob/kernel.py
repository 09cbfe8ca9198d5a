# mypy: allow-untyped-defs
"""Triton kernels for the log-probability and entropy of tokens. Formulas: `blocks`; what is right: `reference`.

With top the largest logit, s = sum exp(z - top) and u = sum (z - top) exp(z - top): log_sum = log s, entropy = log s - u / s.
"""

import triton
import triton.language as tl

# Below every logit, and finite: -inf minus -inf would be nan.
LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def row_statistics(
    logits_ptr, ids_ptr, top_ptr, log_sum_ptr, entropy_ptr, logprob_ptr, row_stride, vocab_size, BLOCK: tl.constexpr
):
    """One program a token: logits `[N, V]` of any float type, read once."""
    # int64 first: row * row_stride passes 2**31 at about 14 k rows of a vocabulary of 151 k.
    row = tl.program_id(0).to(tl.int64)
    start_ptr = logits_ptr + row * row_stride
    top, s, u = tl.full((), LOWEST, tl.float32), 0.0, 0.0
    for start in range(0, vocab_size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        z = tl.load(start_ptr + column, mask=column < vocab_size, other=-float("inf")).to(tl.float32)
        new_top = tl.maximum(top, tl.max(z, axis=0))
        shrink = tl.exp(top - new_top)
        shifted = z - new_top
        e = tl.exp(shifted)
        u = shrink * (u + s * (top - new_top)) + tl.sum(tl.where(e > 0, shifted, 0.0) * e, axis=0)
        s = shrink * s + tl.sum(e, axis=0)
        top = new_top
    own = tl.load(start_ptr + tl.load(ids_ptr + row)).to(tl.float32)
    tl.store(top_ptr + row, top)
    tl.store(log_sum_ptr + row, tl.log(s))
    tl.store(entropy_ptr + row, tl.log(s) - u / s)
    tl.store(logprob_ptr + row, own - top - tl.log(s))


@triton.jit
def row_gradient(
    logits_ptr,
    ids_ptr,
    top_ptr,
    log_sum_ptr,
    entropy_ptr,
    logprob_grad_ptr,
    entropy_grad_ptr,
    grad_ptr,
    row_stride,
    vocab_size,
    BLOCK: tl.constexpr,
):
    """One program a token and block of columns; the gradient is `[N, V]`, contiguous."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocab_size
    z = tl.load(logits_ptr + row * row_stride + column, mask=inside, other=-float("inf")).to(tl.float32)
    grad = _gradient(
        z,
        column == tl.load(ids_ptr + row),
        tl.load(top_ptr + row),
        tl.load(log_sum_ptr + row),
        tl.load(entropy_ptr + row),
        tl.load(logprob_grad_ptr + row),
        tl.load(entropy_grad_ptr + row),
    )
    tl.store(grad_ptr + row * vocab_size + column, grad.to(grad_ptr.dtype.element_ty), mask=inside)


@triton.jit
def tile_statistics(
    hidden_ptr,
    weight_ptr,
    bias_ptr,
    ids_ptr,
    own_logit_ptr,
    top_ptr,
    sum_ptr,
    entropy_ptr,
    tokens,
    vocab_size,
    width,
    inverse_temperature,
    HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """One program a block of tokens and of columns; top, sum and entropy are `[blocks, N]`, own_logit is `[N]`."""
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    z = _tile_logits(
        hidden_ptr, weight_ptr, bias_ptr, row, column, tokens, vocab_size, width, inverse_temperature,
        HAS_BIAS, BLOCK_N, BLOCK_V, BLOCK_H,
    )  # fmt: skip
    top = tl.maximum(tl.max(z, axis=1), LOWEST)
    shifted = z - top[:, None]
    e = tl.exp(shifted)
    s = tl.sum(e, axis=1)
    u = tl.sum(tl.where(e > 0, shifted, 0.0) * e, axis=1)
    # A block without any possible token weighs nothing.
    safe = tl.where(s > 0, s, 1.0)
    is_token = row < tokens
    part = tl.program_id(1).to(tl.int64) * tokens + row
    tl.store(top_ptr + part, top, mask=is_token)
    tl.store(sum_ptr + part, s, mask=is_token)
    tl.store(entropy_ptr + part, tl.log(safe) - u / safe, mask=is_token)
    own = tl.load(ids_ptr + row, mask=is_token, other=-1)[:, None] == column[None, :]
    # The block that holds the token's column is the only one to write its logit.
    has_own = tl.sum(own.to(tl.int32), axis=1) > 0
    tl.store(own_logit_ptr + row, tl.sum(tl.where(own, z, 0.0), axis=1), mask=is_token & has_own)


@triton.jit
def tile_gradient(
    hidden_ptr,
    weight_ptr,
    bias_ptr,
    ids_ptr,
    top_ptr,
    log_sum_ptr,
    entropy_ptr,
    logprob_grad_ptr,
    entropy_grad_ptr,
    grad_ptr,
    grad_row_stride,
    tokens,
    vocab_size,
    width,
    inverse_temperature,
    HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """One program a block of tokens and of columns; the gradient of W h + b is `[N, V]`."""
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    is_token = row < tokens
    z = _tile_logits(
        hidden_ptr, weight_ptr, bias_ptr, row, column, tokens, vocab_size, width, inverse_temperature,
        HAS_BIAS, BLOCK_N, BLOCK_V, BLOCK_H,
    )  # fmt: skip
    grad = _gradient(
        z,
        tl.load(ids_ptr + row, mask=is_token, other=-1)[:, None] == column[None, :],
        tl.load(top_ptr + row, mask=is_token, other=0.0)[:, None],
        tl.load(log_sum_ptr + row, mask=is_token, other=0.0)[:, None],
        tl.load(entropy_ptr + row, mask=is_token, other=0.0)[:, None],
        tl.load(logprob_grad_ptr + row, mask=is_token, other=0.0)[:, None],
        tl.load(entropy_grad_ptr + row, mask=is_token, other=0.0)[:, None],
    )
    place = row.to(tl.int64)[:, None] * grad_row_stride + column[None, :]
    inside = is_token[:, None] & (column < vocab_size)[None, :]
    tl.store(grad_ptr + place, (grad * inverse_temperature).to(grad_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _tile_logits(
    hidden_ptr, weight_ptr, bias_ptr, row, column, tokens, vocab_size, width, inverse_temperature,
    HAS_BIAS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """`[BLOCK_N, BLOCK_V]` in fp32; columns beyond the vocabulary are -inf."""
    z = tl.zeros((BLOCK_N, BLOCK_V), dtype=tl.float32)
    row_start = row.to(tl.int64)[:, None] * width
    column_start = column.to(tl.int64)[None, :] * width
    for start in range(0, width, BLOCK_H):
        inner = start + tl.arange(0, BLOCK_H)
        inside = inner < width
        hidden = tl.load(
            hidden_ptr + row_start + inner[None, :], mask=(row < tokens)[:, None] & inside[None, :], other=0.0
        )
        weight = tl.load(
            weight_ptr + column_start + inner[:, None], mask=inside[:, None] & (column < vocab_size)[None, :], other=0.0
        )
        # Not the TF32 that a GPU would round fp32 to.
        z = tl.dot(hidden, weight, acc=z, input_precision="ieee")
    if HAS_BIAS:
        z += tl.load(bias_ptr + column, mask=column < vocab_size, other=0.0).to(tl.float32)[None, :]
    return tl.where((column < vocab_size)[None, :], z * inverse_temperature, -float("inf"))


@triton.jit
def _gradient(z, own, top, log_sum, entropy, logprob_grad, entropy_grad):
    """With respect to z: logprob_grad (onehot - p) - entropy_grad p (log p + entropy)."""
    logprob = z - top - log_sum
    p = tl.exp(logprob)
    surprise = tl.where(p > 0, logprob + entropy, 0.0)
    return tl.where(own, logprob_grad, 0.0) - p * (logprob_grad + entropy_grad * surprise)
