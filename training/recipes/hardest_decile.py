"""The hardest prompts that the base model can solve. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="hardest_decile",
    title="Hardest decile",
    summary="GRPO on the tenth of a pool of prompts that the base model solved most seldom, though at least once.",
    formula="p(x) = share right of profile_samples completions of the base model;  "
    "train on the keep_share of prompts with the lowest p(x) > 0",
    source='"Hard examples are all you need", arXiv:2508.14094 (our reading)',
    parent="grpo",
    changes={"H9": "base_profile"},
)
