"""TTRL: the majority is right until it is not. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="ttrl",
    title="TTRL",
    summary="GRPO without an answer key: the most frequent answer of a prompt's own completions is taken for the right one.",
    formula="label = most frequent answer of the group;  r_i = 1 if its answer is the label, else 0;  "
    "the first trained_votes completions train, the others only vote",
    source="Zuo et al. 2025, TTRL, arXiv:2504.16084",
    parent="grpo",
    changes={"H4": "majority_vote"},
    settings={"sampling": {"group_size": 64}},
)
