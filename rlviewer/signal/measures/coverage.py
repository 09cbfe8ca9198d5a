"""Which fields a source records: how many rollouts of a step have each, and which pages a gap closes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlviewer.runs.models import RewardPart
from rlviewer.signal.material import Mask, Material


@dataclass(frozen=True, slots=True)
class RecordedField:
    """`key` is the column as batches name it; `opens` what needs it; `holds` tells the rollouts that have it."""

    key: str
    title: str
    kind: str  # rollout, prompt or token
    opens: str
    holds: Callable[[Material], Mask]


def _mask(values: list[bool]) -> Mask:
    return np.array(values, dtype=np.bool_)


def _narrow(key: str) -> Callable[[Material], Mask]:
    return lambda of: _mask([value is not None for value in of.narrow[key]])


def _token(key: str) -> Callable[[Material], Mask]:
    return lambda of: _mask([key in one.columns for one in of.packed])


def _detail(key: str) -> Callable[[Material], Mask]:
    return lambda of: _mask([key in one.details for one in of.packed])


def _in_group(of: Material) -> Mask:
    sizes = np.array([len(rows) for rows in of.members()], dtype=np.int64)
    return np.asarray(sizes[of.group_of] > 1)


def _prompt(name: str) -> Callable[[Material], Mask]:
    return lambda of: _mask(
        [getattr(of.groups[group].prompt, name) not in {None, ""} for group in of.group_of.tolist()]
    )


def _text(of: Material) -> Mask:
    """An empty text is one too, where the source writes any."""
    return np.full(of.count, any(one.completion for one in of.packed))


def _reward_parts(of: Material) -> Mask:
    held = set(RewardPart.objects.filter(rollout_id__in=of.narrow["id"]).values_list("rollout_id", flat=True))
    return _mask([pk in held for pk in of.narrow["id"]])


# Add at the end only: stored rows name a field by its place.
RECORDED: tuple[RecordedField, ...] = (
    RecordedField("text", "completion text", "rollout", "reading, search, forms of solutions", _text),
    RecordedField("group", "groups of one prompt", "rollout", "dead groups, answers compared, diversity", _in_group),
    RecordedField("reward", "reward", "rollout", "reward curves, dead groups", _narrow("reward")),
    RecordedField("advantage", "advantage", "rollout", "gradient budget, dead groups by step", _narrow("advantage")),
    RecordedField("correct", "right or wrong", "rollout", "pass rates, entropy of right and wrong", _narrow("correct")),
    RecordedField("parsed_answer", "parsed answer", "rollout", "semantic entropy, causes of dead groups", _narrow("parsed_answer")),
    RecordedField("answer_cluster", "answer cluster", "rollout", "semantic entropy as the source judges it", _narrow("answer_cluster")),
    RecordedField("policy_version", "policy version", "rollout", "ledger of policy versions", _narrow("policy_version")),
    RecordedField("staleness_steps", "staleness", "rollout", "age of what is trained on", _narrow("staleness_steps")),
    RecordedField("seed", "seed", "rollout", "the check for rollouts stored twice", _detail("seed")),
    RecordedField("cost_seconds", "seconds of sampling", "rollout", "cost of a rollout", _detail("cost_seconds")),
    RecordedField("feedback", "text of the checker", "rollout", "why a reward was given", _detail("feedback")),
    RecordedField("step_boundaries", "steps of shown work", "rollout", "thinking and answer told apart", _detail("step_boundaries")),
    RecordedField("answer", "reference answer", "prompt", "suspect checkers", _prompt("answer")),
    RecordedField("difficulty", "difficulty", "prompt", "gradient budget by difficulty", _prompt("difficulty")),
    RecordedField("token_ids", "token ids", "token", "tokens of a rollout, near repeats", _token("token_ids")),
    RecordedField("sampler_logprobs", "sampler log-probabilities", "token", "trust region, KL, ratios", _token("sampler_logprobs")),
    RecordedField("policy_logprobs", "policy log-probabilities", "token", "trust region, KL, ratios", _token("policy_logprobs")),
    RecordedField("recomputed_logprobs", "recomputed log-probabilities", "token", "gap of sampler and trainer, stale weights", _token("recomputed_logprobs")),
    RecordedField("ref_logprobs", "reference log-probabilities", "token", "KL to the reference", _token("ref_logprobs")),
    RecordedField("entropy", "entropy", "token", "entropy of right and wrong", _token("entropy")),
    RecordedField("token_advantages", "advantages of tokens", "token", "gradient budget by token", _token("token_advantages")),
    RecordedField("token_weights", "weights of tokens", "token", "gradient budget by token", _token("token_weights")),
    RecordedField("loss_mask", "loss mask", "token", "data audit, what counts", _token("loss_mask")),
    RecordedField("clip_flag", "clip flags", "token", "clipped share by sign", _token("clip_flag")),
    RecordedField("origin", "who wrote the token", "token", "data audit, budget by span", _token("origin")),
    RecordedField("token_policy_version", "policy version of tokens", "token", "rollouts that mix versions", _token("token_policy_version")),
    RecordedField("reward_spans", "parts of the reward", "rollout", "gradient budget by part of the reward", _reward_parts),
)  # fmt: skip


def coverage(of: Material) -> list[int]:
    """Rollouts that have each field, in the order of `RECORDED`. One query, for the parts of the rewards."""
    return [int(field.holds(of).sum()) for field in RECORDED]
