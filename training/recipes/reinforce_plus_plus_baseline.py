"""REINFORCE++ with the group's mean as the baseline. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="reinforce_plus_plus_baseline",
    title="REINFORCE++-baseline",
    summary="The group's mean is the baseline, the whole batch's tokens give the scale.",
    formula="A_i = r_i - mean of the group;  A_t = (A_i - mean over tokens) / std over tokens;  loss = -min(ratio A, "
    "clip(ratio) A)",
    source="Hu et al. 2025, REINFORCE++, arXiv:2501.03262",
    parent="reinforce_plus_plus",
    changes={"H6": "whitened"},
    defaults={"divide_by_std": False, "aggregation": "token_mean"},
)
