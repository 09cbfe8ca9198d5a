"""Log-probability and entropy of tokens: Triton for tensors on a GPU, torch otherwise."""

from types import ModuleType

from torch import Tensor

from kernels.token_logprob import blocks, reference


def token_logprob(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Log-probability of each token. logits `[N, V]`, token_ids `[N]` int64, returns `[N]` fp32, nats."""
    if logits.is_cuda:
        return _triton().token_logprob_and_entropy(logits, token_ids)[0]
    return reference.token_logprob(logits, token_ids)


def token_logprob_and_entropy(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each token and entropy of its distribution, each `[N]` fp32, nats, both with gradient."""
    if logits.is_cuda:
        return _triton().token_logprob_and_entropy(logits, token_ids)
    return reference.token_logprob_and_entropy(logits, token_ids)


def linear_token_logprob(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    token_ids: Tensor,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The same under `(hidden @ weight.T + bias) / temperature`, without ever holding these logits of all tokens.

    Args:
        hidden: `[N, H]`, what enters the output layer.
        weight: `[V, H]` in the same dtype; bias: `[V]` or None. Products are summed in fp32 (fp64 for fp64).
        token_ids: `[N]` int64; one outside of the vocabulary gets NaN.
    Returns:
        log-probability and, where asked for, entropy, each `[N]` in nats, both with gradient, once.
    Raises:
        ValueError: shapes or dtypes do not belong together, or the temperature is not positive.
    """
    blocks.check(hidden, weight, bias, token_ids, temperature)
    tiles = _triton() if hidden.is_cuda else blocks
    return blocks.linear_token_logprob(
        hidden, weight, bias, token_ids, temperature=temperature, with_entropy=with_entropy, tiles=tiles
    )


def _triton() -> ModuleType:
    # Hosts without a GPU need no Triton.
    from kernels.token_logprob import op

    return op
