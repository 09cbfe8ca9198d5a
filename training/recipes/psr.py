"""PSR: only right completions train. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="psr",
    title="PSR",
    summary="Learns from right completions only: makes them likelier, at the price of variety.",
    formula="A_i = 1 where right; wrong completions are left out;  loss = -min(ratio A, clip(ratio) A)",
    source="Zhu et al. 2025, The surprising effectiveness of negative reinforcement, arXiv:2506.01347",
    parent="grpo",
    changes={"H5": "signed"},
    defaults={"negative_weight": 0.0, "aggregation": "token_mean"},
)
