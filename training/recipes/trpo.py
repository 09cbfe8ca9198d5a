"""TRPO: the largest step that keeps the KL to the old policy below a bound. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="trpo",
    title="TRPO",
    summary="Follows the natural gradient as far as the KL allows and goes back when the step did not help. For small "
    "models.",
    formula="A_t as A2C;  step = H^-1 g sqrt(2 kl_limit / g H^-1 g), shortened until KL <= kl_limit and mean(ratio A) "
    "has not fallen",
    source="Schulman et al. 2015, arXiv:1502.05477",
    parent="a2c",
    changes={"H5": "critic", "H6": ("gae", "whitened"), "H7": "trust_region", "H10": "critic"},
    defaults={"aggregation": "token_mean", "kl_place": "reward", "kl_estimator": "k1"},
)
