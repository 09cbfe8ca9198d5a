"""What a recipe is. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from training.params import Param
from training.recipes.knobs import knobs_of

# What an algorithm runs on unless it says otherwise.
GROUND: dict[str, tuple[str, ...]] = {
    "H1": ("tasks",),
    "H2": ("identity",),
    "H3": ("plain",),
    "H4": ("task",),
    "H5": ("group",),
    "H6": ("uniform",),
    "H7": ("clipped",),
    "H8": (),
    "H9": ("uniform",),
    "H10": ("none",),
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """An algorithm: one entry (or several) per hook, and where the knobs of those entries stand."""

    name: str
    title: str
    summary: str  # one sentence for a person who chooses
    formula: str
    source: str
    changes: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)  # entries per hook, unlike GROUND's
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of knobs, unlike the entry's own
    parent: str = ""  # the recipe its page compares it with; nothing is taken over from it. "": none
    # What a configuration that names the recipe and is silent about these starts from, table by table.
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """Entries of every hook."""
        named = {hook: (entry,) if isinstance(entry, str) else entry for hook, entry in self.changes.items()}
        return GROUND | named

    @property
    def params(self) -> dict[str, Param]:
        """What algorithm_params may override."""
        return knobs_of(self.parts, self.defaults)
