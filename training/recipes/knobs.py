"""The knobs of every entry of every hook, each in one place; a recipe only moves their defaults. Imports no torch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from training.params import Param

AGGREGATIONS = ("rollout_mean", "token_mean", "rollout_sum", "token_sum_constant", "prompt_mean", "token_sum")
RATIO_LEVELS = ("token", "sequence_mean", "sequence_mean_token", "sequence_sum")

EPS = Param(1e-6, "Added to what divides the advantage, in reward units.", low=0, high=1)
GROUP = {
    "divide_by_std": Param(True, "Divide by the group's standard deviation; off keeps the reward's own unit."),
    "ddof": Param(1, "1 divides squared deviations by n - 1, 0 by n.", low=0, high=1),
    "eps": EPS,
}
PASS_K = Param(2, "Completions of which the best counts.", low=1, high=1024)
DISCOUNT = Param(1.0, "What a reward is worth one token earlier; 1: the same.", low=0, high=1)
MISMATCH_CAP = Param(2.0, "Highest weight for the sampler's mismatch, a ratio.", low=1, high=1e6)
COVARIANCE_SHARE = Param(2e-4, "Share of the counted tokens that are picked, at least one.", low=0, high=1)

# Every algorithm has these: how tokens become one number, and the KL to the starting model.
COMMON: dict[str, Param] = {
    "aggregation": Param("rollout_mean", "How token losses become one number (docs/algorithms).", options=AGGREGATIONS),
    "constant_tokens": Param(
        0, "Divisor of token_sum_constant, in tokens; 0 takes sampling.max_new_tokens.", low=0, high=10_000_000
    ),
    "kl_coefficient": Param(0.0, "Weight of the KL to the frozen starting model; 0: none.", low=0, high=100),
    "kl_estimator": Param(
        "k3",
        "Estimator of that KL, of x = log policy - log reference: k1 is x, k2 half of x squared, k3 exp(-x) - 1 + x.",
        options=("k1", "k2", "k3"),
    ),
    "kl_place": Param("loss", "Whether that KL is a part of the loss or of the reward.", options=("loss", "reward")),
    "kl_target": Param(
        0.0, "KL per token, in nats, towards which the weight is adapted; 0: the weight stays.", low=0, high=100
    ),
    "kl_horizon": Param(
        10_000, "Rollouts over which an adapted weight follows; more: slower.", low=1, high=1_000_000_000
    ),
}
PROFILE = {
    "profile_samples": Param(8, "Completions of the base model per prompt before training.", low=1, high=1024),
}
LABELS = {
    "label_centre": Param(1.0, "Share of the votes at which an answer counts most as the label.", low=0, high=1),
    "label_width": Param(0.5, "How fast it counts less away from there.", low=0.01, high=10),
    "least_share": Param(
        0.25, "Share of the group that an answer needs, else all completions are pushed down.", low=0, high=1
    ),
}
KNOBS: dict[tuple[str, str], dict[str, Param]] = {
    ("H1", "difficulty_window"): {
        "promote_above": Param(0.9, "Share of right completions from which the window moves up.", low=0, high=1),
    },
    ("H2", "worked_examples"): {
        "example_count": Param(2, "Solved tasks before the prompt.", low=1, high=64),
        "examples_start": Param(0.5, "Chance of examples at the first step.", low=0, high=1),
        "examples_end": Param(0.0, "Chance of examples at the last step.", low=0, high=1),
        "example_steps": Param(False, "Show the worked steps of the examples, not only their answers."),
    },
    ("H4", "step_labels"): {
        "steps_weight": Param(
            0.5, "Share of the reward that the shown steps earn; the answer earns the rest.", low=0, high=1
        ),
        "wrong_step_penalty": Param(0.0, "What a wrong step costs, in rewards of a right one.", low=0, high=100),
    },
    ("H4", "majority_vote"): {
        "trained_votes": Param(
            0, "Completions that train, the others only vote; 0: half of the group.", low=0, high=1024
        ),
    },
    ("H4", "confident_vote"): {
        "rarity_bonus": Param(0.1, "Reward of a rare and confident answer on top of its share.", low=0, high=10),
        "prune_below": Param(0.05, "Answers with a lower share of the votes are dropped.", low=0, high=1),
    },
    ("H4", "soft_labels"): LABELS,
    ("H4", "overlong_penalty"): {
        "overlong_limit_tokens": Param(
            0, "Length from which the penalty is -1; 0 takes sampling.max_new_tokens.", low=0, high=10_000_000
        ),
        "overlong_buffer_tokens": Param(
            0, "Tokens before that limit over which the penalty grows; 0 takes a fifth of it.", low=0, high=10_000_000
        ),
    },
    ("H4", "shorter_is_better"): {
        "length_decay": Param(0.05, "How fast the reward falls with the length's z-score.", low=0, high=10),
        "length_free_tokens": Param(
            0, "Groups whose three shortest completions average at most so many tokens go free.", low=0, high=10_000_000
        ),
    },
    ("H5", "group"): GROUP,
    ("H5", "max_likelihood"): {"eps": EPS},
    ("H5", "process"): {"eps": EPS},
    ("H5", "tail"): {
        "tail_lowest": Param(0.0, "Lower bound of the rewards, in reward units.", low=-1e9, high=1e9),
    },
    ("H5", "best_of_k"): {"pass_k": PASS_K},
    ("H5", "pass_at_k"): {"pass_k": PASS_K},
    ("H5", "difficulty"): GROUP,
    ("H5", "stratified"): {
        "stratum": Param("steps", "What makes two completions alike in structure.", options=("steps", "format")),
        "stratum_blend": Param(0.8, "Share of the comparison inside the stratum.", low=0, high=1),
        "lone_stratum": Param(
            "global", "What stands in for a completion alone in its stratum.", options=("global", "zero")
        ),
        "eps": EPS,
    },
    ("H5", "running_mean"): {
        "baseline_decay": Param(0.95, "Share of the old baseline that a step keeps.", low=0, high=0.9999),
    },
    ("H5", "signed"): {
        "positive_weight": Param(1.0, "Advantage of a right completion; 0 leaves them out.", low=0, high=100),
        "negative_weight": Param(1.0, "Minus the advantage of a wrong completion; 0 leaves them out.", low=0, high=100),
    },
    ("H6", "return_to_go"): {"discount": DISCOUNT},
    ("H6", "gae"): {
        "discount": DISCOUNT,
        "trace_decay": Param(
            0.95, "Lambda: 1 waits for the reward, 0 believes the critic's next value.", low=0, high=1
        ),
        "bootstrap_truncated": Param(False, "A completion cut at the limit goes on with the critic's last value."),
    },
    ("H6", "ends_first"): {
        "ends_strength": Param(1.0, "How much more the first and last tokens weigh.", low=0, high=100),
    },
    ("H6", "dead_entropy"): {
        "entropy_strength": Param(0.1, "Advantage per nat of entropy in groups without a difference.", low=0, high=10),
    },
    ("H6", "top_entropy"): {
        "entropy_share": Param(0.2, "Share of the counted tokens that train, those of highest entropy.", low=0, high=1),
    },
    ("H6", "sampled_tokens"): {
        "token_share": Param(0.5, "Chance of a token to be drawn.", low=0.001, high=1),
    },
    ("H6", "prefix_cut"): {
        "shortest_cut": Param(1, "Tokens that are always kept.", low=1, high=10_000_000),
    },
    ("H6", "covariance_drop"): {
        "covariance_low": Param(
            1.0,
            "Tokens whose covariance of log-probability and advantage is above this may be left out.",
            low=-1e6,
            high=1e6,
        ),
        "covariance_high": Param(
            5.0,
            "Tokens whose covariance of log-probability and advantage is below this may be left out.",
            low=-1e6,
            high=1e6,
        ),
        "covariance_share": COVARIANCE_SHARE,
    },
    ("H6", "covariance_top"): {"covariance_share": COVARIANCE_SHARE},
    ("H6", "truncated_mismatch"): {
        "mismatch_cap": MISMATCH_CAP,
        "mismatch_level": Param(
            "token",
            "Whose mismatch weighs: each token's, or the completion's as mean or sum.",
            options=("token", "sequence_mean", "sequence_sum"),
        ),
    },
    ("H6", "bounded_mismatch"): {
        "mismatch_low": Param(0.5, "Tokens of a lower mismatch ratio do not train.", low=0, high=1),
        "mismatch_high": Param(5.0, "Tokens of a higher mismatch ratio do not train.", low=1, high=1e6),
    },
    ("H6", "sequence_mismatch"): {
        "sequence_low": Param(0.999, "Completions of a lower mean mismatch ratio do not train.", low=0, high=1),
        "sequence_high": Param(1.002, "Completions of a higher mean mismatch ratio do not train.", low=1, high=1e6),
        "mismatch_cap": MISMATCH_CAP,
    },
    ("H6", "whitened"): {
        "whiten_ddof": Param(1, "1 divides squared deviations by n - 1, 0 by n.", low=0, high=1),
    },
    ("H5", "voted"): {
        **LABELS,
        "doubt_penalty": Param(1.0, "Minus the advantage where no answer has votes enough.", low=0, high=100),
        "eps": EPS,
    },
    ("H9", "base_profile"): {
        **PROFILE,
        "preset": Param(
            "hard",
            "Which prompts train, by the base model's pass rate.",
            options=("hard", "middle", "easy", "random", "all"),
        ),
        "keep_share": Param(0.1, "Share of the pool that trains.", low=0.0001, high=1),
        "include_unsolved": Param(False, "Prompts that the base model never solved may train as well."),
    },
    ("H9", "tracked"): {
        "profile_samples": Param(8, "Completions of the base model per prompt before training.", low=0, high=1024),
        "drift_half_life": Param(0.06, "Nats per token of drift that halve what is remembered.", low=1e-6, high=100),
        "count_exponent": Param(0.0, "How much seldom seen prompts are preferred.", low=0, high=10),
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
        "drift_limit": Param(
            0.0,
            "Nats per token by which a bad completion may have become unlikelier before it is dropped; 0: any.",
            low=0,
            high=100,
        ),
    },
    ("H7", "unclipped"): {
        "selected_penalty": Param(1.0, "Weight of |log ratio| at tokens that H6 picked, per nat.", low=0, high=100),
    },
    ("H7", "trust_region"): {
        "kl_limit": Param(0.01, "Largest mean KL to the old policy that a step may make, in nats.", low=1e-6, high=10),
        "conjugate_iterations": Param(
            10,
            "Iterations of conjugate gradient for the direction of the step; more: closer, and slower.",
            low=1,
            high=1000,
        ),
        "damping": Param(0.1, "Added to the curvature, which keeps the step short where it is flat.", low=0, high=100),
        "backtrack": Param(0.8, "Factor by which a step that fails is shortened.", low=0.01, high=0.99),
    },
    ("H8", "entropy_bonus"): {
        "entropy_coefficient": Param(0.001, "Weight of the policy's entropy in the loss.", low=0, high=10),
        "entropy_target": Param(
            0.0, "Entropy, in nats, below which the weight grows and above which it falls; 0: it stays.", low=0, high=20
        ),
        "entropy_step": Param(0.005, "Change of that weight a step.", low=0, high=1),
    },
    ("H8", "drift_square"): {
        "drift_coefficient": Param(0.001, "Weight of the squared log-ratio to the sampler.", low=0, high=100),
    },
    ("H10", "critic"): {
        "critic_learning_rate": Param(1e-3, "Learning rate of the critic.", low=1e-9, high=1),
        "critic_updates": Param(4, "Updates of the critic on each batch.", low=1, high=1000),
        "critic_max_grad_norm": Param(1.0, "The critic's gradients are scaled down to this norm.", low=1e-6, high=1e9),
        "value_clip": Param(0.2, "How far a value may move in a step, in reward units; 0: any.", low=0, high=1e6),
    },
    ("H7", "detached_clip"): {
        "ratio_low": Param(0.0, "Lowest weight of a token, a ratio; 0 leaves it open.", low=0, high=1),
        "ratio_high": Param(5.0, "Highest weight of a token, a ratio and not a distance from 1.", low=1, high=1e6),
    },
    ("H7", "soft_gate"): {
        "tau_positive": Param(
            1.0, "How fast the gradient fades as the ratio leaves 1, for A > 0.", low=1e-3, high=1000
        ),
        "tau_negative": Param(
            1.05, "How fast the gradient fades as the ratio leaves 1, for A <= 0.", low=1e-3, high=1000
        ),
    },
    ("H7", "geometric_mean"): {
        "log_clip_low": Param(0.4, "How far the log-ratio may fall for A < 0, in nats.", low=0, high=20),
        "log_clip_high": Param(0.4, "How far the log-ratio may rise for A > 0, in nats.", low=0, high=20),
    },
    ("H7", "divergence_masked"): {
        "divergence": Param(
            "tv",
            "Measure of a token's change: total variation or KL, of the token alone or with the likeliest others.",
            options=("tv", "kl", "topk_tv", "topk_kl"),
        ),
        "top_count": Param(8, "How many of the likeliest tokens topk_tv and topk_kl look at.", low=1, high=256),
        "tv_limit": Param(0.15, "Largest change of a token's probability.", low=0, high=1),
        "kl_limit": Param(0.05, "Largest KL between sampler and policy at a token, in nats.", low=0, high=20),
        "ratio_cap": Param(10.0, "Highest importance ratio that weighs a token.", low=1, high=1e6),
    },
}


def parts_with(knob: str) -> list[str]:
    """The parts that have a knob of this name, as a person reads them: `gae of H6`."""
    return [f"{entry} of {hook}" for (hook, entry), knobs in KNOBS.items() if knob in knobs]


def knobs_of(parts: Mapping[str, tuple[str, ...]], defaults: Mapping[str, Any]) -> dict[str, Param]:
    """The knobs of `parts` and those every algorithm has, with the defaults that `defaults` names moved.

    A default of a part that is not there is left out: a run may replace the part.
    """
    own: dict[str, Param] = {}
    for hook, entries in parts.items():
        for entry in entries:
            own |= KNOBS.get((hook, entry), {})
    return {name: replace(param, default=defaults.get(name, param.default)) for name, param in (own | COMMON).items()}
