"""A2C: REINFORCE with a critic. Imports no torch."""

from training.recipes.base import Recipe

RECIPE = Recipe(
    name="a2c",
    title="A2C",
    summary="A second model learns what reward each prefix leads to; a token is judged by how much it changed that.",
    formula="d_t = r_t + discount V(t+1) - V(t);  A_t = d_t + discount lambda A(t+1), whitened over tokens;  "
    "loss = -A_t log policy",
    source="Mnih et al. 2016, arXiv:1602.01783; Schulman et al. 2016, GAE, arXiv:1506.02438",
    parent="reinforce",
    changes={"H5": "critic", "H6": ("gae", "whitened"), "H7": "reinforce", "H10": "critic"},
    defaults={"aggregation": "token_mean", "kl_place": "reward", "kl_estimator": "k1"},
)
