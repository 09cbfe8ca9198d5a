"""The knobs of every entry of every hook, each in one place; a recipe only moves their defaults. Imports no torch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from training.params import Param

AGGREGATIONS = ("rollout_mean", "token_mean", "rollout_sum", "token_sum_constant", "prompt_mean", "token_sum")
RATIO_LEVELS = ("token", "sequence_mean", "sequence_mean_token", "sequence_sum")

EPS = Param(1e-6, "Added to what divides the advantage, in reward units.", low=0, high=1)

# Every algorithm has these: how tokens become one number, and the KL to the starting model.
COMMON: dict[str, Param] = {
    "aggregation": Param("rollout_mean", "How token losses become one number.", options=AGGREGATIONS),
    "constant_tokens": Param(
        0, "Divisor of token_sum_constant, in tokens; 0 takes sampling.max_new_tokens.", low=0, high=10_000_000
    ),
    "kl_coefficient": Param(
        0.0, "Weight of the KL to the frozen starting model in the loss; 0: none.", low=0, high=100
    ),
    "kl_estimator": Param("k3", "Estimator of that KL.", options=("k1", "k2", "k3")),
}
KNOBS: dict[tuple[str, str], dict[str, Param]] = {
    ("H4", "overlong_penalty"): {
        "overlong_limit_tokens": Param(
            0, "Length from which the penalty is -1; 0 takes sampling.max_new_tokens.", low=0, high=10_000_000
        ),
        "overlong_buffer_tokens": Param(
            0, "Tokens before that limit over which the penalty grows; 0 takes a fifth of it.", low=0, high=10_000_000
        ),
    },
    ("H5", "group"): {
        "divide_by_std": Param(True, "Divide by the group's standard deviation; off keeps the reward's own unit."),
        "ddof": Param(1, "1 divides squared deviations by n - 1, 0 by n.", low=0, high=1),
        "eps": EPS,
    },
    ("H5", "max_likelihood"): {"eps": EPS},
    ("H5", "running_mean"): {
        "baseline_decay": Param(0.95, "Share of the old baseline that a step keeps.", low=0, high=0.9999),
    },
    ("H5", "signed"): {
        "positive_weight": Param(1.0, "Advantage of a right completion; 0 leaves them out.", low=0, high=100),
        "negative_weight": Param(1.0, "Minus the advantage of a wrong completion; 0 leaves them out.", low=0, high=100),
    },
    ("H6", "whitened"): {
        "whiten_ddof": Param(1, "1 divides squared deviations by n - 1, 0 by n.", low=0, high=1),
    },
    ("H9", "mixed_only"): {
        "extra_rounds": Param(10, "Rounds of further prompts for groups without a difference.", low=0, high=1000),
    },
    ("H7", "clipped"): {
        "clip_low": Param(0.2, "How far below 1 the importance ratio still has a gradient.", low=0, high=1),
        "clip_high": Param(0.2, "How far above 1 the importance ratio still has a gradient.", low=0, high=100),
        "ratio_level": Param(
            "token", "Whose ratio it is: each token's, or the completion's as mean or sum.", options=RATIO_LEVELS
        ),
        "dual_clip": Param(0.0, "Ratio from which a bad token loses its gradient, above 1; 0: none.", low=0, high=1e6),
    },
    ("H7", "detached_clip"): {
        "ratio_low": Param(0.0, "Lowest weight of a token, a ratio; 0 leaves it open.", low=0, high=1),
        "ratio_high": Param(5.0, "Highest weight of a token, a ratio and not a distance from 1.", low=1, high=1e6),
    },
    ("H7", "soft_gate"): {
        "tau_positive": Param(1.0, "How fast the gradient fades for A > 0.", low=1e-3, high=1000),
        "tau_negative": Param(1.05, "How fast the gradient fades for A <= 0.", low=1e-3, high=1000),
    },
    ("H7", "geometric_mean"): {
        "log_clip_low": Param(0.4, "How far the log-ratio may fall for A < 0, in nats.", low=0, high=20),
        "log_clip_high": Param(0.4, "How far the log-ratio may rise for A > 0, in nats.", low=0, high=20),
    },
    ("H7", "divergence_masked"): {
        "divergence": Param("tv", "Measure of a token's change: total variation or KL.", options=("tv", "kl")),
        "tv_limit": Param(0.15, "Largest change of a token's probability.", low=0, high=1),
        "kl_limit": Param(0.05, "Largest KL between sampler and policy at a token, in nats.", low=0, high=20),
        "ratio_cap": Param(10.0, "Highest importance ratio that weighs a token.", low=1, high=1e6),
    },
}


def knobs_of(parts: Mapping[str, tuple[str, ...]], defaults: Mapping[str, Any]) -> dict[str, Param]:
    """The knobs of `parts` and those every algorithm has, with the defaults that `defaults` names moved.

    A default of a part that is not there is left out: a run may replace the part.
    """
    own: dict[str, Param] = {}
    for hook, entries in parts.items():
        for entry in entries:
            own |= KNOBS.get((hook, entry), {})
    return {name: replace(param, default=defaults.get(name, param.default)) for name, param in (own | COMMON).items()}
