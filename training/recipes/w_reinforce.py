"""W-REINFORCE: both sides, the right one weighed down. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="w_reinforce",
    title="W-REINFORCE",
    summary="Mostly pushes wrong completions down, with a little of the pull of right ones.",
    formula="A_i = positive_weight where right, -1 where wrong;  loss = -min(ratio A, clip(ratio) A)",
    source="Zhu et al. 2025, The surprising effectiveness of negative reinforcement, arXiv:2506.01347",
    parent="psr",
    changes={"H5": "signed"},
    defaults={"positive_weight": 0.1, "aggregation": "token_mean"},
)
