"""What each measure is called, its unit and one sentence of what it means; and which of them a run's page draws."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    title: str
    unit: str
    meaning: str
    counted: str = ""  # of what it is a mean at each step, as queries/step_counts.py names it


MEASURES: dict[str, Measure] = {
    "reward_mean": Measure(
        "mean reward", "reward", "Mean reward of the step's scored rollouts, before any scaling.", "scored rollouts"
    ),
    "pass_rate": Measure(
        "training", "share", "Share of the step's training rollouts that were correct.", "scored rollouts"
    ),
    "eval_pass_at_1": Measure(
        "pass@1", "share", "Expected share of held-out prompts solved by one sampled completion.", "scored rollouts"
    ),
    "eval_pass_at_k": Measure(
        "pass@k",
        "share",
        "Unbiased estimate of the share of held-out prompts solved by at least one of k completions.",
        "scored rollouts",
    ),
    "eval_parsed_share": Measure(
        "parsed", "share", "Share of held-out completions in which an answer could be read.", "rollouts"
    ),
    "eval_reward_mean": Measure("mean reward", "reward", "Mean reward of the held-out completions.", "scored rollouts"),
    "eval_length_mean": Measure("mean length", "tokens", "Mean length of the held-out completions.", "rollouts"),
    "entropy": Measure(
        "entropy", "nats per token", "Mean entropy of the sampling distribution over counted tokens.", "rollouts"
    ),
    "length_mean": Measure("mean length", "tokens", "Mean length of the step's completions.", "rollouts"),
    "kl_k3": Measure(
        "from the sampler",
        "nats per token",
        "KL between the updated policy and the weights that sampled, by the k3 estimator.",
    ),
    "ref_kl_k3": Measure(
        "from the reference", "nats per token", "KL between the policy and the frozen reference, by the k3 estimator."
    ),
    "clip_fraction": Measure("clipped", "share", "Share of counted tokens whose importance ratio was clipped."),
    "clip_high_fraction": Measure("above", "share", "Share of counted tokens clipped at the upper bound."),
    "clip_low_fraction": Measure("below", "share", "Share of counted tokens clipped at the lower bound."),
    "dead_share": Measure(
        "dead groups",
        "share",
        "Share of groups in which every rollout got the same reward, so that nothing was learned.",
        "groups",
    ),
    "loss": Measure("loss", "loss", "The policy's loss, averaged over the step's updates."),
    "grad_norm": Measure("gradient norm", "norm", "Norm of the gradient before it was scaled down."),
    "sampler_policy_gap": Measure(
        "gap",
        "nats",
        "Mean absolute difference between the sampler's log-probabilities and the trainer's for the same weights.",
    ),
    "explained_variance": Measure(
        "explained variance",
        "share",
        "How much of the spread of what tokens came to earn the critic foresaw: 1 all, 0 nothing, below 0 worse than that.",
    ),
    "value_clip_fraction": Measure("values clipped", "share", "Share of the critic's values held back by their clip."),
    "mismatch_mean": Measure(
        "mean", "nats", "Mean absolute difference between recomputed and sampler log-probabilities, same weights."
    ),
    "effective_sample_share": Measure(
        "effective share", "share", "Share of the tokens that would weigh as much if all weighed the same."
    ),
    "truncated_share": Measure(
        "truncated", "share", "Share of completions that were cut at the token limit.", "rollouts"
    ),
    "seconds_sample": Measure("sample", "seconds", "Time spent sampling completions."),
    "seconds_score": Measure("score", "seconds", "Time spent scoring them."),
    "seconds_learn": Measure("learn", "seconds", "Time spent on the policy's updates."),
    "seconds_record": Measure(
        "record",
        "seconds",
        "What recording took from the step: making its batch, handing it over and waiting for the writer hold the loop up; and the"
        " writer's processor time for the batch before it.",
    ),
    "seconds_write": Measure(
        "write",
        "seconds",
        "The writer's thread beside the loop, from start to end: its processor time, and its waiting for the disk.",
    ),
    "seconds_write_cpu": Measure(
        "write, processor", "seconds", "Processor time in it; the rest is waiting, most of it for the disk."
    ),
}
PASS_AT_K_PREFIX = "eval_pass_at_"  # noqa: S105

# Metrics of a training step that the stored rollouts make up: a page splits each of their points.
MADE_OF_ROLLOUTS: dict[str, str] = {
    "reward_mean": "mean reward",
    "pass_rate": "training pass rate",
    "kl_k3": "KL from the sampler (k3)",
    "ref_kl_k3": "KL from the reference (k3)",
    "clip_fraction": "clipped tokens",
    "entropy": "entropy",
    "length_mean": "completion length",
    "truncated_share": "truncated completions",
    "grad_norm": "gradient norm, by the gradient budget",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart of the run page. `names` are the metrics it draws, the main one first."""

    key: str
    title: str
    unit: str
    names: tuple[str, ...]
    is_share: bool = False  # the axis then never leaves 0 to 1
    is_optional: bool = False  # left out for runs that have none of it


PANELS: tuple[Panel, ...] = (
    Panel("reward", "Mean reward", "reward", ("reward_mean",)),
    Panel(
        "pass",
        "Pass rate, held-out and training",
        "share",
        ("eval_pass_at_1", "eval_pass_at_k", "pass_rate"),
        is_share=True,
    ),
    Panel("dead", "Dead groups", "share of groups", ("dead_share",), is_share=True),
    Panel("entropy", "Entropy", "nats per token", ("entropy",)),
    Panel("length", "Completion length", "tokens", ("length_mean",)),
    Panel("kl", "KL divergence (k3)", "nats per token", ("kl_k3", "ref_kl_k3")),
    Panel(
        "clip",
        "Clipped tokens",
        "share of tokens",
        ("clip_fraction", "clip_high_fraction", "clip_low_fraction"),
        is_share=True,
    ),
    Panel("gap", "Sampler-policy gap", "nats", ("sampler_policy_gap",)),
    Panel("critic", "Critic, explained variance", "share", ("explained_variance",), is_optional=True),
    Panel(
        "mismatch",
        "Weights against the engine's mismatch",
        "share of tokens",
        ("effective_sample_share",),
        is_share=True,
        is_optional=True,
    ),
    Panel("truncated", "Truncated completions", "share of completions", ("truncated_share",), is_share=True),
    Panel("loss", "Loss", "loss", ("loss",)),
    Panel("gradient", "Gradient norm", "norm", ("grad_norm",)),
    Panel(
        "seconds",
        "Where the time goes",
        "seconds per step",
        ("seconds_sample", "seconds_learn", "seconds_score", "seconds_record"),
    ),
)
PANEL_METRICS: tuple[str, ...] = tuple(
    name for panel in PANELS for name in panel.names if name != "eval_pass_at_k"
)  # pass@k is stored under its k


def measure_of(name: str) -> Measure:
    """The measure of a stored metric; pass@k carries its k in the name."""
    if name in MEASURES:
        return MEASURES[name]
    if name.startswith(PASS_AT_K_PREFIX):
        return Measure(
            f"pass@{name.removeprefix(PASS_AT_K_PREFIX)}",
            MEASURES["eval_pass_at_k"].unit,
            MEASURES["eval_pass_at_k"].meaning,
            MEASURES["eval_pass_at_k"].counted,
        )
    return Measure(name.replace("_", " "), "", "")
