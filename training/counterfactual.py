"""What another algorithm would have made of the rollouts of a stored step, by the trainer's own functions.

A recipe is resolved over the configuration of the run, then everything between scoring and the optimiser is done as in a
step: rewards, advantages, token weights, the loss, and its gradient by the stored log-probabilities of the policy. Whatever
the step does not hold is said with its reason; nothing stands in for it unsaid. Of later steps nothing is said: another
algorithm would have sampled other rollouts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from training import legality, own
from training.auxiliary import AUXILIARIES
from training.batching import aggregate, rollout_scale
from training.config import ConfigError, RunConfig
from training.credit import ModelColumns, Signal, assign_credit
from training.estimators import ADVANTAGES, ScoredGroups
from training.learner import LearnerBatch
from training.legality import Resolved
from training.losses import LOSSES, MASKED, LossInputs, PolicyLoss
from training.params import Param
from training.recipes.knobs import KNOBS
from training.reward_shaping import kl_in_reward
from training.rewards import reward_functions
from training.rollouts import ScoredRollouts, score_rollouts
from training.seeds import derived_seed
from training.selection import Uniform
from training.selections import SELECTIONS
from training.spans import Scored
from training.stored import StoredStep, scores_of
from training.tasks.base import Task, TaskFamily, Verdict
from training.tasks.pool import TaskPool

EXACT, APPROXIMATE, UNKNOWN = "exact", "approximate", "cannot say"
# What an answer consists of; each has a label of its own.
ADVANTAGE, WEIGHTS, CLIP, GRADIENT = "advantages", "weights", "clip", "gradient"
PARTS = (ADVANTAGE, WEIGHTS, CLIP, GRADIENT)
# Entries of H6 that read what the sampler said.
READS_SAMPLER = frozenset({"covariance_drop", "covariance_top", *legality.CORRECTIONS})


class CannotSay(ValueError):
    """The step does not hold what a recipe needs: says what."""


@dataclass(frozen=True, slots=True)
class Label:
    kind: str  # EXACT, APPROXIMATE or UNKNOWN
    why: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """A recipe with some of its knobs moved. Of the run's own recipe everything else stays as the run has it."""

    recipe: str
    constants: Mapping[str, Any] = field(default_factory=dict)
    rewards: tuple[str, ...] = ()  # entries of H4 instead of the recipe's, judged anew


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a recipe makes of a step. What is None cannot be said; its label says why."""

    labels: dict[str, Label]
    params: dict[str, Any] = field(default_factory=dict)
    scores: ScoredRollouts | None = None
    signal: Signal | None = None
    weights_known: bool = False  # else H6 was left out of `signal`
    policy: PolicyLoss | None = None
    loss: float | None = None
    gradient: Tensor | None = None  # [B, T] of the loss by the policy's log-probability of each token


def config_of(config: RunConfig, ask: Ask) -> RunConfig:
    """The run's configuration under another recipe: the reward and all that is not the algorithm's stays."""
    if ask.recipe == config.algorithm:
        changed = replace(config, algorithm_params={**config.algorithm_params, **ask.constants})
    else:
        hooks = {name: entries for name, entries in config.hooks.items() if name == "H4"}
        one_update = replace(config.optimizer, updates_per_step=1)
        changed = replace(
            config,
            algorithm=ask.recipe,
            algorithm_params=dict(ask.constants),
            hooks=hooks,
            optimizer=one_update,
        )
    return replace(changed, hooks={**changed.hooks, "H4": list(ask.rewards)}) if ask.rewards else changed


def outcome(
    step: StoredStep,
    config: RunConfig,
    ask: Ask,
    *,
    earlier_rewards: Sequence[float] | None = None,
    scores: ScoredRollouts | None = None,
) -> Outcome:
    """What `ask` makes of `step`, a step of a run of `config`.

    Args:
        earlier_rewards: mean reward of every step before; None: not all are stored.
        scores: what rewards named in `ask` say, where they were judged anew.
    """
    labels = dict.fromkeys(PARTS, Label(EXACT))
    other = config_of(config, ask)
    try:
        resolved, was = legality.resolve(other), legality.resolve(config)
        legality.check_parts(other, resolved)
        scores = judged(step, other, resolved, was) if scores is None else scores
        scores = without_greedy(step, scores, resolved)
        mean, label = _running_mean(step, resolved, was, earlier_rewards)
        labels[ADVANTAGE] = label
        columns, scores = _columns(step, config, ask, resolved, was, scores)
        signal, problem = _signal(step, other, resolved, columns, scores, mean)
    except (ConfigError, ValueError) as error:
        return Outcome(dict.fromkeys(PARTS, Label(UNKNOWN, _said(error))))
    if label.kind == APPROXIMATE:
        labels = dict.fromkeys(PARTS, label)
    found = Outcome(labels, resolved.params, scores, signal, weights_known=not problem)
    if problem:
        labels |= dict.fromkeys((WEIGHTS, CLIP, GRADIENT), Label(UNKNOWN, problem))
        return found
    if ask.recipe != config.algorithm and config.optimizer.updates_per_step > 1:
        moved = f"stored log-probabilities are of update {config.optimizer.updates_per_step} under {config.algorithm}"
        labels |= dict.fromkeys((CLIP, GRADIENT), Label(APPROXIMATE, moved))
    return _with_loss(found, step, config, ask, resolved, columns, signal)


def judged(step: StoredStep, config: RunConfig, resolved: Resolved, was: Resolved) -> ScoredRollouts:
    """The stored rewards where H4 is the run's, else H4 over the stored verdicts of the task's checker.

    Raises:
        CannotSay: a verdict or what a reward reads beside it is not stored.
    """
    entries = resolved.parts["H4"]
    knobs = [name for entry in entries for name in KNOBS.get(("H4", entry), {})]
    if entries == was.parts["H4"] and all(resolved.params[name] == was.params[name] for name in knobs):
        return step.scores
    if config.shuffle_rewards:
        raise CannotSay("its rewards differ from the run's, which were shuffled")
    if unknown := [entry for entry in entries if own.is_own(entry) or entry == "step_labels"]:
        raise CannotSay(f"the rewards of {unknown[0]} are not stored; judge the rollouts anew")
    if "confident_vote" in entries and "entropy" not in step.columns:
        raise CannotSay("confident_vote needs the sampler's entropy, which is not stored")
    scores = score_rollouts(
        step.rollouts,
        stored_verdicts(step),
        reward_functions(entries),
        truncated=config.truncated,
        params=resolved.params,
    )
    was_scored = step.was_scored.tolist()
    return scores_of([one if known else Scored() for one, known in zip(scores.scored, was_scored, strict=True)])


def stored_verdicts(step: StoredStep) -> TaskFamily:
    """A stand-in for the task: its checker gives the verdicts that are stored.

    Raises:
        CannotSay: the task's own verdict is not among the stored rewards.
    """
    verdicts: dict[tuple[int, str], Verdict] = {}
    for group, text, one in zip(
        step.rollouts.group_index.tolist(), step.rollouts.completions, step.scores.scored, strict=True
    ):
        found = [span.value for span in one.spans if (span.kind, span.name) == ("outcome", "task")]
        if one.spans and not found:
            raise CannotSay("the verdict of the task's checker is not stored beside the run's own reward")
        key = group, text.decode("utf-8", "replace")
        verdict = Verdict(sum(found), one.correct, one.parsed_answer)
        if one.spans and verdicts.setdefault(key, verdict) != verdict:
            raise CannotSay("equal completions of one prompt were judged differently")

    def check(task: Task, text: str) -> Verdict:
        return verdicts.get((task.payload["group"], text), Verdict(0.0, False, None))

    def generate(*_: Any) -> Task:
        raise CannotSay("the stored rollouts have no generator")

    return TaskFamily("stored", "Stored", "Verdicts as they are stored.", dict[str, Param](), generate, check)


def without_greedy(step: StoredStep, scores: ScoredRollouts, resolved: Resolved) -> ScoredRollouts:
    """Greedy completions of a baseline are left out where the recipe takes none."""
    is_greedy = step.rollouts.is_greedy.tolist()
    if resolved.parts["H3"] == ("with_greedy",):
        if len(set(step.rollouts.group_index[step.rollouts.is_greedy].tolist())) < len(step.rollouts.prompts):
            raise CannotSay("needs a greedy completion of every prompt, which the run did not sample")
        return scores
    if not any(is_greedy):
        return scores
    return scores_of([Scored() if greedy else one for one, greedy in zip(scores.scored, is_greedy, strict=True)])


def _running_mean(
    step: StoredStep, resolved: Resolved, was: Resolved, earlier: Sequence[float] | None
) -> tuple[float, Label]:
    """What the baseline of `running_mean` was before this step: the earlier steps over again."""
    if resolved.parts["H5"] != ("running_mean",) or step.step == 0:
        return 0.0, Label(EXACT)
    if earlier is None or len(earlier) != step.step:
        raise CannotSay("needs the rewards of every step before, of which some are not stored")
    mean = 0.0
    for reward in earlier:
        one = torch.tensor([[reward]], dtype=torch.float64)
        valid = one.isfinite()
        lone = ScoredGroups(one, valid, valid, torch.ones_like(valid, dtype=torch.int64), running_mean=mean)
        mean = ADVANTAGES["running_mean"](lone, resolved.params).running_mean or 0.0
    why = "its baseline runs over the rewards of the steps before, which the run's own policy sampled"
    return mean, Label(EXACT if resolved.recipe.name == was.recipe.name else APPROXIMATE, why)


def _columns(
    step: StoredStep, config: RunConfig, ask: Ask, resolved: Resolved, was: Resolved, scores: ScoredRollouts
) -> tuple[ModelColumns, ScoredRollouts]:
    """What further models said, as far as it is stored, and the scores with the KL in the reward where it belongs there."""
    params, ref, recomputed = resolved.params, step.columns.get("ref_logprobs"), step.columns.get("recomputed_logprobs")
    if "recomputed_logprobs" not in resolved.needs:
        recomputed = None  # the run's own recipe had them made; this one would go by the sampler's
    earned = None
    if params["kl_place"] == "reward" and params["kl_coefficient"]:
        if ref is None:
            raise CannotSay("the KL in its reward needs reference log-probabilities, which are not stored")
        shaped = kl_in_reward(
            step.rollouts,
            scores,
            step.rollouts.sampler_logprobs if recomputed is None else recomputed,
            ref,
            coefficient=_coefficients(step, config, ask, resolved).get("kl_coefficient", params["kl_coefficient"]),
            estimator=params["kl_estimator"],
        )
        scores, earned = shaped.scores, shaped.token_rewards
    values = None
    if resolved.parts["H10"] == ("critic",):
        values = step.values
        # Without a critic the running value of the prompt stands in the same column.
        if values is None or was.parts["H10"] != ("critic",):
            raise CannotSay("needs what a critic foresaw at every token, which the run did not have")
        if params["bootstrap_truncated"] and not bool(step.rollouts.is_finished.all()):
            raise CannotSay("needs the critic's value behind completions that were cut, which is not stored")
        values = torch.cat([values[:, :-1], torch.zeros_like(values[:, :1])], dim=1)
    return ModelColumns(ref, recomputed, values, earned, step.top if "top_logprobs" in resolved.needs else None), scores


def _coefficients(step: StoredStep, config: RunConfig, ask: Ask, resolved: Resolved) -> dict[str, float]:
    """Weights that follow a target stood at the step where its metrics say, under the run's own recipe."""
    if ask.recipe != config.algorithm:
        return {}
    names = [name for name in ("kl_coefficient", "entropy_coefficient") if name in step.metrics]
    return {name: step.metrics[name] for name in names if name not in ask.constants and resolved.params.get(name)}


