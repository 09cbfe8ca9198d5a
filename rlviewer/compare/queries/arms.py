"""The sets of runs that a comparison is about: runs that differ only in their seed form one."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.utils.http import urlencode

from rlviewer.accounts.models import User
from rlviewer.lib.colour import run_colour
from rlviewer.runs.models import Run

MOST_RUNS = 64
MOST_ARMS = 8
# How runs are put into sets.
GROUPINGS = {"seeds": "equal but for the seed", "algorithm": "of one algorithm", "run": "each by itself"}
# Of a config: what tells the repeats of a set apart.
OF_A_REPEAT = ("seed", "name")
TITLED_BY = 2  # settings that name a set
MISSING = object()


@dataclass(frozen=True, slots=True)
class Arm:
    """One set. Its key is the number of its oldest run; `repeats` are runs with the seed of another one, left out."""

    key: int
    title: str
    runs: Sequence[Run]
    repeats: Sequence[Run]
    colour: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A line of the table of what differs: the value of each set, several where its runs disagree."""

    key: str
    values: Sequence[str]
    titles: Sequence[str] = ()

    @property
    def of_sets(self) -> list[tuple[str, str]]:
        return list(zip(self.titles, self.values, strict=True))


@dataclass(frozen=True, slots=True)
class Choice:
    """What the address asks for. `hidden`: runs that are not there, or not for this person."""

    runs: Sequence[Run]
    arms: Sequence[Arm]
    settings: Sequence[Setting]
    grouping: str
    baseline: Arm | None
    hidden: int = 0
    left_out: int = 0  # sets beyond the most that are shown
    query: Mapping[str, str] = field(default_factory=dict)

    def address(self, **changed: str) -> str:
        return "?" + urlencode({key: value for key, value in {**self.query, **changed}.items() if value})

    @property
    def ids(self) -> str:
        return ",".join(str(run.pk) for run in self.runs)

    @property
    def without(self) -> list[tuple[Run, str]]:
        """Each run with the address of the page without it."""
        return [
            (run, self.address(runs=",".join(str(other.pk) for other in self.runs if other != run)))
            for run in self.runs
        ]

    @property
    def ordered(self) -> list[Arm]:
        """The baseline first."""
        return sorted(self.arms, key=lambda arm: arm is not self.baseline)


def choice_of(user: User, project_id: int, query: Mapping[str, str]) -> Choice:
    """The runs of `?runs=`, in sets as `?by=` says, against `?baseline=`. One query."""
    ids = list(
        dict.fromkeys(int(part) for part in query.get("runs", "").split(",") if part.isdecimal() and len(part) < 19)
    )[:MOST_RUNS]
    found = Run.objects.visible_to(user).filter(project=project_id).in_bulk(ids)
    runs = [found[pk] for pk in ids if pk in found]
    grouping = query.get("by", "") if query.get("by") in GROUPINGS else "seeds"
    sets: dict[Any, list[Run]] = {}
    for run in runs:
        own = {"seeds": run.repeat_group or run.pk, "algorithm": run.algorithm, "run": run.pk}[grouping]
        sets.setdefault(own, []).append(run)
    rows = list(sets.values())[:MOST_ARMS]
    settings = _settings(rows)
    colours = _colours([min(run.pk for run in row) for row in rows])
    arms = [_arm(row, settings, at, colours[at], by_run=grouping == "run") for at, row in enumerate(rows)]
    settings = [replace(setting, titles=[arm.title for arm in arms]) for setting in settings]
    wanted = query.get("baseline", "")
    baseline = next((arm for arm in arms if str(arm.key) == wanted), arms[0] if arms else None)
    return Choice(
        runs, arms, settings, grouping, baseline, len(ids) - len(runs), len(sets) - len(rows),
        {key: query[key] for key in ("runs", "by", "baseline", "axis", "measure") if query.get(key)},
    )  # fmt: skip


def _colours(keys: Sequence[int]) -> list[str]:
    """The colour of each set's oldest run, or the next one that is free."""
    free = list(dict.fromkeys(run_colour(number) for number in range(MOST_ARMS)))
    found = []
    for key in keys:
        wanted = run_colour(key)
        found.append(wanted if wanted in free or not free else free[0])
        if found[-1] in free:
            free.remove(found[-1])
    return found


def _arm(runs: Sequence[Run], settings: Sequence[Setting], at: int, colour: str, *, by_run: bool) -> Arm:
    newest: dict[int, Run] = {}
    for run in sorted(runs, key=lambda run: run.pk):
        newest[run.seed] = run
    distinct = [run for run in runs if newest[run.seed] is run]
    key = min(run.pk for run in runs)
    return Arm(
        key,
        f"{runs[0].name} #{runs[0].pk}" if by_run else _title(runs[0], settings, at),
        distinct,
        [run for run in runs if run not in distinct],
        colour,
    )


def _title(run: Run, settings: Sequence[Setting], at: int) -> str:
    """The algorithm, and the first settings in which the sets differ."""
    told = [s for s in settings if s.key != "algorithm" and not s.key.startswith("code") and s.values[at]]
    own = [f"{setting.key.rsplit('.', 1)[-1]} {setting.values[at]}" for setting in told[:TITLED_BY]]
    return ", ".join([run.algorithm, *own])


def _settings(rows: Sequence[Sequence[Run]]) -> list[Setting]:
    """What differs between the sets, or inside of one: settings of the config, then code and machine."""
    flat = [[_flat_run(run) for run in row] for row in rows]
    keys = list(dict.fromkeys(key for row in flat for run in row for key in run))
    found = []
    for key in keys:
        values = [list(dict.fromkeys(run.get(key, "") for run in row)) for row in flat]
        if len({tuple(value) for value in values}) > 1 or any(len(value) > 1 for value in values):
            found.append(Setting(key, [" | ".join(v or "not set" for v in value) for value in values]))
    return found


def _flat_run(run: Run) -> dict[str, str]:
    named = {"algorithm": run.algorithm, "task": run.task, "model": run.model}
    config = {key: value for key, value in _flat(run.config) if key not in OF_A_REPEAT and key not in named}
    machine = {f"machine.{key}": value for key, value in _flat(run.hardware)}
    return named | config | {"code version": run.code_version} | machine


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)
