"""Solved examples before the prompt, fewer and fewer of them. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="cbrl",
    title="Curriculum of examples",
    summary="GRPO whose prompts now and then begin with solved tasks of the same kind, less and less often over the run.",
    formula="chance at step t of T = examples_start + (t - 1)/(T - 1) (examples_end - examples_start);  "
    "then example_count solved tasks stand before the prompt, the same for the whole group",
    source="CBRL, arXiv:2603.18953",
    parent="grpo",
    changes={"H2": "worked_examples"},
)
