"""Clip-Cov: a few tokens that would cost the most entropy do not train. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="clip_cov",
    title="Clip-Cov",
    summary="Draws some of the tokens whose likelihood and advantage rise together the most, and stops their gradient.",
    formula="cov_t = (A_t - mean A)(log policy_t - mean log policy);  "
    "w_t = 0 for a share of the tokens with covariance_low < cov_t < covariance_high;  loss = w times that of GRPO",
    source="Cui et al. 2025, The entropy mechanism of reinforcement learning, arXiv:2505.22617",
    parent="grpo",
    changes={"H6": "covariance_drop"},
    defaults={"clip_low": 1.0, "clip_high": 1.0, "aggregation": "token_mean"},
)
