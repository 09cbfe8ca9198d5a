"""DPPO: a trust region of probabilities, not of ratios. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="dppo",
    title="DPPO",
    summary="Drops a token when its probability changed too much, not its ratio: rare tokens may move, common ones "
    "may not run away.",
    formula="A_i = r_i - mean;  keep = not (D(sampler, policy) > limit and moved along A);  loss = -keep "
    "sg(min(ratio, ratio_cap)) A log policy",
    source="Qi et al. 2026, Rethinking the trust region in LLM reinforcement learning, arXiv:2602.04879",
    parent="dr_grpo",
    changes={"H7": "divergence_masked"},
    defaults={"divide_by_std": False, "aggregation": "token_sum_constant"},
)
