"""Which parts may be combined, and why not: refused before anything is loaded. Imports no torch."""

from dataclasses import dataclass
from typing import Any

from training import own
from training.config import BUILTIN_MODEL, ConfigError, RunConfig
from training.data_legality import check_data, pool_size
from training.hooks import ADVANTAGE_TRAITS, HOOKS, merge_parts, needs
from training.params import check_params, unknown
from training.recipes import PRESETS, RECIPES, Recipe, named
from training.recipes.knobs import knobs_of, parts_with
from training.reward_legality import check_rewards
from training.tasks import catalog
from training.tasks.base import TaskFamily
from training.tasks.pool import make_pool
from training.tasks.stream import HELD_OUT_SEED, held_out_tasks

# Entries of H6 that work out advantages anew, and so come first and alone.
ESTIMATORS = frozenset({"return_to_go", "gae", "process"})
# Entries of H6 that correct for the sampling engine; one is enough.
CORRECTIONS = frozenset({"truncated_mismatch", "bounded_mismatch", "sequence_mismatch"})
# Entries of H6 that give the tokens of a completion the same.
SAME_FOR_ALL_TOKENS = frozenset({"uniform", "whitened"})
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
    needs: frozenset[str]  # columns that cost a pass of their own
    pool: int  # tasks that come again; 0: no limit


