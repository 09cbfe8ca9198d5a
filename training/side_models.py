"""H10, models beside the policy (critic, hinter, judge), each with its own optimiser and checkpoint. Imports no torch."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class SideModel(Protocol):
    """Built at the start of a run, asked by the hooks that need it, updated after the policy, saved with the run."""

    def update(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """Train on the step's batch; returns metrics."""

    def state(self) -> dict[str, Any]:
        """What the checkpoint keeps."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""


class NoSideModel:
    """For recipes that need none: learns nothing and has nothing to save."""

    def update(self, batch: Mapping[str, Any]) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"the checkpoint holds a side model ({', '.join(state)}), but hooks.H10 is none")


SIDE_MODELS: dict[str, Callable[[], SideModel]] = {
    "none": NoSideModel,
}
