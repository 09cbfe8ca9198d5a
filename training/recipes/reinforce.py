"""REINFORCE: VPG with a baseline that no group is needed for. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="reinforce",
    title="REINFORCE",
    summary="The plain policy gradient against the average reward of the steps before, which calms it.",
    formula="A_i = r_i - b;  loss = -A_i log policy;  then b <- decay b + (1 - decay) mean(r)",
    source="Williams 1992, Simple statistical gradient-following algorithms for connectionist reinforcement learning",
    parent="vpg",
    changes={"H5": "running_mean", "H7": "reinforce"},
    defaults={"aggregation": "rollout_sum"},
)
