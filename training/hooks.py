"""The ten hooks of a step and the entries each offers, by name. Imports no torch.

A step runs H1, H9, H2, H3, H4, H5, H6, H7 and H8 in this order; H9 is asked again once the groups are scored, and H10 is
called by whichever needs it. The functions behind the names are in the modules' own registries, which need torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from training import own
from training.config import ConfigError
from training.params import unknown


@dataclass(frozen=True, slots=True)
class Hook:
    """One place where a method plugs in."""

    title: str
    module: str
    entries: tuple[str, ...]
    many: bool = False  # a run names a list of entries, maybe empty


@dataclass(frozen=True, slots=True)
class AdvantageTraits:
    """What may stand beside an entry of H5 (`training/legality.py`)."""

    # Reward minus a baseline; a scale that is its point; as divide_by_std says; left to H6.
    unit: Literal["reward", "own", "knob", "tokens"]
    in_group: bool = False  # compares the completions of a prompt, so it needs two of them
    needs_plain: bool = False  # needs the reward as it was judged, without anything taken from it


ADVANTAGE_TRAITS: dict[str, AdvantageTraits] = {
    "group": AdvantageTraits("knob", in_group=True),
    "leave_one_out": AdvantageTraits("reward", in_group=True),
    "length_weighted": AdvantageTraits("reward", in_group=True),
    "max_likelihood": AdvantageTraits("own", in_group=True, needs_plain=True),
    "no_baseline": AdvantageTraits("reward"),
    "batch_mean": AdvantageTraits("reward"),
    "running_mean": AdvantageTraits("reward"),
    "signed": AdvantageTraits("own", needs_plain=True),
    "critic": AdvantageTraits("tokens"),
    "greedy_baseline": AdvantageTraits("reward"),
    "process": AdvantageTraits("own", in_group=True),
    "tail": AdvantageTraits("own", in_group=True, needs_plain=True),
    "best_of_k": AdvantageTraits("own", in_group=True),
    "pass_at_k": AdvantageTraits("own", in_group=True, needs_plain=True),
    "difficulty": AdvantageTraits("knob", in_group=True),
    "stratified": AdvantageTraits("own", in_group=True),
    "tracked": AdvantageTraits("reward"),
    "voted": AdvantageTraits("own", in_group=True),
}
HOOKS: dict[str, Hook] = {
    "H1": Hook("Task supply", "training.supply", ("tasks", "difficulty_window")),
    "H2": Hook("Prompt transform", "training.transforms", ("identity", "worked_examples")),
    "H3": Hook("Rollout plan", "training.plans", ("plain", "with_greedy")),
    "H4": Hook(
        "Reward and feedback",
        "training.rewards",
        (
            "task",
            "overlong_penalty",
            "shorter_is_better",
            "unparsable_penalty",
            "step_labels",
            "majority_vote",
            "confident_vote",
            "soft_labels",
        ),
        many=True,
    ),
    "H5": Hook(
        "Group to advantage",
        "training.estimators",
        tuple(ADVANTAGE_TRAITS),
    ),
    "H6": Hook(
        "Advantage to token weights",
        "training.token_weights",
        (
            "uniform",
            "return_to_go",
            "gae",
            "process",
            "whitened",
            "ends_first",
            "dead_entropy",
            "top_entropy",
            "sampled_tokens",
            "prefix_cut",
            "covariance_drop",
            "covariance_top",
            "truncated_mismatch",
            "bounded_mismatch",
            "sequence_mismatch",
        ),
        many=True,
    ),
    "H7": Hook(
        "Policy loss",
        "training.losses",
        (
            "clipped",
            "reinforce",
            "detached_clip",
            "soft_gate",
            "geometric_mean",
            "divergence_masked",
            "unclipped",
            "trust_region",
        ),
    ),
    "H8": Hook("Auxiliary loss", "training.auxiliary", ("ref_kl", "entropy_bonus", "drift_square"), many=True),
    "H9": Hook(
        "Prompt and batch selection", "training.selections", ("uniform", "mixed_only", "base_profile", "tracked")
    ),
    "H10": Hook("Side model", "training.side_models", ("none", "critic")),
}
# What an entry reads that not every step has; a run works out what any of its entries needs.
NEEDS: dict[tuple[str, str], str] = {
    ("H6", "gae"): "values",
    ("H6", "truncated_mismatch"): "recomputed_logprobs",
    ("H6", "bounded_mismatch"): "recomputed_logprobs",
    ("H6", "sequence_mismatch"): "recomputed_logprobs",
    ("H8", "ref_kl"): "ref_logprobs",
    ("H8", "entropy_bonus"): "policy_entropy",
}


def needs(parts: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Columns that the entries read and that cost a pass of their own."""
    named = ((hook, entry) for hook, entries in parts.items() for entry in entries)
    return frozenset(NEEDS[part] for part in named if part in NEEDS)


def merge_parts(
    recipe_parts: Mapping[str, tuple[str, ...]], overrides: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    """Entries per hook: the recipe's, replaced where a run names its own.

    Raises:
        ConfigError: an unknown hook or entry, or the wrong number of them; its key is hooks.HOOK.
    """
    parts = dict(recipe_parts)
    for code, named in overrides.items():
        if code not in HOOKS:
            raise ConfigError(f"hooks.{code}", unknown(code, HOOKS, "hook"))
        parts[code] = _entries(code, named)
    return parts


def _entries(code: str, named: Any) -> tuple[str, ...]:
    hook, key = HOOKS[code], f"hooks.{code}"
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(key, f"must be a name or a list of names, got {named!r}")
    for name in names:
        if name not in hook.entries and not (code == "H4" and own.is_own(name)):
            hint = "; task.name chooses what is generated" if code == "H1" else ""
            raise ConfigError(key, unknown(name, hook.entries, f"entry of {code} ({hook.title.lower()})") + hint)
    if len(set(names)) < len(names):
        raise ConfigError(key, "names an entry twice")
    if not hook.many and len(names) != 1:
        raise ConfigError(key, f"takes exactly one entry, got {len(names)}")
    return tuple(names)
