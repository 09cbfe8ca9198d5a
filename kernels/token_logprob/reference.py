"""Log-probability and entropy of tokens under logits, in plain torch: the definition of right."""

import torch
from torch import Tensor


def token_logprob(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Log-probability of each token. logits `[N, V]`, token_ids `[N]` int64, returns `[N]` fp32, nats."""
    _check(logits, token_ids)
    return logits.float().log_softmax(-1).gather(-1, token_ids[:, None]).squeeze(-1)


def token_logprob_and_entropy(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each token and entropy of its distribution, each `[N]` fp32, nats.

    A logit of -inf is a token that cannot occur; it adds nothing to the entropy.
    """
    _check(logits, token_ids)
    logprobs = logits.float().log_softmax(-1)
    # -inf * 0 is nan, and so is its gradient: take impossible tokens out before multiplying.
    finite = torch.where(logprobs.isfinite(), logprobs, 0)
    entropy = -(logprobs.exp() * finite).sum(-1)
    return logprobs.gather(-1, token_ids[:, None]).squeeze(-1), entropy


def _check(logits: Tensor, token_ids: Tensor) -> None:
    if logits.ndim != 2 or token_ids.shape != logits.shape[:1]:
        raise ValueError(
            f"logits must be [N, V] and token_ids [N], got {list(logits.shape)} and {list(token_ids.shape)}"
        )
