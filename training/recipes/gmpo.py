"""GMPO: the geometric mean of a completion's token ratios. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="gmpo",
    title="GMPO",
    summary="Weighs a completion by the geometric mean of its clipped token ratios, which outliers move little.",
    formula="A_i as GRPO;  loss = -A_i exp(mean_t clip(log ratio)), one-sided by the sign of A",
    source="Zhao et al. 2025, Geometric-mean policy optimization, arXiv:2507.20673",
    parent="grpo",
    changes={"H7": "geometric_mean"},
)