def _signal(
    step: StoredStep,
    config: RunConfig,
    resolved: Resolved,
    columns: ModelColumns,
    scores: ScoredRollouts,
    running_mean: float,
) -> tuple[Signal, str]:
    """Credit under the recipe; where H6 lacks a column, of H5 alone with what is missing in words.

    Raises:
        ValueError: the advantages cannot be said.
    """
    chain = resolved.parts["H6"]
    if READS_SAMPLER.intersection(chain) and "sampler_logprobs" not in step.columns:
        problem = f"{chain[-1]} needs the sampler's log-probabilities, which are not stored"
    elif {"top_entropy", "dead_entropy"}.intersection(chain) and "entropy" not in step.columns:
        problem = f"{chain[-1]} needs the sampler's entropy, which is not stored"
    else:
        problem = ""

    def credit(parts: Mapping[str, tuple[str, ...]]) -> Signal:
        return assign_credit(
            step.rollouts,
            scores,
            columns,
            parts,
            resolved.params,
            _selection(step, resolved, config),
            running_mean=running_mean,
            truncated=config.truncated,
            seed=derived_seed(config.seed, "token weights", step.step),
        )

    try:
        if problem:
            raise CannotSay(problem)
        return credit(resolved.parts), ""
    except ValueError as error:
        changes_advantages = legality.ESTIMATORS.union({"dead_entropy", "whitened", "ends_first"})
        if changes_advantages.intersection(chain):
            raise
        return credit({**resolved.parts, "H6": ("uniform",)}), _said(error)


