"""80/20: only the tokens where the policy was undecided train. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="forking_tokens",
    title="Forking tokens",
    summary="DAPO on the fifth of the tokens with the highest entropy, where a completion forks.",
    formula="w_t = 1 for the entropy_share of tokens with the highest entropy, else 0;  "
    "loss = w times that of DAPO, over all tokens",
    source="Wang et al. 2025, Beyond the 80/20 rule, arXiv:2506.01939",
    parent="dapo",
    changes={"H4": ("task", "overlong_penalty"), "H6": "top_entropy", "H9": "mixed_only"},
    defaults={"clip_high": 0.28, "aggregation": "token_mean"},
)
