"""Stratified GRPO: completions are compared with those of the same structure. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="stratified_grpo",
    title="Stratified GRPO",
    summary="Compares a completion mostly with others that took as many steps, and a little with the whole group.",
    formula="A_i = blend (r_i - mean of stratum) / (std of stratum + eps) + (1 - blend) (r_i - mean) / (std + eps);  "
    "loss as GRPO",
    source="Stratified GRPO, arXiv:2510.06214",
    parent="grpo",
    changes={"H5": "stratified"},
)
