"""Pass@k training: the reward is that one of k completions is right. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="passk_training",
    title="Pass@k training",
    summary="Closed-form advantages of right and wrong completions when a draw of k counts as right with one right "
    "completion in it.",
    formula="P = 1 - C(wrong, k) / C(n, k);  A_right = (1 - P) / (sqrt(P (1 - P)) + eps);  "
    "A_wrong = (1 - P - C(wrong - 1, k - 1) / C(n - 1, k - 1)) / (same);  loss as GRPO",
    source="Chen et al. 2025, Pass@k training, arXiv:2508.10751",
    parent="grpo",
    changes={"H5": "pass_at_k"},
    defaults={"aggregation": "token_mean"},
)
