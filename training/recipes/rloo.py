"""RLOO: a group's other completions are the baseline, and the completion is one action. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="rloo",
    title="RLOO",
    summary="Compares each completion with the mean of the others of its prompt, an unbiased baseline, and clips "
    "whole completions.",
    formula="r_i = outcome - kl_coefficient sum_t log(sampler / reference);  A_i = r_i - mean of the other r_j;  "
    "S_i = exp(sum_t log ratio);  loss = -min(S_i A_i, clip(S_i) A_i)",
    source="Ahmadian et al. 2024, Back to Basics, arXiv:2402.14740",
    parent="reinforce",
    changes={"H5": "leave_one_out"},
    defaults={
        "ratio_level": "sequence_sum",
        "kl_coefficient": 0.05,
        "kl_estimator": "k1",
        "kl_place": "reward",
    },
)
