"""Temporal shaping: the beginning and the end of a completion weigh more. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="temporal_shaping",
    title="Temporal shaping",
    summary="GRPO whose first tokens, the plan, and last ones, the answer, carry more of the advantage than those "
    "between.",
    formula="A_t = A_i (1 + ends_strength (2 t / (T - 1) - 1)^2);  loss as GRPO",
    source="AVATAR, arXiv:2508.03100",
    parent="grpo",
    changes={"H6": "ends_first"},
)