def _selection(step: StoredStep, resolved: Resolved, config: RunConfig) -> Uniform:
    tasks = [one.task for one in step.rollouts.chosen]
    return SELECTIONS[resolved.parts["H9"][0]](TaskPool(tasks, config.seed), resolved.params, config.seed)


def _with_loss(
    found: Outcome,
    step: StoredStep,
    config: RunConfig,
    ask: Ask,
    resolved: Resolved,
    columns: ModelColumns,
    signal: Signal,
) -> Outcome:
    """Clip flags, loss and gradient; of what fails the label says why."""
    labels, params = found.labels, resolved.params | _coefficients(step, config, ask, resolved)
    try:
        batch = _learner_batch(step, resolved, columns, signal)
        leaf = _policy_logprobs(step, batch, labels)
        inputs = LossInputs(
            policy_logprobs=leaf,
            sampler_logprobs=batch.sampler_logprobs,
            token_advantages=batch.token_advantages,
            token_weights=batch.token_weights,
            loss_mask=batch.loss_mask,
            recomputed_logprobs=batch.recomputed_logprobs,
            ref_logprobs=batch.ref_logprobs,
            selected=batch.selected,
        )
        policy = LOSSES[resolved.parts["H7"][0]](inputs, params)
    except ValueError as error:
        labels |= dict.fromkeys((CLIP, GRADIENT), Label(UNKNOWN, _said(error)))
        return found
    width = signal.loss_mask.shape[1]
    found = replace(found, policy=_widened(policy, width))
    try:
        losses = [policy.token_loss, *(AUXILIARIES[name](inputs, params) for name in resolved.parts["H8"])]
    except ValueError as error:
        labels[GRADIENT] = Label(UNKNOWN, _said(error))
        return found
    scale = rollout_scale(
        signal.loss_mask,
        params["aggregation"],
        prompt_index=step.rollouts.group_index,
        constant_tokens=params["constant_tokens"],
    )
    loss = torch.stack([aggregate(one, batch.loss_mask, scale) for one in losses]).sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    return replace(found, loss=loss.item(), gradient=_padded(gradient, width))


