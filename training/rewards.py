"""H4, text in, reward spans out. Imports no torch.

A reward function sees a whole group. What it returns for a completion is a list of spans over its tokens; the reward is the
sum of all spans. No span at all means that the completion could not be scored, which is not a reward of 0.
"""

import functools
import math
import numbers
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from training import label_rewards, own
from training.config import ConfigError
from training.spans import KINDS, NO_PARAMS, Completion, RewardFunction, RewardSpan, Scored, checked
from training.tasks.base import Task, TaskFamily


def task_checker(
    family: TaskFamily, task: Task, completions: Sequence[Completion], params: Mapping[str, Any]
) -> list[Scored]:
    """The verdict of the task's own checker: one outcome at the last token."""
    return [checked(family, task, completion) for completion in completions]


def overlong_penalty(length_tokens: int, *, limit_tokens: int, buffer_tokens: int) -> float:
    """0 up to `limit - buffer`, then linearly down to -1 at `limit`, and -1 beyond it.

    Source: Yu et al. 2025, DAPO, arXiv:2503.14476.
    """
    return -min(1.0, max(0.0, (length_tokens - limit_tokens + buffer_tokens) / buffer_tokens))


def _overlong(
    family: TaskFamily, task: Task, completions: Sequence[Completion], params: Mapping[str, Any]
) -> list[Scored]:
    limit, buffer = params["overlong_limit_tokens"], params["overlong_buffer_tokens"]
    return [
        Scored(spans=(RewardSpan(one.token_count - 1, one.token_count, value, "penalty", "overlong"),))
        if one.stop_reason != "error"
        and (value := overlong_penalty(one.token_count, limit_tokens=limit, buffer_tokens=buffer))
        else Scored()
        for one in completions
    ]


def length_z_scores(lengths: Sequence[float]) -> list[float]:
    """Of the right completions of a group, deviation by n - 1 plus 1e-6; fewer than two have 0."""
    if len(lengths) < 2:
        return [0.0] * len(lengths)
    mean, deviation = statistics.fmean(lengths), statistics.stdev(lengths)
    return [(length - mean) / (deviation + 1e-6) for length in lengths]


def shorter_is_better(
    family: TaskFamily, task: Task, completions: Sequence[Completion], params: Mapping[str, Any]
) -> list[Scored]:
    """On top of the task's own reward: a right completion comes to `exp(-length_decay z)`, a wrong one to -1.

    z is the completion's length among the right ones of its group. Where the group's three shortest completions have at most
    `length_free_tokens` on average, right ones keep a reward of 1.

    Source: Zhang and Zuo 2025, GRPO-LEAD, arXiv:2504.09696; -1 for wrong ones as in its users' code.
    """
    verdicts = [family.check(task, one.text) for one in completions]
    right = [number for number, one in enumerate(verdicts) if one.correct]
    scores = dict(zip(right, length_z_scores([completions[number].token_count for number in right]), strict=True))
    shortest = sorted(one.token_count for one in completions)[:3]
    is_free = sum(shortest) <= params["length_free_tokens"] * len(shortest)
    decay = 0.0 if is_free else params["length_decay"]
    out = []
    for number, (completion, verdict) in enumerate(zip(completions, verdicts, strict=True)):
        if completion.stop_reason == "error" or not completion.token_count:
            out.append(Scored())
            continue
        wanted = math.exp(-decay * scores[number]) if number in scores else -1.0
        last = completion.token_count
        out.append(Scored(spans=(RewardSpan(last - 1, last, wanted - verdict.reward, "shaping", "length"),)))
    return out


REWARDS: dict[str, RewardFunction] = {
    "task": task_checker,
    "overlong_penalty": _overlong,
    "shorter_is_better": shorter_is_better,
    "unparsable_penalty": label_rewards.unparsable_penalty,
    "step_labels": label_rewards.step_labels,
    "majority_vote": label_rewards.majority_vote,
    "confident_vote": label_rewards.confident_vote,
    "soft_labels": label_rewards.soft_labels,
}
# Of these nothing may be learned from an answer key, so an evaluation goes by the task's checker.
LABEL_FREE = frozenset({"majority_vote", "confident_vote", "soft_labels"})


def evaluation_functions(names: Sequence[str]) -> list[RewardFunction]:
    """What an evaluation goes by: the same functions, the task's checker where training has no answer key."""
    return [task_checker] if LABEL_FREE & set(names) else reward_functions(names)


