"""REINFORCE++: one baseline and one scale for the whole batch. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="reinforce_plus_plus",
    title="REINFORCE++",
    summary="Needs no group: rewards are centred and scaled over all tokens of the batch, then clipped as in PPO.",
    formula="A_i = r_i - mean(batch);  A_t = (A_i - mean over tokens) / std over tokens;  loss = -min(ratio A, "
    "clip(ratio) A)",
    source="Hu et al. 2025, REINFORCE++, arXiv:2501.03262",
    parent="reinforce",
    changes={"H5": "batch_mean", "H6": "whitened"},
    defaults={"aggregation": "token_mean"},
)
