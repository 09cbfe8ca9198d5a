"""Every task family by name. Imports no torch; a reasoning-gym dataset is loaded when it is named."""

from collections.abc import Mapping
from typing import Any

from training import own
from training.config import ConfigError, TaskConfig
from training.params import check_params, unknown
from training.tasks import (
    addition,
    countdown,
    files,
    modular_arithmetic,
    multiplication,
    natbool_dag,
    own_family,
    reasoning_gym,
    reversal,
    sorting,
)
from training.tasks.base import TaskFamily

FAMILIES: dict[str, TaskFamily] = {
    "addition": addition.FAMILY,
    "multiplication": multiplication.FAMILY,
    "modular_arithmetic": modular_arithmetic.FAMILY,
    "sorting": sorting.FAMILY,
    "reversal": reversal.FAMILY,
    "countdown": countdown.FAMILY,
    "natbool_dag": natbool_dag.FAMILY,
}


def resolve(name: str) -> TaskFamily:
    """The family of that name.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if name in FAMILIES:
        return FAMILIES[name]
    if name.startswith(reasoning_gym.PREFIX):
        return reasoning_gym.family(name.removeprefix(reasoning_gym.PREFIX))
    raise ConfigError("task.name", unknown(name, names(), "task"))


def names() -> tuple[str, ...]:
    """All that `resolve` knows: our own families, then the library's datasets."""
    return (*FAMILIES, *(reasoning_gym.PREFIX + name for name in reasoning_gym.DATASETS))


def is_own(name: str) -> bool:
    """Whether `name` stands for data or code of one's own, which only a worker looks up."""
    is_ours = name in FAMILIES or name.startswith(reasoning_gym.PREFIX)
    return name.startswith(files.PREFIX) or (own.is_own(name) and not is_ours)


def placed(task: TaskConfig, *, on_worker: bool) -> tuple[TaskFamily, dict[str, Any]]:
    """The family of a run and its knobs.

    Elsewhere than on the worker, data and code of one's own are not touched: a stand-in that knows only its name.

    Raises:
        ConfigError: there is no such family, or a knob is at fault.
    """
    if not is_own(task.name):
        family = resolve(task.name)
    elif not on_worker:
        return own_family.stand_in(task.name), dict(task.params)
    elif task.name.startswith(files.PREFIX):
        family = files.family(task.name.removeprefix(files.PREFIX))
    else:
        family = own_family.load(task.name)
    params = make_params(family, task.params)
    if is_own(task.name) and not family.tasks:
        own_family.check_sound(family, params)
    return family, params


def make_params(family: TaskFamily, raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` completed with the family's defaults.

    Raises:
        ConfigError: names the knob at fault as task.params.NAME.
    """
    params = check_params(family.params, raw, where="task.params")
    if family.check_together:
        family.check_together(params)
    return params
