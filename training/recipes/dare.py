"""DARE: votes weighed by how sure their completions were. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="dare",
    title="DARE",
    summary="GRPO without an answer key: an answer earns its share of the votes, in which confident completions count more.",
    formula="q(a) = n(a)/(u(a) + 1e-6), normalised over the answers with a share of at least prune_below;  "
    "r_i = q(a_i) + rarity_bonus (1 - n(a_i)/M) max(1 - u(a_i), 0)",
    source="DARE, arXiv:2601.21804 (bonus and threshold unconfirmed)",
    parent="ttrl",
    changes={"H4": "confident_vote"},
)
