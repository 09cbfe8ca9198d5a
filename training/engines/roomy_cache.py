"""Keys and values with room for the tokens to come: a new one is written, where concatenation would copy all before it."""

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer

from training.huggingface import DynamicCache


class RoomyLayer(DynamicLayer):
    """What `layer` holds, with room for `tokens` more. `keys` and `values` are the written part."""

    def __init__(self, layer: DynamicLayer, tokens: int) -> None:
        super().__init__()
        assert layer.keys is not None
        assert layer.values is not None
        self.is_initialized, self.dtype, self.device = True, layer.keys.dtype, layer.keys.device
        self._tokens = tokens
        self._hold(layer.keys, layer.values)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        start = self.keys.shape[-2]
        end = start + key_states.shape[-2]
        self._all_keys[..., start:end, :] = key_states
        self._all_values[..., start:end, :] = value_states
        self.keys, self.values = self._all_keys[..., :end, :], self._all_values[..., :end, :]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        assert self.keys is not None
        assert self.values is not None
        self._tokens = self._all_keys.shape[-2] - self.keys.shape[-2]
        self._hold(self.keys[indices], self.values[indices])

    def _hold(self, keys: Tensor, values: Tensor) -> None:
        self._all_keys, self.keys = self._with_room(keys)
        self._all_values, self.values = self._with_room(values)

    def _with_room(self, states: Tensor) -> tuple[Tensor, Tensor]:
        *shape, length, width = states.shape
        space = states.new_empty(*shape, length + self._tokens, width)
        written = space[..., :length, :]
        written.copy_(states)
        return space, written


def make_room(cache: DynamicCache, tokens: int) -> None:
    """Let the plain layers of a filled cache take that many further tokens in place; sliding windows stay as they are."""
    for number, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[number] = RoomyLayer(layer, tokens)
