"""Which fields a source records: how many rollouts of a step have each, and which pages a gap closes."""

from collections.abc import Callable
from dataclasses import dataclass

from rlviewer.signal.material import Material


@dataclass(frozen=True, slots=True)
class RecordedField:
    """`key` is the column. `opens` names what needs it; `how` says what a trainer has to write."""

    key: str
    title: str
    kind: str  # rollout, token, prompt, step
    opens: str
    has: Callable[[Material], int]


def _narrow(key: str) -> Callable[[Material], int]:
    return lambda of: sum(value is not None for value in of.narrow[key])


def _token(key: str) -> Callable[[Material], int]:
    return lambda of: sum(key in one.columns for one in of.packed)


def _detail(key: str) -> Callable[[Material], int]:
    return lambda of: sum(key in one.details for one in of.packed)


def _in_group(of: Material) -> int:
    return sum(len(rows) for rows in of.members() if len(rows) > 1)


def _prompt(name: str) -> Callable[[Material], int]:
    def count(of: Material) -> int:
        has = [getattr(group.prompt, name) not in {None, ""} for group in of.groups]
        return sum(has[group] for group in of.group_of.tolist())

    return count


def _text(of: Material) -> int:
    return sum(len(one.completion) > 0 for one in of.packed)


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
)  # fmt: skip


def coverage(of: Material) -> list[int]:
    """Rollouts that have each field, in the order of `RECORDED`."""
    return [field.has(of) for field in RECORDED]
