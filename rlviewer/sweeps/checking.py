"""What is wrong with a sweep, said before anything is stored; and what it will cost."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from rlviewer.accounts.models import User
from rlviewer.launch.estimates import Estimate, count_rollouts, estimate
from rlviewer.launch.forms import config_settings
from rlviewer.launch.model_folders import check_model
from rlviewer.runs.models import Run
from rlviewer.sweeps.spec import Point, SweepSpec, told
from training import legality
from training.config import ConfigError, RunConfig
from training.recipes import named
from training.tasks import catalog

# Points that are tried out of a space that cannot be enumerated.
DRAWN_POINTS = 40
FREE_TABLES = ("algorithm_params.", "task.params.", "hooks.")


@dataclass(frozen=True, slots=True)
class Illegal:
    point: Point
    problem: str

    @property
    def told(self) -> str:
        return told(self.point)


@dataclass(frozen=True, slots=True)
class Checked:
    """A sweep that may be launched. `legal` are all its points for a grid, else some drawn from its space."""

    spec: SweepSpec
    legal: list[tuple[Point, RunConfig]]
    illegal: list[Illegal]

    @property
    def point_count(self) -> int:
        return len(self.legal) if self.spec.sampler == "grid" else self.spec.trials

    @property
    def run_count(self) -> int:
        return self.point_count * len(self.spec.seeds)


class IllegalPoints(ConfigError):
    """Some points cannot run; `checked` says which."""

    def __init__(self, checked: Checked) -> None:
        bad, good = len(checked.illegal), len(checked.legal)
        which = "points of the grid" if checked.spec.sampler == "grid" else "points drawn from the space"
        told_bad = f"{bad} of {bad + good} {which} cannot run, such as {checked.illegal[0].told}: "
        super().__init__(
            "leave_out_illegal", f"{told_bad}{checked.illegal[0].problem}. Leave them out, or change the space."
        )
        self.checked = checked


def check(spec: SweepSpec, user: User) -> Checked:
    """Every point of a grid, or a sample of a larger space, held against what the trainer may combine.

    Raises:
        ConfigError: its key names the field, `parameters.KEY` for one of the search space.
    """
    most = settings.SWEEP_RUNS
    if (runs := spec.run_count()) > most:
        raise ConfigError("parameters", f"come to {runs:,} runs; the most is {most:,} (RLVIEWER_SWEEP_RUNS)")
    for key in spec.parameters:
        _check_key(spec, key)
    _check_domains(spec, user)
    legal: list[tuple[Point, RunConfig]] = []
    illegal: list[Illegal] = []
    for point in spec.grid() if spec.sampler == "grid" else spec.draws(DRAWN_POINTS):
        try:
            legal.append((point, legal_config(spec, point, user)))
        except ConfigError as error:
            illegal.append(Illegal(point, str(error)))
    checked = Checked(spec, legal, illegal)
    if not legal:
        raise ConfigError("parameters", f"no point can run: {illegal[0].told}: {illegal[0].problem}")
    if illegal and not spec.leave_out_illegal:
        raise IllegalPoints(checked)
    return checked


def legal_config(spec: SweepSpec, point: Point, user: User, *, seed: int = 0, name: str = "") -> RunConfig:
    """Raises ConfigError when the run at `point` is not possible, or not for this person."""
    config = spec.config(point, seed, name=name)
    legality.check(config)
    check_model(config.model.path, user)
    return config


def keys(spec: SweepSpec, user: User) -> dict[str, str]:
    """Help of every setting that the sweep may vary, by dotted key."""
    found = {setting.key: setting.help for setting in config_settings(user) if setting.key not in {"name", "seed"}}
    for algorithm in _values(spec, "algorithm", spec.base.get("algorithm", "grpo")):
        if recipe := named(str(algorithm)):
            found |= {f"algorithm_params.{name}": knob.help for name, knob in recipe.params.items()}
    for task in _values(spec, "task.name", spec.base.get("task", {}).get("name", "addition")):
        try:
            family = catalog.resolve(str(task))
        except ConfigError:
            continue
        found |= {f"task.params.{name}": knob.help for name, knob in family.params.items()}
    return found


def _values(spec: SweepSpec, key: str, default: Any) -> list[Any]:
    parameter = spec.space.get(key)
    return parameter.ends() if parameter and parameter.choices else [default]


def _check_key(spec: SweepSpec, key: str) -> None:
    known = keys(spec, User(is_superuser=True))
    if key in known or key.startswith("hooks."):
        return
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"parameters.{key}", f"no setting is called {key!r}{hint}")


def _check_domains(spec: SweepSpec, user: User) -> None:
    """Each end of each parameter by itself: a value that its setting never takes is no matter of combination."""
    for key, parameter in spec.space.items():
        for value in parameter.ends():
            problem = _problem_of(spec, key, value, user)
            if problem is not None:
                raise ConfigError(f"parameters.{key}", problem)


def _problem_of(spec: SweepSpec, key: str, value: Any, user: User) -> str | None:
    """None when some algorithm and task of the sweep take the value, or when what is wrong is something else."""
    problem = None
    for around in _surroundings(spec, key):
        try:
            config = spec.config({**around, key: value})
            legality.resolve(config)
            if key == "model.path":
                check_model(config.model.path, user)
        except ConfigError as error:
            if error.key == key:
                problem = error.message
                continue
        return None
    return problem


def _surroundings(spec: SweepSpec, key: str) -> Iterator[Point]:
    axes = {"algorithm_params.": "algorithm", "task.params.": "task.name"}
    axis = next((name for prefix, name in axes.items() if key.startswith(prefix)), "")
    values = spec.space[axis].choices if axis in spec.space else []
    yield from ({axis: value} for value in values)
    if not values:
        yield {}


@dataclass(frozen=True, slots=True)
class Cost:
    runs: int
    steps: int
    tokens: int
    rollouts: int
    seconds: float  # of training, one run after the other
    disk_bytes: int
    basis: str


def cost(checked: Checked, runs: QuerySet[Run]) -> Cost:
    """From what each run is estimated to take; points that differ in nothing that costs are asked once."""
    asked: dict[tuple[Any, ...], Estimate] = {}
    found: list[tuple[int, Estimate]] = []
    for _, config in checked.legal:
        key = (config.model, config.task.name, config.sampling.max_new_tokens, count_rollouts(config))
        if key not in asked:
            asked[key] = estimate(config, runs)
        found.append((config.steps, asked[key]))
    factor = checked.run_count / len(found)
    return Cost(
        runs=checked.run_count,
        steps=round(factor * sum(steps for steps, _ in found)),
        tokens=round(factor * sum(one.tokens for _, one in found)),
        rollouts=round(factor * sum(one.rollouts for _, one in found)),
        seconds=factor * sum(one.seconds for _, one in found),
        disk_bytes=round(factor * sum(one.disk_bytes for _, one in found)),
        basis=found[0][1].basis,
    )
