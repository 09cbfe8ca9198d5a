"""SPO: one completion a prompt against what is remembered of the prompt. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="spo",
    title="SPO",
    summary="One completion of each prompt, compared with a running value of that prompt; no group is needed and none is dead.",
    formula="A_i = r_i - a/(a + b), whitened over the batch;  "
    "then f = clip(2^(-drift / drift_half_life), 0.875, 0.96), a <- f a + r, b <- f b + 1 - r;  "
    "sampling weight sqrt(v (1 - v)) / (a + b)^count_exponent + 0.05",
    source="Xu and Ding 2025, Single-stream policy optimization, arXiv:2509.13232",
    parent="reinforce_plus_plus",
    changes={"H5": "tracked", "H6": "whitened", "H7": "clipped", "H9": "tracked"},
    defaults={"clip_high": 0.28, "dual_clip": 10.0, "aggregation": "token_mean"},
    settings={"sampling": {"group_size": 1}},
)
