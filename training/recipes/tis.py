"""TIS: corrects for a sampling engine that rounds differently from the trainer. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="tis",
    title="TIS",
    summary="GRPO whose tokens are weighed by how much likelier the trainer finds them than the engine that sampled, "
    "up to a cap.",
    formula="w = min(recomputed / sampler, mismatch_cap), detached;  "
    "loss = w times that of GRPO, ratio = policy / recomputed",
    source="Yao et al. 2025, Your efficient RL framework secretly brings you off-policy RL training",
    parent="grpo",
    changes={"H6": "truncated_mismatch"},
)
