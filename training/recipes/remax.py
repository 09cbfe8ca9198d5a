"""ReMax: the baseline is what the policy does without drawing. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="remax",
    title="ReMax",
    summary="Compares each completion with the reward of the greedy one of its prompt, which is sampled beside them "
    "and does not train.",
    formula="A_i = r_i - r(greedy);  loss = -A_i log policy",
    source="Li et al. 2024, ReMax, arXiv:2310.10505",
    parent="reinforce",
    changes={"H3": "with_greedy", "H5": "greedy_baseline", "H7": "reinforce"},
    defaults={"aggregation": "token_mean"},
)
