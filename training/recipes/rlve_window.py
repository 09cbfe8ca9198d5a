"""RLVE: tasks as hard as the policy can just about take. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="rlve_window",
    title="RLVE difficulty window",
    summary="GRPO on tasks from a window of difficulty levels that moves up when its hardest level is mastered.",
    formula="level ~ uniform{low, ..., high}, from 0 and 0;  "
    "after 8 groups at level high with promote_above of the completions right: high <- high + 1, low <- max(low, high - 3);  "
    "r = -1 where no answer can be read",
    source="Zeng et al. 2025, RLVE, arXiv:2511.07317",
    parent="grpo",
    changes={"H1": "difficulty_window", "H4": ("task", "unparsable_penalty")},
)