def _learner_batch(step: StoredStep, resolved: Resolved, columns: ModelColumns, signal: Signal) -> LearnerBatch:
    """As the loss sees it: cut where it reads nothing further."""
    whole = LearnerBatch(
        tokens=step.rollouts.tokens,
        sampler_logprobs=step.rollouts.sampler_logprobs,
        token_advantages=signal.weights.token_advantages,
        token_weights=signal.weights.token_weights,
        loss_mask=signal.loss_mask,
        ref_logprobs=columns.ref_logprobs,
        recomputed_logprobs=columns.recomputed_logprobs,
        selected=signal.weights.selected,
        forward_tokens=None if resolved.parts["H8"] else signal.weights.forward_tokens,
    )
    return whole.rows(torch.arange(len(step.kept)))


def _policy_logprobs(step: StoredStep, batch: LearnerBatch, labels: dict[str, Label]) -> Tensor:
    """The stored log-probabilities under the policy, to take the gradient by.

    Raises:
        CannotSay: they are not stored.
    """
    if "sampler_logprobs" not in step.columns:
        raise CannotSay("needs the sampler's log-probabilities, which are not stored")
    stored = step.columns.get("policy_logprobs")
    if stored is None:
        stored = step.columns.get("recomputed_logprobs", step.rollouts.sampler_logprobs)
        why = "the step updated nothing, so the sampling weights stand for the policy's"
        labels |= {name: Label(APPROXIMATE, why) for name in (CLIP, GRADIENT)}
    leaf = stored[:, : batch.loss_mask.shape[1]]
    if missing := int((batch.loss_mask & ~leaf.isfinite()).sum()):
        raise CannotSay(f"the policy's log-probabilities of {missing} counted tokens are not stored")
    return leaf.clone().requires_grad_()


def _widened(policy: PolicyLoss, width: int) -> PolicyLoss:
    flag = torch.nn.functional.pad(policy.clip_flag, (0, width - policy.clip_flag.shape[1]), value=MASKED)
    return replace(policy, token_loss=_padded(policy.token_loss.detach(), width), clip_flag=flag)


def _padded(rectangle: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(rectangle, (0, width - rectangle.shape[1]))


def _said(error: Exception) -> str:
    return error.message if isinstance(error, ConfigError) else str(error)
