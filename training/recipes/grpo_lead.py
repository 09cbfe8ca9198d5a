"""GRPO-LEAD: short right answers and hard prompts weigh more. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="grpo_lead",
    title="GRPO-LEAD",
    summary="Right completions earn less the longer they are among the right ones, wrong ones cost 1, and hard "
    "prompts weigh more.",
    formula="r_i = exp(-length_decay z_i) if right, else -1;  A_i as GRPO, times w(p) for A > 0, w(1 - p) else;  "
    "w(p) = 0.4 + 1.1 / (1 + exp(10 (p - 0.75)))",
    source="Zhang and Zuo 2025, GRPO-LEAD, arXiv:2504.09696",
    parent="grpo",
    changes={"H4": ("task", "shorter_is_better"), "H5": "difficulty"},
    defaults={"aggregation": "token_mean"},
)
