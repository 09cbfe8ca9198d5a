"""Every task family by name. Imports no torch; a reasoning-gym dataset is loaded when it is named."""

from collections.abc import Mapping
from typing import Any

from training.config import ConfigError
from training.params import check_params, unknown
from training.tasks import (
    addition,
    countdown,
    modular_arithmetic,
    multiplication,
    natbool_dag,
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


def make_params(family: TaskFamily, raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` completed with the family's defaults.

    Raises:
        ConfigError: names the knob at fault as task.params.NAME.
    """
    params = check_params(family.params, raw, where="task.params")
    if family.check_together:
        family.check_together(params)
    return params
