"""PPO: A2C whose step is held near the policy that sampled. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="ppo",
    title="PPO",
    summary="Advantages from a critic and a clipped importance ratio, so that a batch may be used for several updates.",
    formula="A_t as A2C;  loss = -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A);  "
    "critic: max((V - R)^2, (clip(V) - R)^2) / 2",
    source="Schulman et al. 2017, arXiv:1707.06347",
    parent="a2c",
    changes={"H5": "critic", "H6": ("gae", "whitened"), "H10": "critic"},
    defaults={"aggregation": "token_mean", "kl_place": "reward", "kl_estimator": "k1"},
)
