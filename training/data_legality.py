"""Which parts of the data side fit together: supply, prompts, rewards without labels, pools. Imports no torch."""

from typing import TYPE_CHECKING

from training.config import ConfigError, RunConfig
from training.rewards import LABEL_FREE
from training.tasks import files, reasoning_gym

if TYPE_CHECKING:
    from training.legality import Resolved

# Selections that know their prompts, which therefore must come again.
NEED_POOL = frozenset({"base_profile", "tracked"})
DEFAULT_POOL = 256
# Rewards that leave the range from 0 to 1.
UNBOUNDED = frozenset({"overlong_penalty", "shorter_is_better", "unparsable_penalty"})


def pool_size(config: RunConfig, parts: dict[str, tuple[str, ...]]) -> int:
    """Tasks that come again; a selection that needs a pool has one without being asked."""
    return config.task.pool or (DEFAULT_POOL if parts["H9"][0] in NEED_POOL else 0)


def check_data(config: RunConfig, resolved: "Resolved") -> None:
    """Nothing, if the parts fit.

    Raises:
        ConfigError: names the key at fault, the reason and the way out.
    """
    _check_supply(config, resolved)
    _check_votes(config, resolved)
    _check_memory(config, resolved)
    if "step_labels" in resolved.parts["H4"] and config.task.name.startswith((files.PREFIX, reasoning_gym.PREFIX)):
        raise ConfigError(
            "hooks.H4",
            f"step_labels needs the steps of an oracle, which {resolved.family.name} does not show; take task",
        )


def _check_supply(config: RunConfig, resolved: "Resolved") -> None:
    if resolved.parts["H1"] != ("difficulty_window",):
        return
    if resolved.parts["H9"][0] in NEED_POOL:
        raise ConfigError(
            "hooks.H9", "a difficulty window makes new tasks all the time, so no prompt is known; take uniform"
        )
    if config.task.pool:
        raise ConfigError(
            "task.pool", f"a difficulty window makes new tasks all the time; set 0, got {config.task.pool}"
        )
    if resolved.family.at_level is None:
        raise ConfigError(
            "task.name",
            f"{resolved.recipe.title} needs a family with levels of difficulty, which {resolved.family.name} has not; "
            "take one of the built-in families, or hooks.H1 = tasks",
        )


def _check_votes(config: RunConfig, resolved: "Resolved") -> None:
    rewards, size = resolved.parts["H4"], config.sampling.group_size
    voting = [name for name in rewards if name in LABEL_FREE]
    if not voting:
        return
    if len(rewards) > 1 and (len(voting) > 1 or "task" in rewards or "step_labels" in rewards):
        other = next(name for name in rewards if name != voting[0])
        raise ConfigError("hooks.H4", f"{voting[0]} takes the place of an answer key; take {other} out")
    if size < 2:
        raise ConfigError("sampling.group_size", f"a vote needs at least 2 completions of a prompt, got {size}")
    trained = resolved.params.get("trained_votes", 0)
    if trained == 1 or trained > size:
        raise ConfigError(
            "algorithm_params.trained_votes",
            f"must be from 2 to sampling.group_size ({size}), or 0 for half of it; got {trained}",
        )


def _check_memory(config: RunConfig, resolved: "Resolved") -> None:
    (advantage,), (selection,) = resolved.parts["H5"], resolved.parts["H9"]
    if advantage == "tracked" and selection != "tracked":
        raise ConfigError("hooks.H9", f"H5's tracked needs the running values of tracked; set it, got {selection}")
    if advantage == "voted" and "soft_labels" not in resolved.parts["H4"]:
        raise ConfigError("hooks.H4", "H5's voted weighs the labels of soft_labels; name it")
    if advantage == "voted" and selection != "base_profile":
        raise ConfigError("hooks.H9", f"H5's voted needs the base model's votes; set base_profile, got {selection}")
    if selection == "tracked":
        wide = [name for name in resolved.parts["H4"] if name in UNBOUNDED]
        if wide:
            raise ConfigError("hooks.H4", f"a running value needs rewards from 0 to 1; take {wide[0]} out")
        for knob in ("rarity_bonus", "wrong_step_penalty"):
            if resolved.params.get(knob):
                raise ConfigError(
                    f"algorithm_params.{knob}",
                    "a running value needs rewards from 0 to 1, which this leaves; set it to 0",
                )
        if config.truncated == "reward_zero":
            raise ConfigError("truncated", "a running value does not see what reward_zero cancels; take keep or mask")
        if resolved.pool < config.sampling.prompts_per_step:
            raise ConfigError(
                "task.pool",
                f"a step draws {config.sampling.prompts_per_step} different prompts (sampling.prompts_per_step) "
                f"from a pool of {resolved.pool}; raise it",
            )
