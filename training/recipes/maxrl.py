"""MaxRL: divides by the group's mean reward instead of its deviation. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="maxrl",
    title="MaxRL",
    summary="Weighs a success the more, the rarer it is: the gradient of the log-chance of success.",
    formula="A_i = (r_i - mean) / (mean + eps);  loss = -min(ratio A, clip(ratio) A)",
    source="Maximum likelihood reinforcement learning, arXiv:2602.02710",
    parent="grpo",
    changes={"H5": "max_likelihood"},
    defaults={"aggregation": "token_mean"},
)
