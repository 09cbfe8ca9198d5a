"""REINFORCE++: one baseline and one scale for the whole batch. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="reinforce_plus_plus",
    title="REINFORCE++",
    summary="Needs no group: rewards to come, KL included, are centred and scaled over all tokens of the batch, then "
    "clipped as in PPO.",
    formula="r_t = -kl_coefficient log(sampler / reference), plus the outcome at the last token;  "
    "R_t = r_t + discount R_(t+1);  A_t = (R_t - mean over tokens) / std over tokens;  "
    "loss = -min(ratio A, clip(ratio) A)",
    source="Hu et al. 2025, REINFORCE++, arXiv:2501.03262",
    parent="reinforce",
    changes={"H5": "batch_mean", "H6": ("return_to_go", "whitened")},
    defaults={
        "aggregation": "token_mean",
        "kl_coefficient": 0.01,
        "kl_estimator": "k1",
        "kl_place": "reward",
    },
)
