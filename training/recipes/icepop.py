"""IcePop: tokens on which trainer and engine disagree do not train. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="icepop",
    title="IcePop",
    summary="GRPO that leaves out tokens whose probability differs too much between trainer and sampling engine.",
    formula="w = recomputed / sampler inside [mismatch_low, mismatch_high], else 0;  loss = w times that of GRPO",
    source="Ling team 2025, Every step evolves, arXiv:2510.18855",
    parent="tis",
    changes={"H6": "bounded_mismatch"},
)
