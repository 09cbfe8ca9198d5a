"""NSR: only wrong completions train. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="nsr",
    title="NSR",
    summary="Learns from wrong completions only: pushes them down and keeps the variety of the rest.",
    formula="A_i = -1 where wrong; right completions are left out;  loss = -min(ratio A, clip(ratio) A)",
    source="Zhu et al. 2025, The surprising effectiveness of negative reinforcement, arXiv:2506.01347",
    parent="psr",
    changes={"H5": "signed"},
    defaults={"positive_weight": 0.0, "aggregation": "token_mean"},
)
