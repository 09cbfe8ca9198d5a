"""Llama's next token with as few operations as it takes: where rows are small, a general forward pass is mostly overhead.

Reads the weights of the live module anew for every call, so nothing can be stale; mathematically `LlamaForCausalLM.forward` for one token a row.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from training.policy import Prefilled

MOST_COPIED = 32 * 2**20  # bytes of a model whose weights lie twice in memory while it samples


class LlamaDecoder:
    """Goes on from a prefill, token after token; rows can leave."""

    def __init__(self, model: LlamaForCausalLM, start: Prefilled, max_new_tokens: int) -> None:
        config: Any = model.config
        self.model = model
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.written = start.cache.get_seq_length()
        width = self.written + max_new_tokens
        filled: list[Any] = start.cache.layers
        self.keys = [with_room(layer.keys, width) for layer in filled]  # [B, KV, width, D] each
        self.values = [with_room(layer.values, width) for layer in filled]
        self.position = start.position  # [B], of the next token
        cos, sin = model.model.rotary_emb(self.keys[0], torch.arange(width, device=start.position.device)[None])
        # The halves of a head turn by the same angles.
        self.cos, self.sin = cos[0, :, None], sin[0, :, None, : sin.shape[-1] // 2]  # [width, 1, D], [width, 1, D / 2]
        self.weights = columns_of(model)
        self.bias: Tensor | None = None  # [B, 1, 1, width], -inf at padding; None: there is none
        if start.mask is not None:
            self.bias = self.keys[0].new_zeros(start.mask.shape[0], 1, 1, width)
            self.bias[..., : self.written].masked_fill_(~start.mask[:, None, None], -torch.inf)

    def next_logits(self, token: Tensor) -> Tensor:
        """`[B, V]` logits after `token` `[B, 1]`, which is added to what has been read."""
        body = self.model.model
        cos, sin = self.cos[self.position], self.sin[self.position]
        hidden = body.embed_tokens(token)[:, 0]
        for number, (layer, weights) in enumerate(zip(body.layers, self.weights, strict=True)):
            *projections, output, gate, up, down = weights
            attended = self._attention(
                number, layer.self_attn, projections, normed(hidden, layer.input_layernorm), cos, sin
            )
            hidden = torch.addmm(hidden, attended, output)
            states = normed(hidden, layer.post_attention_layernorm)
            hidden = torch.addmm(hidden, layer.mlp.act_fn(states @ gate).mul_(states @ up), down)
        self.written += 1
        self.position = self.position + 1
        logits: Tensor = self.model.lm_head(normed(hidden, body.norm))
        return logits

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone."""
        self.keys = [keys[rows] for keys in self.keys]
        self.values = [values[rows] for values in self.values]
        self.position = self.position[rows]
        self.bias = None if self.bias is None else self.bias[rows]

    def _attention(
        self, number: int, layer: Any, projections: list[Tensor], hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        heads, kv_heads, width = self.heads, self.kv_heads, layer.head_dim
        # Products into one rectangle: queries and keys turn together.
        states = hidden.new_empty(hidden.shape[0], (heads + 2 * kv_heads) * width)
        parts = states.split([heads * width, kv_heads * width, kv_heads * width], dim=1)
        for projection, part in zip(projections, parts, strict=True):
            torch.mm(hidden, projection, out=part)
        states = states.unflatten(1, (-1, width))
        turned, value = rotated(states[:, : heads + kv_heads], cos, sin), states[:, heads + kv_heads :]
        self.keys[number][:, :, self.written] = turned[:, heads:]
        self.values[number][:, :, self.written] = value
        end = self.written + 1
        # Heads that share keys and values ask as if they were tokens: nothing is repeated.
        attended = scaled_dot_product_attention(
            turned[:, :heads].unflatten(1, (kv_heads, -1)),
            self.keys[number][:, :, :end],
            self.values[number][:, :, :end],
            None if self.bias is None else self.bias[..., :end],
            scale=layer.scaling,
        )
        return attended.reshape(hidden.shape[0], heads * width)


def columns_of(model: LlamaForCausalLM) -> list[list[Tensor]]:
    """Per layer the matrices of queries, keys, values, output, gate, up and down, the way a row is multiplied by them.

    Those of a small model are copied the right way round, which a processor multiplies quicker.
    """
    matrices = [
        [part.weight.t() for part in (own.q_proj, own.k_proj, own.v_proj, own.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)]
        for own, mlp in ((layer.self_attn, layer.mlp) for layer in model.model.layers)
    ]  # fmt: skip
    size = sum(matrix.nbytes for layer in matrices for matrix in layer)
    return [[matrix.contiguous() for matrix in layer] for layer in matrices] if size <= MOST_COPIED else matrices


def normed(states: Tensor, norm: LlamaRMSNorm) -> Tensor:
    """What `norm` makes of rows `[B, D]`, its module's own steps in one call."""
    return rms_norm(states, norm.weight.shape, norm.weight, norm.variance_epsilon)


def rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads `[B, N, D]` turned by the angles of their positions: of each pair, a half apart, one goes to the other's side."""
    first, second = states.chunk(2, dim=-1)
    out = states * cos
    out_first, out_second = out.chunk(2, dim=-1)
    out_first.addcmul_(second, sin, value=-1)
    out_second.addcmul_(first, sin)
    return out


def with_room(states: Tensor, width: int) -> Tensor:
    """`states` `[B, KV, S, D]` at the start of a rectangle of `width`."""
    space = states.new_empty(*states.shape[:2], width, states.shape[3])
    space[:, :, : states.shape[2]] = states
    return space
