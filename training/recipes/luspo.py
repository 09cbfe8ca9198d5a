"""LUSPO: GSPO in which a token of a long completion counts as much as one of a short. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="luspo",
    title="LUSPO",
    summary="GSPO with each completion's loss times its length, so that a token's push no longer shrinks with the length.",
    formula="s_i = exp(mean_t log ratio);  "
    "loss = mean_i T_i times -min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)",
    source="Length-unbiased sequence policy optimization, arXiv:2602.05261",
    parent="gspo",
    defaults={
        "ratio_level": "sequence_mean_token",
        "clip_low": 0.002,
        "clip_high": 0.0025,
        "aggregation": "rollout_sum",
    },
)
