"""GRPO: a critic-free PPO whose baseline is the mean reward of a prompt's group. Imports no torch."""

from training.params import Param
from training.recipes.base import Recipe

AGGREGATIONS = ("rollout_mean", "token_mean", "rollout_sum", "token_sum_constant", "prompt_mean", "token_sum")

RECIPE = Recipe(
    name="grpo",
    title="GRPO",
    summary="Compares each completion with the others of its prompt: better than the group's mean is reinforced.",
    formula="A_i = (r_i - mean) / (std + eps);  loss = -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)",
    source="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300",
    parts={
        "H2": ("identity",),
        "H3": ("plain",),
        "H4": ("task",),
        "H5": ("group",),
        "H6": ("uniform",),
        "H7": ("clipped",),
        "H8": (),
        "H9": ("uniform",),
        "H10": ("none",),
    },
    params={
        "divide_by_std": Param(True, "Divide by the group's standard deviation; off keeps the reward's own unit."),
        "ddof": Param(1, "1 divides squared deviations by n - 1, 0 by n.", low=0, high=1),
        "eps": Param(1e-6, "Added to the standard deviation, in reward units.", low=0, high=1),
        "clip_low": Param(0.2, "How far below 1 the importance ratio still has a gradient.", low=0, high=1),
        "clip_high": Param(0.2, "How far above 1 the importance ratio still has a gradient.", low=0, high=100),
        "aggregation": Param("rollout_mean", "How token losses become one number.", options=AGGREGATIONS),
        "constant_tokens": Param(
            0, "Divisor of token_sum_constant, in tokens; 0 takes sampling.max_new_tokens.", low=0, high=10_000_000
        ),
        "kl_coefficient": Param(
            0.0, "Weight of the KL to the frozen starting model in the loss; 0: none.", low=0, high=100
        ),
        "kl_estimator": Param("k3", "Estimator of that KL.", options=("k1", "k2", "k3")),
    },
)
