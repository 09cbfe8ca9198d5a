"""GRPO with process supervision: steps are rewarded, not only answers. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="grpo_process",
    title="GRPO, process rewards",
    summary="Rewards of the single steps are compared over the whole group; a token earns those of all steps that end "
    "at or after it.",
    formula="s_ij = (reward of step j - mean of all steps) / (std of all steps + eps);  "
    "A_t = sum of s_ij of steps that end at or after t;  loss as GRPO",
    source="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, sec. 4.1.3",
    parent="grpo",
    changes={"H4": "step_labels", "H5": "process", "H6": "process"},
)
