"""RL-ZVP: groups without a difference teach through entropy. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="rl_zvp",
    title="RL-ZVP",
    summary="GRPO that also learns from groups that are all right or all wrong: uncertain tokens are praised most and "
    "blamed least.",
    formula="all right: A_t = entropy_strength H_t;  all wrong: A_t = -entropy_strength (max H - H_t);  else as GRPO",
    source="No prompt left behind: RL-ZVP, arXiv:2509.21880",
    parent="grpo",
    changes={"H6": "dead_entropy"},
    defaults={"aggregation": "token_mean"},
)
