"""What kernel tests share."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def assert_matches(
    ours: Callable[..., Sequence[Tensor | None]],
    reference: Callable[..., Sequence[Tensor | None]],
    inputs: Sequence[Tensor],
    *,
    atol: float,
    rtol: float = 1e-5,
) -> None:
    """Values, and gradients with respect to every input under the same random weights of the results, are equal."""
    results = []
    for function in (ours, reference):
        leaves = [one.detach().clone().requires_grad_() for one in inputs]
        values = [one for one in function(*leaves) if one is not None]
        random = torch.Generator(values[0].device).manual_seed(0)
        weights = [torch.randn(one.shape, generator=random, device=one.device, dtype=one.dtype) for one in values]
        torch.autograd.backward(values, weights)
        results.append((*values, *(leaf.grad for leaf in leaves)))
    for mine, wanted in zip(*results, strict=True):
        torch.testing.assert_close(mine, wanted, atol=atol, rtol=rtol)
