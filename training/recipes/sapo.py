"""SAPO: a soft gate in place of the clip. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="sapo",
    title="SAPO",
    summary="Fades a token's gradient smoothly as its ratio leaves 1, faster for bad tokens.",
    formula="A_i as GRPO;  loss = -(4 / tau) sigmoid(tau (ratio - 1)) A",
    source="Gao et al. 2025, Soft adaptive policy optimization, arXiv:2511.20347",
    parent="grpo",
    changes={"H7": "soft_gate"},
)
