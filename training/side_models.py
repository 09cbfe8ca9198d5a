"""H10, models beside the policy (critic, hinter, judge), each with its own optimiser and checkpoint."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from training.critic import Critic
from training.policy import Policy
from training.rectangles import Tokens


class SideModel(Protocol):
    """Built at the start of a run, asked before H6, updated after the policy, saved with the run."""

    def values(self, tokens: Tokens) -> Tensor | None:
        """`[B, T + 1]` of the state before each completion token and after the last, in reward units; None: no opinion."""

    def update(self, tokens: Tokens, old_values: Tensor, returns: Tensor, loss_mask: Tensor) -> dict[str, float]:
        """Train on the step's batch, all `[B, T]`; returns metrics."""

    def state(self) -> dict[str, Any]:
        """What the checkpoint keeps."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""


class NoSideModel:
    """For recipes that need none: learns nothing and has nothing to save."""

    def __init__(self, policy: Policy, params: Mapping[str, Any], micro_batch_rollouts: int) -> None:
        pass

    def values(self, tokens: Tokens) -> Tensor | None:
        return None

    def update(self, tokens: Tokens, old_values: Tensor, returns: Tensor, loss_mask: Tensor) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"the checkpoint holds a side model ({', '.join(state)}), but hooks.H10 is none")


SIDE_MODELS: dict[str, Callable[[Policy, Mapping[str, Any], int], SideModel]] = {
    "none": NoSideModel,
    "critic": Critic,
}
