"""DAPO: GRPO with four switches for long reasoning. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="dapo",
    title="DAPO",
    summary="GRPO with room upwards, all tokens equal, a penalty on overlong answers and no group without a "
    "difference.",
    formula="A_i as GRPO, of groups with a difference only;  "
    "r_i = outcome - min(1, max(0, (length - limit + buffer) / buffer));  "
    "loss = -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)",
    source="Yu et al. 2025, DAPO, arXiv:2503.14476",
    parent="grpo",
    changes={"H4": ("task", "overlong_penalty"), "H9": "mixed_only"},
    defaults={"clip_high": 0.28, "aggregation": "token_mean"},
)
