"""A task family of one's own, `module:function`. Imports no torch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from training import own
from training.config import ConfigError
from training.tasks.base import Task, TaskFamily, Verdict
from training.tasks.stream import make_task

# Tasks drawn before the first step to see that the family keeps its promises.
TRIALS = 16


def stand_in(name: str) -> TaskFamily:
    """What is known of the family where it must not be looked up: its name."""

    def unknown(*_: Any) -> NoReturn:
        raise ValueError(f"{name} is looked up on the worker only")

    return TaskFamily(
        name=name, title=name, help="Data or code on the worker.", params={}, generate=unknown, check=unknown
    )


def load(name: str) -> TaskFamily:
    """The family that the function of that name returns, or that stands there itself.

    Raises:
        ConfigError: it cannot be imported or is no family.
    """
    found = own.load(name, key="task.name")
    version = own.version_of(found)
    if callable(found) and not isinstance(found, TaskFamily):
        try:
            found = found()
        except Exception as error:  # code of others fails in its own way
            raise ConfigError("task.name", f"{name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, TaskFamily):
        raise ConfigError(
            "task.name",
            f"{name} must be a training.tasks.base.TaskFamily or a function that returns one, got {found!r:.80}",
        )
    return replace(found, name=name, version=version)


def check_sound(family: TaskFamily, params: Mapping[str, Any]) -> None:
    """Draw a few tasks and see that they are tasks, repeatable, and solved by their own answers.

    Raises:
        ConfigError: says which promise is broken.
    """
    for seed in range(TRIALS):
        try:
            task = make_task(family, params, seed)
            verdict = family.check(task, task.solution)
        except Exception as error:  # code of others fails in its own way
            raise ConfigError(
                "task.name", f"{family.name} failed on task {seed}: {type(error).__name__}: {error}"
            ) from error
        _check_task(family, params, task, verdict)


def _check_task(family: TaskFamily, params: Mapping[str, Any], task: Task, verdict: Any) -> None:
    if not isinstance(verdict, Verdict):
        problem = f"its checker must return a training.tasks.base.Verdict, got {verdict!r:.80}"
    elif not isinstance(task.prompt, str) or not task.prompt or not isinstance(task.answer, str):
        problem = f"a task needs a prompt and an answer, both text, got {task.prompt!r:.40} and {task.answer!r:.40}"
    elif not verdict.correct:
        problem = f"its checker rejects the solution {task.solution!r:.40} of its own task {task.prompt!r:.40}"
    elif make_task(family, params, task.seed) != task:
        problem = "the same seed gives another task; draw from the random generator it is given and from nothing else"
    else:
        return
    raise ConfigError("task.name", f"{family.name}: {problem}")
