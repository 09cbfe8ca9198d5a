"""NAT with a random prefix cut: trains on the beginning of each completion only, without bias. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="nat_rpc",
    title="NAT, random cut",
    summary="Cuts each completion at a random token and weighs what is left by 1 / chance, so the learner runs over "
    "fewer tokens.",
    formula="cut uniform from shortest_cut to T;  w_t = 1 / P(cut >= t) up to the cut, else 0;  "
    "loss = w times that of GRPO, over all tokens",
    source="NAT, arXiv:2603.06619; the distribution of the cut is ours",
    parent="nat_urs",
    changes={"H6": "prefix_cut"},
)
