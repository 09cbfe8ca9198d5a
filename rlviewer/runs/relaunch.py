"""The address of a launch form filled with the settings of a run, some of them changed."""

from collections.abc import Iterator, Mapping
from typing import Any

from django.http import QueryDict
from django.urls import reverse

from rlviewer.runs.models import Run

MOST_NAME = 200  # characters, as the run's own


def relaunch_url(run: Run, changes: Mapping[str, Any] | None = None, scale: Mapping[str, float] | None = None) -> str:
    """The form for a run like `run`; `changes` are settings by dotted key, `scale` multiplies numbers of the run.

    Empty when the run has no settings to start from (an imported one), or lacks a number to multiply.
    """
    settings = dict(_flat(run.config))
    scaled = {key: _times(settings.get(key), factor) for key, factor in (scale or {}).items()}
    if "algorithm" not in settings or None in scaled.values():
        return ""
    query = QueryDict(mutable=True)
    # Which task and algorithm these settings belong to: the form then drops what another one does not have.
    query["shown_task"], query["shown_algorithm"] = str(settings.get("task.name", "")), str(settings["algorithm"])
    changed = {**scaled, **(changes or {})}
    for key, value in {**settings, **changed}.items():
        query[key] = _text(value)
    # Two runs with one name would look alike in every list.
    told = ", ".join(f"{key.rpartition('.')[2]} {_text(value)}" for key, value in changed.items())
    query["name"] = f"{run.name}, {told}"[-MOST_NAME:] if told else run.name
    return f"{reverse('run-launch', args=[run.project_id])}?{query.urlencode()}"


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _times(value: Any, factor: float) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return round(value * factor) if isinstance(value, int) else round(value * factor, 6)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
