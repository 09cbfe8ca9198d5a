"""CISPO: the ratio is capped, the gradient is not cut. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="cispo",
    title="CISPO",
    summary="Caps the weight of a token instead of dropping it, so rare but decisive tokens keep teaching.",
    formula="A_i as GRPO;  loss = -sg(clip(ratio, ratio_low, ratio_high)) A log policy",
    source="MiniMax 2025, MiniMax-M1, arXiv:2506.13585",
    parent="grpo",
    changes={"H7": "detached_clip"},
    defaults={"aggregation": "token_mean"},
)