def resolve(config: RunConfig, *, on_worker: bool = False) -> Resolved:
    """The parts that `config` names. Data and code of one's own are looked up on the worker only.

    Raises:
        ConfigError: a name is unknown or a parameter out of bounds.
    """
    recipe = named(config.algorithm)
    if recipe is None:
        raise ConfigError("algorithm", unknown(config.algorithm, {**RECIPES, **PRESETS}, "algorithm"))
    parts = merge_parts(recipe.parts, config.hooks)
    knobs = knobs_of(parts, recipe.defaults)
    for name in config.algorithm_params:
        if name not in knobs and (owners := parts_with(name)):
            raise ConfigError(
                f"algorithm_params.{name}",
                f"is a knob of {' or '.join(owners)}, which this run does not have; put it into hooks, or leave the knob out",
            )
    params = check_params(knobs, config.algorithm_params, where="algorithm_params")
    params["constant_tokens"] = params["constant_tokens"] or config.sampling.max_new_tokens
    if "overlong_limit_tokens" in params:
        limit = params["overlong_limit_tokens"] = params["overlong_limit_tokens"] or config.sampling.max_new_tokens
        params["overlong_buffer_tokens"] = params["overlong_buffer_tokens"] or max(limit // 5, 1)
    needed = needs(parts)
    if params.get("divergence", "").startswith("topk_"):
        needed |= {"top_logprobs"}
    if params["kl_coefficient"] and params["kl_place"] == "reward":
        needed |= {"ref_logprobs"}
    elif params["kl_coefficient"] and "ref_kl" not in parts["H8"]:
        parts["H8"] = (*parts["H8"], "ref_kl")
        needed |= needs(parts)
    family, task_params = catalog.placed(config.task, on_worker=on_worker)
    return Resolved(recipe, params, parts, family, task_params, needed, pool_size(config, parts))


def check(config: RunConfig, *, takes_own: bool = False) -> None:
    """Nothing, if the run may start.

    Args:
        takes_own: whether it may name data and code of the worker's, as only a configuration file may.
    Raises:
        ConfigError: names the key at fault, the reason and the way out.
    """
    resolved = resolve(config)
    if not takes_own:
        _refuse_own(config, resolved)
    check_parts(config, resolved)
    _check_engine(config)
    _check_schedule(config)
    _check_processes(config, resolved)
    check_data(config, resolved)
    _check_task(config, resolved)


def check_parts(config: RunConfig, resolved: Resolved) -> None:
    """Nothing, if the parts of the algorithm go together.

    Raises:
        ConfigError: as `check`.
    """
    check_rewards(config, resolved)
    _check_advantage(config, resolved)
    _check_token_weights(config, resolved)
    _check_side_model(resolved)
    _check_loss(config, resolved)
    _check_kl(config, resolved)


def _refuse_own(config: RunConfig, resolved: Resolved) -> None:
    keys = ["task.name"] * catalog.is_own(config.task.name) + ["hooks.H4"] * any(map(own.is_own, resolved.parts["H4"]))
    if keys:
        raise ConfigError(
            keys[0], "files and code of your own are named in a configuration file, not on a page; see docs/own-data.md"
        )


def _check_advantage(config: RunConfig, resolved: Resolved) -> None:
    advantage, params = resolved.parts["H5"][0], resolved.params
    if ADVANTAGE_TRAITS[advantage].in_group and config.sampling.group_size < 2:
        raise ConfigError(
            "sampling.group_size",
            f"{resolved.recipe.title} compares the completions of a prompt and needs at least 2, "
            f"got {config.sampling.group_size}; algorithms without a group are vpg, reinforce, ppo and others",
        )
    if not ADVANTAGE_TRAITS[advantage].in_group and resolved.parts["H9"] == ("mixed_only",):
        raise ConfigError("hooks.H9", f"mixed_only drops groups that {resolved.recipe.title} learns from; take uniform")
    if advantage == "signed" and not params["positive_weight"] and not params["negative_weight"]:
        raise ConfigError("algorithm_params.positive_weight", "both weights are 0, so nothing would train; raise one")
    if advantage in ("best_of_k", "pass_at_k") and params["pass_k"] > config.sampling.group_size:
        raise ConfigError(
            "algorithm_params.pass_k",
            f"must be at most the completions per prompt ({config.sampling.group_size}), got {params['pass_k']}",
        )
    if advantage == "pass_at_k" and params["pass_k"] == config.sampling.group_size:
        raise ConfigError(
            "algorithm_params.pass_k",
            f"every draw of all {config.sampling.group_size} completions of a mixed group holds a right one, so nothing "
            "would train; take fewer",
        )
    if (advantage == "greedy_baseline") != (resolved.parts["H3"] == ("with_greedy",)):
        raise ConfigError(
            "hooks.H3", "greedy_baseline of H5 and with_greedy of H3 need each other; set both or neither"
        )
    if "whitened" not in resolved.parts["H6"]:
        return
    if ADVANTAGE_TRAITS[advantage].unit == "own":
        raise ConfigError("hooks.H6", f"whitening would undo the scale of H5's {advantage}; take uniform")
    if ADVANTAGE_TRAITS[advantage].unit == "knob" and params["divide_by_std"]:
        raise ConfigError(
            "algorithm_params.divide_by_std",
            "whitening over the batch would scale a second time; set it to false, or hooks.H6 to uniform",
        )


def _check_token_weights(config: RunConfig, resolved: Resolved) -> None:
    chain, advantage, loss = resolved.parts["H6"], resolved.parts["H5"][0], resolved.parts["H7"][0]
    order = [entry for entry in HOOKS["H6"].entries if entry in chain]
    if list(chain) != order:
        raise ConfigError("hooks.H6", f"its entries work one after another in the order {', '.join(order)}; write that")
    if not chain:
        raise ConfigError("hooks.H6", "names no entry; take uniform")
    for kind, why in (
        (ESTIMATORS, "each works out the advantages anew"),
        (CORRECTIONS, "each corrects the same mismatch, so it would be corrected twice"),
    ):
        if len(found := [entry for entry in chain if entry in kind]) > 1:
            raise ConfigError("hooks.H6", f"{' and '.join(found)}: {why}; name one")
    unscaled = sorted(name for name, traits in ADVANTAGE_TRAITS.items() if traits.unit == "reward")
    if "return_to_go" in chain and advantage not in unscaled:
        raise ConfigError(
            "hooks.H6",
            f"return_to_go takes the baseline of H5, which {advantage} has scaled; take one of {', '.join(unscaled)}",
        )
    if ("process" in chain) != (advantage == "process"):
        raise ConfigError("hooks.H6", "process of H5 and process of H6 need each other; set both or neither")
    if "dead_entropy" in chain and resolved.parts["H9"] == ("mixed_only",):
        raise ConfigError("hooks.H9", "mixed_only drops the groups that dead_entropy learns from; take uniform")
    if "covariance_top" in chain and loss != "unclipped":
        raise ConfigError("hooks.H7", f"covariance_top picks tokens for the loss unclipped, {loss} would ignore them")
    if loss == "divergence_masked" and (found := [entry for entry in chain if entry in CORRECTIONS]):
        raise ConfigError(
            "hooks.H6",
            f"divergence_masked has its ratio against the sampler, so {found[0]} would correct twice; take uniform",
        )
    if CORRECTIONS.intersection(chain) and (
        config.sampling.top_k or config.sampling.top_p < 1 or config.sampling.min_p > 0
    ):
        raise ConfigError(
            "hooks.H6",
            "with top_k, top_p or min_p tokens come from another distribution than their log-probabilities say, so a "
            "mismatch cannot be corrected; sample from all tokens, or take uniform",
        )


def _check_side_model(resolved: Resolved) -> None:
    wanted = {
        "hooks.H10": resolved.parts["H10"] == ("critic",),
        "hooks.H5": resolved.parts["H5"] == ("critic",),
        "hooks.H6": "gae" in resolved.parts["H6"],
    }
    if len(set(wanted.values())) > 1:
        missing = next(key for key, is_there in wanted.items() if not is_there)
        raise ConfigError(missing, "critic of H10, critic of H5 and gae of H6 work together; set all three or none")


def _check_loss(config: RunConfig, resolved: Resolved) -> None:
    loss, params = resolved.parts["H7"][0], resolved.params
    if loss == "reinforce" and config.optimizer.updates_per_step > 1:
        raise ConfigError(
            "optimizer.updates_per_step",
            f"{resolved.recipe.title} has no importance ratio, so a batch is right for one update only; "
            f"take 1, or clipped for hooks.H7; got {config.optimizer.updates_per_step}",
        )
    if loss == "trust_region" and (config.optimizer.updates_per_step > 1 or resolved.parts["H8"]):
        raise ConfigError(
            "optimizer.updates_per_step" if config.optimizer.updates_per_step > 1 else "hooks.H8",
            f"{resolved.recipe.title} makes one step a batch, by the surrogate alone; take 1 update and no further loss",
        )
    if 0 < params.get("dual_clip", 0) <= 1:
        raise ConfigError("algorithm_params.dual_clip", f"must be above 1, or 0 for none; got {params['dual_clip']}")
    is_whole = loss == "geometric_mean" or params.get("ratio_level") in ("sequence_mean", "sequence_sum")
    uneven = [entry for entry in resolved.parts["H6"] if entry not in SAME_FOR_ALL_TOKENS]
    if is_whole and uneven and not (uneven == ["truncated_mismatch"] and params["mismatch_level"] != "token"):
        raise ConfigError(
            "hooks.H6",
            f"{uneven[0]} gives tokens of a completion unlike signals, which a loss of whole completions cannot take; "
            "take uniform, or a token-level loss such as gspo_token's",
        )
    if is_whole and params["aggregation"] != "rollout_mean":
        raise ConfigError(
            "algorithm_params.aggregation",
            "each token carries the loss of its whole completion, so anything but rollout_mean would weigh completions "
            f"by their length; set rollout_mean, or a token-level loss; got {params['aggregation']}",
        )


def _check_kl(config: RunConfig, resolved: Resolved) -> None:
    params, is_in_loss = resolved.params, "ref_kl" in resolved.parts["H8"]
    if params["kl_target"] and not params["kl_coefficient"]:
        raise ConfigError("algorithm_params.kl_coefficient", "kl_target adapts it, so it must start above 0")
    rollouts = config.sampling.prompts_per_step * config.sampling.group_size
    if params["kl_target"] and params["kl_horizon"] < rollouts:
        raise ConfigError(
            "algorithm_params.kl_horizon",
            f"must be at least the rollouts of a step ({rollouts}), else the weight may jump below 0; got {params['kl_horizon']}",
        )
    if params["kl_place"] == "reward" and params["kl_coefficient"]:
        if is_in_loss:
            raise ConfigError("hooks.H8", "the KL is in the reward already; take ref_kl out, or set kl_place to loss")
        if ADVANTAGE_TRAITS[resolved.parts["H5"][0]].needs_plain:
            raise ConfigError(
                "algorithm_params.kl_place",
                f"{resolved.recipe.title} needs the reward as it was judged; set kl_place to loss",
            )
    if not is_in_loss:
        return
    if params["kl_estimator"] == "k1":
        raise ConfigError("algorithm_params.kl_estimator", "k1 as a loss has zero expected gradient; take k2 or k3")
    if not params["kl_coefficient"]:
        raise ConfigError("algorithm_params.kl_coefficient", "hooks.H8 names ref_kl, so it must be above 0")


def _check_engine(config: RunConfig) -> None:
    sampling = config.sampling
    if sampling.engine == "vllm_server":
        return
    for name, is_set in (
        ("tensor_parallel", sampling.tensor_parallel > 1),
        ("server_devices", sampling.server_devices != ""),
        ("server_url", sampling.server_url != ""),
    ):
        if is_set:
            raise ConfigError(
                f"sampling.{name}",
                f"is of a vLLM server, and {sampling.engine} samples; set sampling.engine to vllm_server, or leave it out",
            )


def _check_schedule(config: RunConfig) -> None:
    if config.optimizer.warmup_steps > config.steps:
        raise ConfigError(
            "optimizer.warmup_steps",
            f"must be at most steps ({config.steps}), else the peak learning rate is never reached; "
            f"got {config.optimizer.warmup_steps}",
        )
    if config.eval.average_weights and not config.optimizer.ema_decay:
        raise ConfigError(
            "eval.average_weights", "there is no average to evaluate; set optimizer.ema_decay, 0.99 for example"
        )


def _check_processes(config: RunConfig, resolved: Resolved) -> None:
    if config.processes > 1 and resolved.parts["H7"][0] == "trust_region":
        raise ConfigError("processes", f"{resolved.recipe.title} works in one process only; take 1")
    if config.processes > 1 and config.sampling.engine == "vllm":
        raise ConfigError("sampling.engine", "vllm serves a run of one process; take vllm_server, or torch")


def _check_task(config: RunConfig, resolved: Resolved) -> None:
    if resolved.family.name not in catalog.FAMILIES or config.eval.prompts > QUICK_HELD_OUT:
        return
    if 0 < resolved.pool <= QUICK_HELD_OUT:
        make_pool(resolved.family, resolved.task_params, resolved.pool, config.seed)
    tasks = held_out_tasks(resolved.family, resolved.task_params, config.eval.prompts, HELD_OUT_SEED)
    shortest = min(len(task.answer) for task in tasks) + 1
    if config.model.path == BUILTIN_MODEL and shortest > config.sampling.max_new_tokens:
        raise ConfigError(
            "sampling.max_new_tokens",
            f"the shortest answer of these tasks takes {shortest} tokens with its end, "
            f"so no completion could be right; got {config.sampling.max_new_tokens}",
        )
