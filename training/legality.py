"""Which parts may be combined, and why not: refused before anything is loaded. Imports no torch."""

from dataclasses import dataclass
from typing import Any

from training.config import BUILTIN_MODEL, ConfigError, RunConfig
from training.hooks import merge_parts
from training.params import check_params, unknown
from training.recipes import RECIPES, Recipe
from training.recipes.knobs import knobs_of
from training.tasks import catalog
from training.tasks.base import TaskFamily
from training.tasks.stream import HELD_OUT_SEED, held_out_tasks

# Entries of H5 that compare the completions of a prompt.
GROUP_RELATIVE = frozenset({"group", "leave_one_out", "max_likelihood"})
# Above this the held-out tasks are counted when the run starts, not while a person waits for the form.
QUICK_HELD_OUT = 2000


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a configuration comes to: names resolved, defaults filled in."""

    recipe: Recipe
    params: dict[str, Any]  # of the recipe's parts
    parts: dict[str, tuple[str, ...]]  # entries per hook
    family: TaskFamily
    task_params: dict[str, Any]


def resolve(config: RunConfig) -> Resolved:
    """The parts that `config` names.

    Raises:
        ConfigError: a name is unknown or a parameter out of bounds.
    """
    if config.algorithm not in RECIPES:
        raise ConfigError("algorithm", unknown(config.algorithm, RECIPES, "algorithm"))
    recipe = RECIPES[config.algorithm]
    parts = merge_parts(recipe.parts, config.hooks)
    params = check_params(knobs_of(parts, recipe.defaults), config.algorithm_params, where="algorithm_params")
    params["constant_tokens"] = params["constant_tokens"] or config.sampling.max_new_tokens
    if "overlong_limit_tokens" in params:
        limit = params["overlong_limit_tokens"] = params["overlong_limit_tokens"] or config.sampling.max_new_tokens
        params["overlong_buffer_tokens"] = params["overlong_buffer_tokens"] or max(limit // 5, 1)
    if params["kl_coefficient"] and "ref_kl" not in parts["H8"]:
        parts["H8"] = (*parts["H8"], "ref_kl")
    family = catalog.resolve(config.task.name)
    return Resolved(recipe, params, parts, family, catalog.make_params(family, config.task.params))


def check(config: RunConfig) -> None:
    """Nothing, if the run may start.

    Raises:
        ConfigError: names the key at fault, the reason and the way out.
    """
    resolved = resolve(config)
    _check_reward(config, resolved)
    _check_advantage(config, resolved)
    _check_loss(config, resolved)
    _check_kl(config, resolved)
    _check_schedule(config)
    _check_task(config, resolved)


def _check_reward(config: RunConfig, resolved: Resolved) -> None:
    rewards, params = resolved.parts["H4"], resolved.params
    if "overlong_penalty" not in rewards:
        return
    if rewards == ("overlong_penalty",):
        raise ConfigError("hooks.H4", "overlong_penalty alone scores no completion; name task as well")
    if resolved.parts["H5"] == ("signed",):
        raise ConfigError("hooks.H4", f"{resolved.recipe.title} needs rewards of 0 and 1; take overlong_penalty out")
    if resolved.parts["H5"] == ("max_likelihood",):
        raise ConfigError("hooks.H4", f"{resolved.recipe.title} takes no negative rewards; take overlong_penalty out")
    if params["overlong_buffer_tokens"] > params["overlong_limit_tokens"]:
        raise ConfigError(
            "algorithm_params.overlong_buffer_tokens",
            f"must be at most the limit ({params['overlong_limit_tokens']}), got {params['overlong_buffer_tokens']}",
        )
    if config.truncated == "reward_zero":
        raise ConfigError(
            "truncated", "reward_zero would cancel the penalty of the completions it is for; take keep or mask"
        )


def _check_advantage(config: RunConfig, resolved: Resolved) -> None:
    advantage, params = resolved.parts["H5"][0], resolved.params
    if advantage in GROUP_RELATIVE and config.sampling.group_size < 2:
        raise ConfigError(
            "sampling.group_size",
            f"{resolved.recipe.title} compares the completions of a prompt and needs at least 2, "
            f"got {config.sampling.group_size}; algorithms without a group are vpg, reinforce and reinforce_plus_plus",
        )
    if advantage not in GROUP_RELATIVE and resolved.parts["H9"] == ("mixed_only",):
        raise ConfigError("hooks.H9", f"mixed_only drops groups that {resolved.recipe.title} learns from; take uniform")
    if advantage == "signed" and not params["positive_weight"] and not params["negative_weight"]:
        raise ConfigError("algorithm_params.positive_weight", "both weights are 0, so nothing would train; raise one")
    if resolved.parts["H6"] != ("whitened",):
        return
    if advantage in ("signed", "max_likelihood"):
        raise ConfigError("hooks.H6", f"whitening would undo the scale of H5's {advantage}; take uniform")
    if advantage == "group" and params["divide_by_std"]:
        raise ConfigError(
            "algorithm_params.divide_by_std",
            "whitening over the batch would scale a second time; set it to false, or hooks.H6 to uniform",
        )


def _check_loss(config: RunConfig, resolved: Resolved) -> None:
    loss, params = resolved.parts["H7"][0], resolved.params
    if loss == "reinforce" and config.optimizer.updates_per_step > 1:
        raise ConfigError(
            "optimizer.updates_per_step",
            f"{resolved.recipe.title} has no importance ratio, so a batch is right for one update only; "
            f"take 1, or clipped for hooks.H7; got {config.optimizer.updates_per_step}",
        )
    if 0 < params.get("dual_clip", 0) <= 1:
        raise ConfigError("algorithm_params.dual_clip", f"must be above 1, or 0 for none; got {params['dual_clip']}")
    is_whole = loss == "geometric_mean" or params.get("ratio_level") in ("sequence_mean", "sequence_sum")
    if is_whole and params["aggregation"] != "rollout_mean":
        raise ConfigError(
            "algorithm_params.aggregation",
            "each token carries the loss of its whole completion, so anything but rollout_mean would weigh completions "
            f"by their length; set rollout_mean, or a token-level loss; got {params['aggregation']}",
        )


def _check_kl(config: RunConfig, resolved: Resolved) -> None:
    if "ref_kl" not in resolved.parts["H8"]:
        return
    if resolved.params["kl_estimator"] == "k1":
        raise ConfigError("algorithm_params.kl_estimator", "k1 as a loss has zero expected gradient; take k2 or k3")
    if not resolved.params["kl_coefficient"]:
        raise ConfigError("algorithm_params.kl_coefficient", "hooks.H8 names ref_kl, so it must be above 0")


def _check_schedule(config: RunConfig) -> None:
    if config.optimizer.warmup_steps > config.steps:
        raise ConfigError(
            "optimizer.warmup_steps",
            f"must be at most steps ({config.steps}), else the peak learning rate is never reached; "
            f"got {config.optimizer.warmup_steps}",
        )


def _check_task(config: RunConfig, resolved: Resolved) -> None:
    if resolved.family.name not in catalog.FAMILIES or config.eval.prompts > QUICK_HELD_OUT:
        return
    tasks = held_out_tasks(resolved.family, resolved.task_params, config.eval.prompts, HELD_OUT_SEED)
    shortest = min(len(task.answer) for task in tasks) + 1
    if config.model.path == BUILTIN_MODEL and shortest > config.sampling.max_new_tokens:
        raise ConfigError(
            "sampling.max_new_tokens",
            f"the shortest answer of these tasks takes {shortest} tokens with its end, "
            f"so no completion could be right; got {config.sampling.max_new_tokens}",
        )
