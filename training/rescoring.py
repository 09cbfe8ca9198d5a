"""Stored rollouts under other reward functions: their tasks are made again, their texts judged again."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from training import own
from training.config import RunConfig
from training.counterfactual import Ask, CannotSay, config_of
from training.legality import check_parts, resolve
from training.rewards import REWARDS, reward_functions
from training.rollouts import ScoredRollouts, score_rollouts
from training.selection import ChosenPrompt
from training.spans import Completion, RewardFunction, Scored
from training.stored import StoredStep, scores_of
from training.tasks.base import Task, TaskFamily
from training.tasks.stream import make_task

LONGEST_SOURCE = 20_000  # characters
LONGEST_ERROR = 300


@dataclass(frozen=True, slots=True)
class Rescored:
    scores: ScoredRollouts
    errors: dict[int, str]  # by rollout: what its reward raised


def rescored(step: StoredStep, config: RunConfig, ask: Ask, pieces: Sequence[bytes]) -> Rescored:
    """The rollouts of `step` under the rewards that `ask` names.

    A rollout whose reward raises counts as not scored, and the others of its group are judged without it.

    Args:
        pieces: of the vocabulary; empty where it is not stored.
    Raises:
        ConfigError, CannotSay: the rewards do not go with the recipe, or a task cannot be made again.
    """
    other = config_of(config, ask)
    resolved = resolve(other, on_worker=True)
    check_parts(other, resolved)
    if "step_labels" in resolved.parts["H4"] and not pieces:
        raise CannotSay("step_labels needs the text of every token, which is not stored")
    again = [_made_again(one, resolved.family, resolved.task_params) for one in step.rollouts.chosen]
    errors: dict[int, str] = {}
    scores = score_rollouts(
        replace(step.rollouts, chosen=again, pieces=pieces),
        resolved.family,
        [_Careful(function, errors) for function in reward_functions(resolved.parts["H4"])],
        truncated=config.truncated,
        params=resolved.params,
    )
    if not errors:
        return Rescored(scores, errors)
    scored = [Scored() if row in errors else one for row, one in enumerate(scores.scored)]
    return Rescored(scores_of(scored), errors)


def definitions(entries: Sequence[str]) -> list[dict[str, str]]:
    """What each reward is: its name, the version of its code and the code itself, cut where it is long."""
    return [_definition(name) for name in entries]


def _definition(name: str) -> dict[str, str]:
    function = REWARDS[name] if name in REWARDS else own.load(name, key="hooks.H4")
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = ""
    return {"name": name, "version": own.version_of(function), "source": source[:LONGEST_SOURCE]}


def _made_again(chosen: ChosenPrompt, family: TaskFamily, params: Mapping[str, Any]) -> ChosenPrompt:
    """The prompt's task with all that its checker reads.

    Raises:
        CannotSay: what is made is not what is stored.
    """
    stored = chosen.task
    if family.tasks:
        found = next((task for task in family.tasks(params) if task.prompt == stored.prompt), None)
    else:
        found = make_task(family, {**params, **stored.params}, stored.seed)
    if found is None or found.prompt != stored.prompt:
        raise CannotSay(f"the task of group {stored.payload['group']} cannot be made again by {family.name}")
    return replace(chosen, task=found)


class _Careful:
    """A reward function that judges without the completions it raises at, and notes their errors.

    It is called group after group, in the order of the rollouts.
    """

    def __init__(self, function: RewardFunction, errors: dict[int, str]) -> None:
        self._function, self._errors, self._start = function, errors, 0

    def __call__(
        self, family: TaskFamily, task: Task, completions: Sequence[Completion], params: Mapping[str, Any]
    ) -> list[Scored]:
        start, self._start = self._start, self._start + len(completions)
        try:
            return self._function(family, task, completions, params)
        except Exception as error:  # code of others fails in its own way
            whole = _said(error)
        failed: dict[int, str] = {}
        for number, one in enumerate(completions):
            try:
                self._function(family, task, [one], params)
            except Exception as error:
                failed[number] = _said(error)
        sound = [number for number in range(len(completions)) if number not in failed]
        found = [Scored()] * len(completions)
        try:
            if not failed:
                raise RuntimeError(whole)
            judged = self._function(family, task, [completions[at] for at in sound], params)
            for number, scored in zip(sound, judged, strict=True):
                found[number] = scored
        except Exception:
            # None is at fault alone, so all of the group are.
            failed |= dict.fromkeys(sound, whole)
        self._errors.update({start + number: said for number, said in failed.items()})
        return found


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
