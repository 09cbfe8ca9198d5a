"""TailRL: raises the chance to beat every threshold of reward. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="tailrl",
    title="TailRL",
    summary="Weighs a reward by how rare it is to reach it, step by step between the rewards of the group; for 0 and "
    "1 it is MaxRL.",
    formula="w_i = sum over distinct rewards v_k <= r_i of (v_k - v_(k-1)) / share with at least v_k;  "
    "A_i = w_i - mean w;  loss as GRPO",
    source="Tail-likelihood reinforcement learning, arXiv:2609.02987",
    parent="maxrl",
    changes={"H5": "tail"},
)
