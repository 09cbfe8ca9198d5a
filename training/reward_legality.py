"""Which rewards may stand beside what learns from them: refused before anything is loaded. Imports no torch."""

from typing import TYPE_CHECKING

from training import own
from training.config import ConfigError, RunConfig
from training.hooks import ADVANTAGE_TRAITS
from training.rewards import LABEL_FREE
from training.tasks import reasoning_gym

if TYPE_CHECKING:
    from training.legality import Resolved

# Entries of H4 that judge every completion; the others add something to a judgement.
JUDGES = frozenset({"task", "step_labels"}) | LABEL_FREE
# Entries that take something from a reward, which may come to less than 0.
TAKING = ("overlong_penalty", "shorter_is_better", "unparsable_penalty")
# Entries whose rewards lie between 0 and 1 as well.
GRADED = ("step_labels", "confident_vote", "soft_labels")
# Entries of H5 that learn from something else than the reward.
LEARNS_FROM = {"process": "the rewards of steps", "voted": "the answers", "pass_at_k": "what the checker says"}


def check_rewards(config: RunConfig, resolved: "Resolved") -> None:
    """Nothing, if what H4 gives is what H5 and H6 take.

    Raises:
        ConfigError: names the key at fault, the reason and the way out.
    """
    _check_judges(resolved)
    _check_values(config, resolved)
    _check_unread(config, resolved)
    _check_answer_key(config, resolved)
    _check_truncated(config, resolved)


def _check_judges(resolved: "Resolved") -> None:
    rewards = resolved.parts["H4"]
    if not JUDGES.intersection(rewards) and not any(map(own.is_own, rewards)):
        named = f"{' and '.join(rewards)} alone" if rewards else "an empty list"
        raise ConfigError("hooks.H4", f"{named} scores no completion; name task as well")
    if "shorter_is_better" in rewards and "task" not in rewards:
        raise ConfigError("hooks.H4", "shorter_is_better changes the task's reward; name task as well")
    if "task" in rewards and "step_labels" in rewards:
        raise ConfigError("hooks.H4", "step_labels judges the answer too, which would count twice; take task out")


def _check_values(config: RunConfig, resolved: "Resolved") -> None:
    rewards, params, title = resolved.parts["H4"], resolved.params, resolved.recipe.title
    (advantage,) = resolved.parts["H5"]
    if ADVANTAGE_TRAITS[advantage].needs_plain:
        if taking := [entry for entry in rewards if entry in TAKING]:
            raise ConfigError("hooks.H4", f"{title} needs the reward as it was judged; take {taking[0]} out")
        if params.get("wrong_step_penalty"):
            raise ConfigError("algorithm_params.wrong_step_penalty", f"{title} takes no negative rewards; set it to 0")
    if advantage == "signed":
        if graded := [entry for entry in rewards if entry in GRADED]:
            raise ConfigError("hooks.H4", f"{title} needs rewards of 0 and 1; take {graded[0]} out")
        if "task" in rewards and config.task.name.startswith(reasoning_gym.PREFIX):
            raise ConfigError(
                "task.name",
                f"{title} needs rewards of 0 and 1, and {resolved.family.name} scores in between; take another",
            )
    if params.get("tail_lowest", 0) > 0 and not any(map(own.is_own, rewards)):
        raise ConfigError(
            "algorithm_params.tail_lowest", "a wrong completion earns 0, which lies below it; set it to 0"
        )
    limit, buffer = params.get("overlong_limit_tokens", 0), params.get("overlong_buffer_tokens", 0)
    if buffer > limit:
        raise ConfigError(
            "algorithm_params.overlong_buffer_tokens", f"must be at most the limit ({limit}), got {buffer}"
        )


def _check_unread(config: RunConfig, resolved: "Resolved") -> None:
    (advantage,) = resolved.parts["H5"]
    if advantage not in LEARNS_FROM:
        return
    why = f"{advantage} of H5 learns from {LEARNS_FROM[advantage]}"
    if taking := [entry for entry in resolved.parts["H4"] if entry in TAKING]:
        raise ConfigError("hooks.H4", f"{why}, so {taking[0]} would count for nothing; take it out")
    if config.truncated == "reward_zero":
        raise ConfigError("truncated", f"{why}, so reward_zero would change nothing; take keep or mask")
    if resolved.params["kl_coefficient"] and resolved.params["kl_place"] == "reward":
        raise ConfigError(
            "algorithm_params.kl_place", f"{why}, so a KL in the reward would count for nothing; set it to loss"
        )


def _check_answer_key(config: RunConfig, resolved: "Resolved") -> None:
    (advantage,), chain = resolved.parts["H5"], resolved.parts["H6"]
    voting = [entry for entry in resolved.parts["H4"] if entry in LABEL_FREE]
    knowing = [entry for entry in (advantage, *chain) if entry in ("pass_at_k", "difficulty", "dead_entropy")]
    if voting and knowing:
        raise ConfigError(
            "hooks.H4",
            f"{knowing[0]} looks into the answer key, which {voting[0]} stands for; take {voting[0]} out, or {knowing[0]}",
        )
    if voting and resolved.parts["H3"] == ("with_greedy",):
        raise ConfigError("hooks.H4", f"the greedy completion would vote in {voting[0]}; take it out")
    unshuffled = [entry for entry in (advantage, *chain) if entry in ("pass_at_k", "voted", "dead_entropy")]
    if config.shuffle_rewards and unshuffled:
        raise ConfigError(
            "shuffle_rewards",
            f"{unshuffled[0]} learns from verdicts or answers, which are not shuffled; set it to false",
        )


def _check_truncated(config: RunConfig, resolved: "Resolved") -> None:
    rewards = resolved.parts["H4"]
    if config.truncated != "reward_zero":
        return
    if "overlong_penalty" in rewards:
        raise ConfigError(
            "truncated", "reward_zero would cancel the penalty of the completions it is for; take keep or mask"
        )
    if "shorter_is_better" in rewards or "unparsable_penalty" in rewards:
        raise ConfigError(
            "truncated", "reward_zero would lift the -1 of a cut completion to 0; take keep or mask with this reward"
        )
    if resolved.params.get("wrong_step_penalty"):
        raise ConfigError("truncated", "reward_zero would lift the penalty of wrong steps to 0; take keep or mask")
