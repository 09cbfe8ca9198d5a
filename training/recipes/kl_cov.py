"""KL-Cov: the tokens that would cost the most entropy are held where they are. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="kl_cov",
    title="KL-Cov",
    summary="Puts a penalty on the movement of the few tokens whose likelihood and advantage rise together the most; "
    "nothing is clipped.",
    formula="cov_t = (A_t - mean A)(log policy_t - mean log policy);  "
    "loss = -ratio A + selected_penalty |log ratio| on the covariance_share of highest cov_t",
    source="Cui et al. 2025, The entropy mechanism of reinforcement learning, arXiv:2505.22617",
    parent="grpo",
    changes={"H6": "covariance_top", "H7": "unclipped"},
    defaults={"covariance_share": 0.002, "aggregation": "token_mean"},
)
