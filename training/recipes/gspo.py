"""GSPO: one ratio per completion. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="gspo",
    title="GSPO",
    summary="GRPO whose importance ratio and clip are of the whole completion, by the mean over its tokens.",
    formula="s_i = exp(mean_t log ratio);  loss = -min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)",
    source="Zheng et al. 2025, Group sequence policy optimization, arXiv:2507.18071",
    parent="grpo",
    defaults={"ratio_level": "sequence_mean", "clip_low": 0.0003, "clip_high": 0.0004},
)
