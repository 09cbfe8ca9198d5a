"""LoRA: a model whose layers stay as they are beside small adapters that learn."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from training.config import ConfigError, ModelConfig
from training.huggingface import PreTrainedModel

ALL_LINEAR = "all-linear"
NAME = "default"
FILE_PREFIX = "base_model.model."


def add_adapters(model: PreTrainedModel, config: ModelConfig) -> None:
    """Give `model` adapters that do nothing yet; from now on only they learn, in float32.

    No dropout: it would make the trained distribution another than the sampled one.

    Raises:
        ConfigError: no layer of that name, or one that takes no adapter.
    """
    names = [name.strip() for name in config.lora_targets.split(",") if name.strip()]
    known = sorted({name.rpartition(".")[2] for name in _linear_layers(model)})
    unknown = [name for name in names or [""] if name not in known and name != ALL_LINEAR]
    if unknown or (ALL_LINEAR in names and len(names) > 1):
        raise ConfigError(
            "model.lora_targets",
            f"must be {ALL_LINEAR}, or some of {', '.join(known)}, which this model has; got {config.lora_targets!r}",
        )
    # Takes a second, which runs without adapters need not spend.
    from peft import LoraConfig

    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]
        lora_dropout=0.0,
        target_modules=ALL_LINEAR if names == [ALL_LINEAR] else names,
        bias="none",
        task_type="CAUSAL_LM",
    )
    model.add_adapter(lora, NAME)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def _linear_layers(model: PreTrainedModel) -> list[str]:
    head = model.get_output_embeddings()
    return [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and layer is not head]


def adapter_layers(model: nn.Module) -> dict[str, Any]:
    """The layers with an adapter, by name."""
    return {name: layer for name, layer in model.named_modules() if hasattr(layer, "lora_A")}


def is_of_adapter(name: str) -> bool:
    return ".lora_" in name


def own_name(name: str) -> str:
    """PEFT's name of an adapter's weight in a file, as the model has it."""
    return name.removeprefix(FILE_PREFIX).removesuffix(".weight") + f".{NAME}.weight"


@contextlib.contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """The model as it was before it learned, during the block."""
    layers = adapter_layers(model).values()
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


@torch.no_grad()
def merged(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """`state` of a model with adapters as that of one without, what they learned added to the weights."""
    out = {name.replace(".base_layer.", "."): value for name, value in state.items() if not is_of_adapter(name)}
    for name, layer in adapter_layers(model).items():
        up, down = (state[f"{name}.lora_{side}.{NAME}.weight"].float() for side in ("B", "A"))
        weight = out[f"{name}.weight"]
        delta = layer.scaling[NAME] * (up @ down)
        out[f"{name}.weight"] = (weight.float() + (delta.T if layer.fan_in_fan_out else delta)).to(weight.dtype)
    return out
