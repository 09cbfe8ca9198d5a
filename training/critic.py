"""The critic: a copy of the policy's trunk with a head of one number, which says what reward is still to come.

It has its own weights and optimiser, so learning values cannot disturb the policy.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from training.batching import aggregate, rollout_scale
from training.config import OptimizerConfig
from training.distributed import add_up, add_up_gradients, add_up_numbers, own_micro_batches, processes
from training.learner import NonFiniteError
from training.optimizers import Optimizer
from training.policy import Policy
from training.rectangles import Tokens


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """`[B, T]`"""

    token_loss: Tensor  # 0 where the token does not count
    is_clipped: Tensor  # bool


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, loss_mask: Tensor, *, clip: float) -> ValueLoss:
    """`max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) / 2`.

    Args:
        values: `[B, T]` with gradient; what stands at masked tokens never matters.
        old_values: `[B, T]`, before the step's updates.
        returns: `[B, T]`, what should have been said.
        clip: how far a value may move in a step, in reward units; 0: any.
    Source: Schulman et al. 2017, arXiv:1707.06347, and its released code for the clip.
    """
    counts = loss_mask.bool()
    values, old_values, returns = (torch.where(counts, one, 0).float() for one in (values, old_values, returns))
    plain = (values - returns).square()
    if not clip:
        return ValueLoss(plain / 2, torch.zeros_like(counts))
    held = (old_values + (values - old_values).clamp(-clip, clip) - returns).square()
    return ValueLoss(torch.maximum(plain, held) / 2, counts & (held > plain))


def explained_variance(values: Tensor, returns: Tensor, loss_mask: Tensor) -> float:
    """1 minus the variance of what is left over the variance of the returns; 0 when the returns do not vary."""
    found, left = (one[loss_mask].double() for one in (returns, returns - values))
    spread = found.var(correction=0).item() if found.numel() else 0.0
    return 1 - left.var(correction=0).item() / spread if spread > 1e-12 else 0.0


class Critic:
    """A side model of H10. Values of a token are of the state before it."""

    def __init__(self, policy: Policy, params: Mapping[str, Any], micro_batch_rollouts: int) -> None:
        model = copy.deepcopy(policy.model)
        width = model.get_output_embeddings().in_features
        head = nn.Linear(width, 1, bias=False, device=policy.device, dtype=model.dtype)
        # A fresh critic expects nothing, so the first advantages are the rewards.
        nn.init.zeros_(head.weight)
        model.set_output_embeddings(head)
        self._scorer = Policy(model, policy.tokenizer, policy.device, recomputes=policy.recomputes)
        self._params = params
        self._micro_batch_rollouts = micro_batch_rollouts
        self._optimizer = Optimizer(model, OptimizerConfig(beta2=0.999))

    def values(self, tokens: Tokens) -> Tensor:
        """`[B, T + 1]` of the state before each token, in reward units; the column at a row's length is after its last."""
        ids, mask = tokens.completion_ids, tokens.completion_mask
        further = replace(
            tokens,
            completion_ids=nn.functional.pad(ids, (0, 1), value=self._scorer.pad_id),
            completion_mask=nn.functional.pad(mask, (1, 0), value=True),
        )
        out = torch.zeros(further.completion_ids.shape, device=ids.device)
        with torch.no_grad():
            for share in own_micro_batches(further.completion_mask.sum(dim=1), self._micro_batch_rollouts):
                found = self._values(further.rows(share.rows))
                if share.counts:
                    out[share.rows, : found.shape[1]] = found
        add_up(out)
        return out

    def update(self, tokens: Tokens, old_values: Tensor, returns: Tensor, loss_mask: Tensor) -> dict[str, float]:
        """Fit the returns on the step's counted tokens.

        Raises:
            NonFiniteError: the value loss or its gradient is not finite; the weights are as the update before left them.
        """
        mask, metrics = loss_mask.bool(), {}
        if not bool(mask.any()):
            return {}
        scale = rollout_scale(mask, "token_mean")
        for number in range(self._params["critic_updates"]):
            self._optimizer.zero_grad()
            loss = clipped = 0.0
            for share in own_micro_batches(tokens.completion_mask.sum(dim=1), self._micro_batch_rollouts):
                values = self._values(tokens.rows(share.rows))
                part = (old_values, returns, mask & share.counts)
                old, wanted, counts = (one[share.rows, : values.shape[1]] for one in part)
                found = value_loss(values, old, wanted, counts, clip=self._params["value_clip"])
                total = aggregate(found.token_loss, counts, scale[share.rows])
                # Gradients of several processes are averaged, and these have to be summed.
                (total * processes()).backward()
                loss += total.item()
                clipped += int(found.is_clipped.sum())
            loss, clipped = add_up_numbers([loss, clipped])
            add_up_gradients(self._optimizer.parameters)
            norm = nn.utils.clip_grad_norm_(self._optimizer.parameters, self._params["critic_max_grad_norm"])
            if not math.isfinite(loss):
                raise NonFiniteError(f"the critic's value loss is {loss} at its update {number}")
            if not bool(norm.isfinite()):
                raise NonFiniteError(f"the critic's gradient is not finite at its update {number}")
            self._optimizer.step(self._params["critic_learning_rate"])
            metrics = {
                "value_loss": loss,
                "value_clip_fraction": clipped / int(mask.sum()),
                "value_grad_norm": norm.item(),
            }
        return metrics | {
            "explained_variance": explained_variance(old_values, returns, mask),
            "value_mean": old_values[mask].double().mean().item(),
        }

    def state(self) -> dict[str, Any]:
        return {"model": self._scorer.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._scorer.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _values(self, tokens: Tokens) -> Tensor:
        return self._scorer.completion_logits(tokens)[..., 0].float()
