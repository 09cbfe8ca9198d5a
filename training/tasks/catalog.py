"""Every task family by name. Imports no torch; a reasoning-gym dataset is loaded when it is named."""

from collections.abc import Mapping
from typing import Any

from training.config import ConfigError
from training.params import check_params, unknown
from training.tasks import addition
from training.tasks.base import TaskFamily

FAMILIES: dict[str, TaskFamily] = {
    "addition": addition.FAMILY,
}


def resolve(name: str) -> TaskFamily:
    """The family of that name.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if name in FAMILIES:
        return FAMILIES[name]
    raise ConfigError("task.name", unknown(name, FAMILIES, "task"))


def make_params(family: TaskFamily, raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` completed with the family's defaults.

    Raises:
        ConfigError: names the knob at fault as task.params.NAME.
    """
    params = check_params(family.params, raw, where="task.params")
    if family.check_together:
        family.check_together(params)
    return params
