"""Checks, launches and autograd of the Triton kernels. Never falls back, so that its tests compare it with the reference."""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.token_logprob import blocks, kernel

ROW_BLOCK = 4096
TILE = {"BLOCK_N": 64, "BLOCK_V": 128, "BLOCK_H": 32}
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def token_logprob_and_entropy(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """See `reference.token_logprob_and_entropy`.

    Raises:
        ValueError: the shapes do not belong together, or the logits are fp64.
    """
    if logits.ndim != 2 or token_ids.shape != logits.shape[:1]:
        raise ValueError(
            f"logits must be [N, V] and token_ids [N], got {list(logits.shape)} and {list(token_ids.shape)}"
        )
    _check_dtype(logits)
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    logprob, entropy = _TokenLogprob.apply(logits, token_ids.contiguous())  # type: ignore[no-untyped-call]
    return logprob, entropy


class _TokenLogprob(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        rows, vocab_size = logits.shape
        top, log_sum, entropy, logprob = logits.new_empty((4, rows), dtype=torch.float32)
        if rows:
            kernel.row_statistics[(rows,)](
                logits, token_ids, top, log_sum, entropy, logprob,
                logits.stride(0), vocab_size, _row_block(vocab_size),
            )  # fmt: skip
        ctx.save_for_backward(logits, token_ids, top, log_sum, entropy)
        return logprob, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logprob_grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor, None]:
        logits, token_ids, top, log_sum, entropy = ctx.saved_tensors
        rows, vocab_size = logits.shape
        grad, block = logits.new_empty(rows, vocab_size), _row_block(vocab_size)
        if rows:
            kernel.row_gradient[(rows, triton.cdiv(vocab_size, block))](
                logits, token_ids, top, log_sum, entropy, logprob_grad.contiguous(), entropy_grad.contiguous(), grad,
                logits.stride(0), vocab_size, block,
            )  # fmt: skip
        return grad, None


def statistics(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, token_ids: Tensor, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """See `blocks.statistics`."""
    _check_dtype(hidden)
    tokens, vocab_size = len(hidden), len(weight)
    grid = (triton.cdiv(tokens, TILE["BLOCK_N"]), triton.cdiv(vocab_size, TILE["BLOCK_V"]))
    tops, sums, entropies = hidden.new_empty((3, grid[1], tokens), dtype=torch.float32)
    own_logit = torch.full((tokens,), torch.nan, device=hidden.device)
    if tokens:
        kernel.tile_statistics[grid](
            *_layer(hidden, weight, bias), token_ids.contiguous(), own_logit, tops, sums, entropies,
            tokens, vocab_size, hidden.shape[1], 1 / temperature, bias is not None, **TILE,
        )  # fmt: skip
    return own_logit, *blocks.join(tops, sums, entropies if with_entropy else None)


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
    """See `blocks.logit_gradient`."""
    tokens, columns = out.shape
    none = torch.zeros_like(top)
    if tokens:
        kernel.tile_gradient[(triton.cdiv(tokens, TILE["BLOCK_N"]), triton.cdiv(columns, TILE["BLOCK_V"]))](
            *_layer(hidden, weight, bias), token_ids.contiguous(), top, log_sum,
            none if entropy is None else entropy, logprob_grad.contiguous(),
            none if entropy_grad is None else entropy_grad.contiguous(), out,
            out.stride(0), tokens, columns, hidden.shape[1], 1 / temperature, bias is not None, **TILE,
        )  # fmt: skip
    return out


def gradient_dtype(hidden: Tensor) -> torch.dtype:
    """As the matrix products that follow want it."""
    return hidden.dtype


def _layer(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Where there is no bias the kernel reads none, but wants a pointer."""
    return hidden.contiguous(), weight.contiguous(), weight if bias is None else bias.contiguous()


def _row_block(vocab_size: int) -> int:
    return min(ROW_BLOCK, triton.next_power_of_2(vocab_size))


def _check_dtype(values: Tensor) -> None:
    if values.dtype not in FLOATS:
        raise ValueError(f"the Triton kernels sum in fp32 and take {', '.join(map(str, FLOATS))}, not {values.dtype}")
