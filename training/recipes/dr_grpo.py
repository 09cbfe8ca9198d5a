"""Dr. GRPO: GRPO without its two biases. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="dr_grpo",
    title="Dr. GRPO",
    summary="GRPO without the division by the deviation and by the length, so hard prompts and long errors get no "
    "extra weight.",
    formula="A_i = r_i - mean;  loss = clipped as GRPO, summed over tokens / (rollouts x constant_tokens)",
    source="Liu et al. 2025, Understanding R1-Zero-like training, arXiv:2503.20783",
    parent="grpo",
    defaults={"divide_by_std": False, "aggregation": "token_sum_constant"},
)
