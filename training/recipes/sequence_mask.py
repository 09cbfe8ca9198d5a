"""Masked importance sampling: completions on which trainer and engine disagree do not train. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="sequence_mask",
    title="Sequence mask",
    summary="GRPO that leaves out whole completions when the geometric mean of their mismatch ratios leaves a narrow "
    "band.",
    formula="keep_i = sequence_low <= exp(mean_t log(recomputed / sampler)) <= sequence_high;  "
    "w = keep_i min(recomputed / sampler, mismatch_cap);  loss = w times that of GRPO",
    source="Masked importance sampling as in several trainers; bounds of seq-mask-tis",
    parent="tis",
    changes={"H6": "sequence_mismatch"},
)
