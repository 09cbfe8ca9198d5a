"""GRPO: a critic-free PPO whose baseline is the mean reward of a prompt's group. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="grpo",
    title="GRPO",
    summary="Compares each completion with the others of its prompt: better than the group's mean is reinforced.",
    formula="A_i = (r_i - mean) / (std + eps);  loss = -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)",
    source="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300",
    parent="ppo",
)
