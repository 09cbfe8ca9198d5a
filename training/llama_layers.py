"""The small operations of Llama's layers with fewer passes over memory, forward and backward.

Where rows are short these take about as long as the matrix products between them. Each backward pass is worked out from what
the operation was given, by operations that can be differentiated again.
"""

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaRMSNorm,
    eager_attention_forward,
)

# Of these the angles depend on a token's position alone, not on how long its sequence became.
ROTATIONS = frozenset({"default", "linear", "llama3"})


class QuickNorm(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        found: Tensor = RmsNorm.apply(hidden_states, self.weight, self.variance_epsilon)  # type: ignore[no-untyped-call]
        return found


class QuickAttention(LlamaAttention):
    """Queries, keys and values come out of one product; queries and keys turn together."""

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        assert position_embeddings is not None
        width, queries, keys = self.head_dim, self.q_proj.out_features, self.k_proj.out_features
        states = linear(hidden_states, torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight]))
        cos, sin = (angles[..., None, : width // 2] for angles in position_embeddings)
        turning = states[..., : queries + keys].unflatten(-1, (-1, width))
        turned = Rotation.apply(turning, cos, sin).transpose(1, 2)  # type: ignore[no-untyped-call]
        query, key = turned[:, : queries // width], turned[:, queries // width :]
        value = states[..., queries + keys :].unflatten(-1, (-1, width)).transpose(1, 2)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        attended, weights = attend(
            self, query, key, value, attention_mask, dropout=0.0, scaling=self.scaling, **options
        )
        return self.o_proj(attended.reshape(*hidden_states.shape[:-1], -1)), weights


NORMS, ATTENTIONS = (LlamaRMSNorm, QuickNorm), (LlamaAttention, QuickAttention)


def is_plain_llama(model: PreTrainedModel) -> TypeGuard[LlamaForCausalLM]:
    """Whether `model` is a Llama as transformers builds it: no adapter, shard, quantised matrix, bias or hidden rotation."""
    if type(model) is not LlamaForCausalLM or model.model.rotary_emb.rope_type not in ROTATIONS:
        return False
    for layer in model.model.layers:
        if type(layer) is not LlamaDecoderLayer or type(layer.input_layernorm) not in NORMS:
            return False
        parts: list[Any] = [*layer.self_attn.children(), layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj]
        if type(layer.self_attn) not in ATTENTIONS or any(
            type(part) is not nn.Linear or part.bias is not None for part in parts
        ):
            return False
    return True


def quicken(model: PreTrainedModel) -> None:
    """Give the layers of a plain Llama in float32 these operations; leave any other model as it is."""
    if not is_plain_llama(model) or model.dtype != torch.float32:
        return
    # Their classes change, not the modules: names and weights stay, and a copy has its own.
    for module in model.modules():
        if type(module) is LlamaRMSNorm:
            module.__class__ = QuickNorm
        elif type(module) is LlamaAttention:
            module.__class__ = QuickAttention


class RmsNorm(torch.autograd.Function):
    """`x * weight / sqrt(mean(x^2) + eps)` along the last axis. Source: Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4.

    With s = 1 / sqrt(mean(x^2) + eps), n the width and g the gradient of the result:
    d/dx = s g w - x s^3 / n sum(g w x);  d/dw = sum over rows of g x s.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return torch.mul(x, _inverse_size(x, eps)).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        scale = _inverse_size(x, ctx.eps)
        by_input = grad * x
        pull = (by_input @ weight)[..., None] * scale.pow(3) / x.shape[-1]
        of_x = torch.addcmul(grad * weight * scale, x, pull, value=-1)
        return of_x, scale.flatten() @ by_input.flatten(0, -2), None


def _inverse_size(x: Tensor, eps: float) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (norm * norm / x.shape[-1] + eps).rsqrt()


class Rotation(torch.autograd.Function):
    """Heads `[..., D]` turned by the angles of their positions: of each pair, half a head apart, one goes to the other's side.

    Linear in the heads; backward turns the other way. `cos` and `sin` hold the angles of one half, `[..., D / 2]`.
    Source: Su et al. 2021, arXiv:2104.09864, eq. 34.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        first, second = states.chunk(2, dim=-1)
        out = torch.empty_like(states)
        out_first, out_second = out.chunk(2, dim=-1)
        torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-1)
        torch.mul(second, cos, out=out_second).addcmul_(first, sin)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return Rotation.apply(grad, cos, -sin), None, None  # type: ignore[no-untyped-call]
