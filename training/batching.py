"""From the loss of every token to one number, equal however the step is cut into micro-batches.

Every aggregation is a weight per rollout, worked out once over all rollouts of an optimiser step after all masks. The loss
of a micro-batch is then a plain weighted sum, and the gradients of the micro-batches add up to that of the whole.
"""

import torch
from torch import Tensor

AGGREGATIONS = ("token_mean", "rollout_mean", "rollout_sum", "token_sum_constant", "prompt_mean", "token_sum")

# What a forward and backward pass covers at most: activations that stay in a processor's cache are quicker and take less
# memory; a GPU wants more to do at a time.
MICRO_BATCH_TOKENS = {"cpu": 1024, "cuda": 32768}


def rollout_scale(
    loss_mask: Tensor,
    aggregation: str,
    *,
    prompt_index: Tensor | None = None,
    constant_tokens: int | None = None,
) -> Tensor:
    """What the token losses of each rollout are multiplied by before they are summed.

    With N rollouts that have counted tokens, T_i counted tokens of rollout i:
    `token_mean` 1/ΣT, `rollout_mean` 1/(N T_i), `rollout_sum` 1/N, `token_sum_constant` 1/(N C), `prompt_mean`
    1/(prompts x tokens of its prompt), `token_sum` 1.

    Args:
        loss_mask: `[B, T]` of the whole optimiser step, True where the token counts.
        prompt_index: `[B]` int64, equal for rollouts of one prompt; `prompt_mean` needs it.
        constant_tokens: C, a token budget, never the padded width; `token_sum_constant` needs it.
    Returns:
        `[B]` float64; 0 for a rollout without counted tokens, which is left out of every mean.
    Raises:
        ValueError: the mask is not 2-D, the aggregation is unknown or lacks what it needs.
    """
    if loss_mask.ndim != 2:
        raise ValueError(f"loss_mask must be [B, T], got {list(loss_mask.shape)}")
    tokens = loss_mask.bool().sum(dim=1).double()
    counts = tokens > 0
    rollouts = counts.sum().clamp(min=1)
    if aggregation == "token_mean":
        scale = torch.ones_like(tokens) / tokens.sum().clamp(min=1)
    elif aggregation == "rollout_mean":
        scale = 1 / (rollouts * tokens.clamp(min=1))
    elif aggregation == "rollout_sum":
        scale = torch.ones_like(tokens) / rollouts
    elif aggregation == "token_sum_constant":
        if constant_tokens is None or constant_tokens < 1:
            raise ValueError(f"token_sum_constant needs constant_tokens of at least 1, got {constant_tokens}")
        scale = torch.ones_like(tokens) / (rollouts * constant_tokens)
    elif aggregation == "prompt_mean":
        if prompt_index is None or prompt_index.shape != tokens.shape:
            raise ValueError("prompt_mean needs prompt_index [B]")
        scale = _prompt_scale(tokens, prompt_index)
    elif aggregation == "token_sum":
        scale = torch.ones_like(tokens)
    else:
        raise ValueError(f"unknown aggregation {aggregation!r}; known: {', '.join(AGGREGATIONS)}")
    return torch.where(counts, scale, 0)


def _prompt_scale(tokens: Tensor, prompt_index: Tensor) -> Tensor:
    _, prompt = prompt_index.unique(return_inverse=True)
    per_prompt = torch.zeros(int(prompt.max()) + 1 if prompt.numel() else 0, dtype=tokens.dtype, device=tokens.device)
    per_prompt.index_add_(0, prompt, tokens)
    prompts = (per_prompt > 0).sum().clamp(min=1)
    return 1 / (prompts * per_prompt[prompt].clamp(min=1))


def aggregate(token_loss: Tensor, loss_mask: Tensor, scale: Tensor) -> Tensor:
    """The scalar loss of a micro-batch: backward through each in turn gives the gradient of the whole step.

    Args:
        token_loss: `[B, T]`; what stands at masked tokens never matters.
        loss_mask: `[B, T]`.
        scale: `[B]`, the micro-batch's rows of `rollout_scale`.
    Returns:
        A scalar that keeps the graph, 0 when nothing counts.
    """
    if token_loss.shape != loss_mask.shape or scale.shape != token_loss.shape[:1]:
        raise ValueError(
            f"token_loss and loss_mask must be [B, T] and scale [B], got {list(token_loss.shape)}, "
            f"{list(loss_mask.shape)}, {list(scale.shape)}"
        )
    counted = torch.where(loss_mask.bool(), token_loss, 0)
    return (counted * scale[:, None].to(counted.dtype)).sum()


def micro_batches(lengths: Tensor, size: int) -> list[Tensor]:
    """Row numbers of micro-batches of at most `size` rollouts, shortest rollouts first, so that short ones are not padded.

    None covers more than `MICRO_BATCH_TOKENS`, padding included, but by a single rollout.

    Args:
        lengths: `[B]` tokens that a forward pass has to cover.
    Returns:
        Ascending row numbers; together they are all rows. All of them in one micro-batch where they fit.
    """
    limit = MICRO_BATCH_TOKENS[lengths.device.type]
    order = lengths.argsort(stable=True)
    batches: list[list[int]] = []
    for row, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if not batches or len(batches[-1]) == size or (len(batches[-1]) + 1) * length > limit:
            batches.append([])
        batches[-1].append(row)
    return [torch.tensor(sorted(rows), device=lengths.device) for rows in batches]
