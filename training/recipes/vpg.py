"""VPG: the policy gradient and nothing else. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="vpg",
    title="VPG",
    summary="The plain policy gradient: every completion counts by its reward, without baseline, group or clip.",
    formula="loss = -r_i log policy",
    source="Sutton et al. 1999, Policy gradient methods for reinforcement learning with function approximation",
    changes={"H5": "no_baseline", "H7": "reinforce"},
    defaults={"aggregation": "rollout_sum"},
)
