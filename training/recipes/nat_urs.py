"""NAT with uniform random selection: trains on a random share of the tokens, without bias. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="nat_urs",
    title="NAT, random tokens",
    summary="Draws the tokens that train one by one and weighs them by 1 / chance, so the gradient is right on "
    "average.",
    formula="w_t = 1 / token_share with chance token_share, else 0;  loss = w times that of GRPO, over all tokens",
    source="NAT, arXiv:2603.06619",
    parent="grpo",
    changes={"H6": "sampled_tokens"},
)
