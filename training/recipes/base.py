"""What a recipe is. Imports no torch."""

from dataclasses import dataclass

from training.params import Param


@dataclass(frozen=True, slots=True)
class Recipe:
    """An algorithm: one entry (or several) per hook, and the knobs of those entries."""

    name: str
    title: str
    summary: str  # one sentence for a person who chooses
    formula: str
    source: str
    parts: dict[str, tuple[str, ...]]  # entries per hook
    params: dict[str, Param]  # what algorithm_params may override
    parent: str = ""  # the recipe this one changes; "": none
    is_group_relative: bool = True  # refuses groups of one
