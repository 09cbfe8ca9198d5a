"""OPO: the baseline that varies the gradient least, if every token adds as much to it. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="opo",
    title="OPO",
    summary="Compares each completion with the mean reward of its prompt's tokens, so long completions count more in "
    "the baseline.",
    formula="b = sum_j T_j r_j / sum_j T_j;  A_i = r_i - b;  loss = -A_i log policy",
    source="Hao et al. 2025, On-policy RL with optimal reward baseline, arXiv:2505.23585",
    parent="reinforce",
    changes={"H5": "length_weighted", "H7": "reinforce"},
    defaults={"aggregation": "token_mean"},
)
