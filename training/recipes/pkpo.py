"""PKPO: trains for the best of k completions. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="pkpo",
    title="PKPO",
    summary="A completion earns by how much it beats the best of k - 1 others, so easy prompts stop teaching and rare "
    "successes count.",
    formula="A_i = mean over choices of k - 1 others of max(r_i - best of them, 0);  loss as GRPO",
    source="Walder and Karkhanis 2025, Pass@k policy optimization, arXiv:2505.15201",
    parent="grpo",
    changes={"H5": "best_of_k"},
)
