"""GSPO-token: GSPO's ratio with a gradient of its own for each token. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="gspo_token",
    title="GSPO-token",
    summary="GSPO written per token, so that tokens of one completion may have different advantages.",
    formula="s_t = sg(s_i) policy / sg(policy);  loss = -min(s_t A, clip(s_t, 1 - clip_low, 1 + clip_high) A)",
    source="Zheng et al. 2025, Group sequence policy optimization, arXiv:2507.18071",
    parent="gspo",
    defaults={"ratio_level": "sequence_mean_token", "clip_low": 0.0003, "clip_high": 0.0004},
)
