"""Off-policy sequence mask: bad completions that the policy has left behind do not train. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="offpolicy_mask",
    title="Off-policy mask",
    summary="GRPO that drops a wrong completion once the policy finds it much less likely than the sampler did.",
    formula="drop_i = A_i < 0 and mean_t(log sampler - log policy) > drift_limit;  loss as GRPO over the rest",
    source="DeepSeek-V3.2 2025, arXiv:2512.02556",
    parent="grpo",
    defaults={"drift_limit": 0.5},
)
