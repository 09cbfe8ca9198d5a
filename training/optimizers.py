"""What moves the weights: optimisers with float32 copies of smaller weights, the learning rate's course, and averages."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from training.config import OptimizerConfig
from training.distributed import laid_out_like

# Muon's steps as large as Adam's, so that one learning rate serves both (Liu et al. 2025, arXiv:2502.16982).
MUON_ADJUSTMENT = "match_rms_adamw"


class Optimizer:
    """The weights that learn under one or two torch optimisers.

    Weights of less than 32 bits have a float32 copy that learns in their place: alone they would round small steps away.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.masters = [
            parameter if parameter.dtype.itemsize >= 4 else nn.Parameter(parameter.detach().float())
            for parameter in self.parameters
        ]
        self.parts = _make_parts(model, dict(zip(self.parameters, self.masters, strict=True)), config)

    def zero_grad(self) -> None:
        for parameter in (*self.parameters, *self.masters):
            parameter.grad = None

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        copied = [pair for pair in zip(self.parameters, self.masters, strict=True) if pair[0] is not pair[1]]
        for parameter, master in copied:
            master.grad = None if parameter.grad is None else parameter.grad.float()
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = learning_rate
            part.step()
        for parameter, master in copied:
            parameter.copy_(master)
            master.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and texts in lists and dicts; the float32 copies too, since the weights are only near them."""
        copies = [
            None if master is parameter else master.detach()
            for parameter, master in zip(self.parameters, self.masters, strict=True)
        ]
        return {"parts": [part.state_dict() for part in self.parts], "masters": copies}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError when `state` is of other weights or of another optimiser."""
        if len(state["parts"]) != len(self.parts) or len(state["masters"]) != len(self.masters):
            raise ValueError("its optimiser is another, or learned other weights")
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(_laid_out(saved, part))
        for master, copy in zip(self.masters, state["masters"], strict=True):
            if copy is not None:
                master.copy_(laid_out_like(copy, master))


def _laid_out(saved: Mapping[str, Any], part: torch.optim.Optimizer) -> dict[str, Any]:
    """A part's saved state with its moments in shards where its weights are."""
    weights = [weight for group in part.param_groups for weight in group["params"]]
    if len(weights) != sum(len(group["params"]) for group in saved["param_groups"]):
        raise ValueError("the optimiser learned other weights")
    moments = {
        number: {
            name: laid_out_like(value, weights[number])
            if isinstance(value, Tensor) and value.shape == weights[number].shape
            else value
            for name, value in state.items()
        }
        for number, state in saved["state"].items()
    }
    return {**saved, "state": moments}


def _make_parts(
    model: nn.Module, masters: Mapping[nn.Parameter, nn.Parameter], config: OptimizerConfig
) -> list[torch.optim.Optimizer]:
    learning_rate, decay = config.learning_rate, config.weight_decay
    if config.name == "sgd":
        return [torch.optim.SGD(masters.values(), lr=learning_rate, momentum=config.beta1, weight_decay=decay)]
    in_layers = _matrices(model) if config.name == "muon" else set()
    rest = [master for parameter, master in masters.items() if parameter not in in_layers]
    parts: list[torch.optim.Optimizer] = []
    if in_layers:
        matrices = [master for parameter, master in masters.items() if parameter in in_layers]
        parts.append(
            torch.optim.Muon(
                matrices,
                lr=learning_rate,
                momentum=config.beta1,
                weight_decay=decay,
                adjust_lr_fn=MUON_ADJUSTMENT,
            )
        )
    if rest:
        betas = (config.beta1, config.beta2)
        parts.append(
            torch.optim.AdamW(rest, lr=learning_rate, betas=betas, eps=config.eps, weight_decay=decay, fused=True)
        )
    return parts


def _matrices(model: nn.Module) -> set[nn.Parameter]:
    """Matrices that learn, without those of embeddings and the output, whose rows are tokens."""
    tokens = {
        parameter
        for layer in (model.get_input_embeddings(), model.get_output_embeddings())  # type: ignore[operator]
        if layer is not None
        for parameter in layer.parameters()
    }
    return {p for p in model.parameters() if p.requires_grad and p.ndim == 2 and p not in tokens}


def learning_rate_at(config: OptimizerConfig, step: int, steps: int) -> float:
    """Linear warm-up over the first steps, then as the schedule says; the floor is reached after the last of `steps`."""
    peak = config.learning_rate
    if step < config.warmup_steps:
        return peak * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return peak
    gone = min(1.0, (step - config.warmup_steps) / max(steps - config.warmup_steps, 1))
    left = 1 - gone if config.schedule == "linear" else (1 + math.cos(math.pi * gone)) / 2
    return peak * (config.floor_fraction + (1 - config.floor_fraction) * left)


class WeightAverage:
    """A moving average of the weights that learn, in float32: `average = decay average + (1 - decay) weights`."""

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float) -> None:
        self._parameters = parameters
        self._decay = decay
        self.averages = [parameter.detach().float().clone() for parameter in parameters]

    @torch.no_grad()
    def update(self) -> None:
        for average, parameter in zip(self.averages, self._parameters, strict=True):
            average.lerp_(parameter.float(), 1 - self._decay)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the average as its weights during the block."""
        trained = [parameter.detach().clone() for parameter in self._parameters]
        self._put(self.averages)
        try:
            yield
        finally:
            self._put(trained)

    @torch.no_grad()
    def _put(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.copy_(value)

    def state_dict(self) -> list[Tensor]:
        return self.averages

    def load_state_dict(self, state: Sequence[Tensor]) -> None:
        for average, saved in zip(self.averages, state, strict=True):
            average.copy_(laid_out_like(saved, average))