def reward_functions(names: Sequence[str]) -> list[RewardFunction]:
    """The functions of those names; `module:function` is imported.

    Raises:
        ConfigError: one cannot be imported.
    """
    return [REWARDS[name] if name in REWARDS else own_reward(name) for name in names]


@functools.cache
def own_reward(name: str) -> RewardFunction:
    """A reward of one's own: `function(task, completions)` returns for each completion a number, None or a `Scored`.

    A number is the reward of the whole completion, earned at its last token; None and NaN say that it was not scored. Whether
    the completion is right and what it answered stay what the task's checker says.

    Raises:
        ConfigError: it cannot be imported.
    """
    function = own.load(name, key="hooks.H4")
    if not callable(function):
        raise ConfigError("hooks.H4", f"{name} is no function")
    version = own.version_of(function)

    def score(
        family: TaskFamily, task: Task, completions: Sequence[Completion], params: Mapping[str, Any]
    ) -> list[Scored]:
        results = list(function(task, completions))
        if len(results) != len(completions):
            raise ValueError(f"{name} gave {len(results)} rewards for {len(completions)} completions")
        return [
            _own_scored(family, task, completion, result, name, version)
            for completion, result in zip(completions, results, strict=True)
        ]

    return score


def _own_scored(family: TaskFamily, task: Task, completion: Completion, result: Any, name: str, version: str) -> Scored:
    if isinstance(result, Scored):
        return replace(result, spans=tuple(replace(span, version=version) for span in result.spans))
    unscored = replace(checked(family, task, completion), spans=())
    if not (result is None or isinstance(result, numbers.Real)):
        raise ValueError(f"{name} must give a number, None or a Scored for each completion, got {result!r:.80}")
    if result is None or math.isnan(result) or completion.stop_reason == "error" or not completion.token_count:
        return unscored
    last = completion.token_count - 1
    return replace(unscored, spans=(RewardSpan(last, last + 1, float(result), "outcome", name, version),))


def score_group(
    family: TaskFamily,
    task: Task,
    completions: Sequence[Completion],
    functions: Sequence[RewardFunction],
    *,
    truncated: str = "keep",
    params: Mapping[str, Any] = NO_PARAMS,
) -> list[Scored]:
    """Every completion of a group under all reward functions together.

    Spans add up; whether it is correct, its answer and its feedback come from the first function that says so.

    Args:
        params: knobs of the functions.
        truncated: `reward_zero` cancels the reward of a completion that was cut at the limit with a penalty at its last
            token; `keep` and `mask` leave it (masking is done on tokens).
    Raises:
        ValueError: a span lies outside its completion, has an unknown kind or a value that is not finite.
    """
    results = [function(family, task, completions, params) for function in functions]
    scored = [_merge(parts) for parts in zip(*results, strict=True)]
    for number, (completion, result) in enumerate(zip(completions, scored, strict=True)):
        _check_spans(result.spans, completion, number)
        if truncated == "reward_zero" and completion.stop_reason == "length" and result.spans:
            scored[number] = _cancelled(result, completion.token_count)
    return _clustered(scored)


def _merge(parts: Sequence[Scored]) -> Scored:
    return Scored(
        spans=tuple(span for part in parts for span in part.spans),
        correct=any(part.correct for part in parts),
        parsed_answer=next((part.parsed_answer for part in parts if part.parsed_answer is not None), None),
        feedback=next((part.feedback for part in parts if part.feedback), ""),
        drop_reason=next((part.drop_reason for part in parts if part.drop_reason), ""),
    )


def _check_spans(spans: Sequence[RewardSpan], completion: Completion, number: int) -> None:
    for span in spans:
        inside = 0 <= span.token_start < span.token_end <= completion.token_count
        if not inside or span.kind not in KINDS or not math.isfinite(span.value):
            raise ValueError(
                f"reward {span.name!r} gave completion {number} of {completion.token_count} tokens {span}; "
                f"a span lies inside its completion, is finite and of one of the kinds {', '.join(KINDS)}"
            )


def _cancelled(result: Scored, token_count: int) -> Scored:
    penalty = RewardSpan(token_count - 1, token_count, -result.reward, "penalty", "truncated")
    return replace(result, spans=(*result.spans, penalty))


def _clustered(scored: list[Scored]) -> list[Scored]:
    """Equal answers get equal numbers, from 0 in order of appearance."""
    numbers: dict[str, int] = {}
    return [
        result
        if result.parsed_answer is None
        else replace(result, answer_cluster=numbers.setdefault(result.parsed_answer, len(numbers)))
        for result in scored
    ]
