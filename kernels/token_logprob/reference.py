"""Log-probability and entropy of tokens under logits, in plain torch: the definition of right."""

import torch
from torch import Tensor


def token_logprob(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Log-probability of each token. logits `[N, V]`, token_ids `[N]` int64, returns `[N]` fp32 (fp64 for fp64), nats."""
    _check(logits, token_ids)
    return _full(logits).log_softmax(-1).gather(-1, token_ids[:, None]).squeeze(-1)


def token_logprob_and_entropy(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each token and entropy of its distribution, each `[N]` fp32, nats.

    A logit of -inf is a token that cannot occur; it adds nothing to the entropy.
    """
    _check(logits, token_ids)
    logprobs = _full(logits).log_softmax(-1)
    # -inf * 0 is nan, and so is its gradient: take impossible tokens out before multiplying.
    finite = torch.where(logprobs.isfinite(), logprobs, 0)
    entropy = -(logprobs.exp() * finite).sum(-1)
    return logprobs.gather(-1, token_ids[:, None]).squeeze(-1), entropy


def linear_token_logprob(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, token_ids: Tensor, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The same under a linear output layer: hidden `[N, H]`, weight `[V, H]`, bias `[V]`."""
    logits = torch.nn.functional.linear(_full(hidden), _full(weight), None if bias is None else _full(bias))
    return token_logprob_and_entropy(logits / temperature, token_ids)


def _full(values: Tensor) -> Tensor:
    """In fp32 at least."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _check(logits: Tensor, token_ids: Tensor) -> None:
    if logits.ndim != 2 or token_ids.shape != logits.shape[:1]:
        raise ValueError(
            f"logits must be [N, V] and token_ids [N], got {list(logits.shape)} and {list(token_ids.shape)}"
        )
