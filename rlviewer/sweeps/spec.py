"""What a sweep is: a base configuration, the search space over its settings, and how to search it. TOML in and out."""

import dataclasses
import itertools
import json
import math
import random
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from training.config import ConfigError, RunConfig, bounded, choice, from_table, text, to_toml
from training.recipes import named

SAMPLERS = ("grid", "random", "tpe", "cmaes")
PRUNERS = ("none", "median", "hyperband")
OBJECTIVES = ("pass@1", "reward")

Point = dict[str, Any]  # a value by dotted key


@dataclass(frozen=True, slots=True)
class Parameter:
    """One dimension of the search space: choices, or a range."""

    choices: list[Any] = field(default_factory=list)
    low: float | None = None
    high: float | None = None
    step: float | None = None
    log: bool = False
    is_int: bool = False

    @classmethod
    def from_table(cls, key: str, raw: Any) -> Self:
        where = f"parameters.{key}"
        if not isinstance(raw, dict) or (unknown := set(raw) - {"choices", "low", "high", "step", "log"}):
            told = f"; unknown: {', '.join(sorted(unknown))}" if isinstance(raw, dict) else ""
            raise ConfigError(where, f"must be a table of choices, or of low, high, step and log{told}")
        if "choices" in raw:
            choices = raw["choices"]
            if len(raw) > 1 or not isinstance(choices, list) or not choices:
                raise ConfigError(where, "needs a list of at least one choice, and nothing beside it")
            told_twice = [value for number, value in enumerate(choices) if value in choices[:number]]
            if told_twice:
                raise ConfigError(where, f"names {told_twice[0]!r} twice")
            return cls(choices=choices)
        return cls._range(where, raw)

    @classmethod
    def _range(cls, where: str, raw: dict[str, Any]) -> Self:
        ends = [raw.get("low"), raw.get("high"), raw.get("step", 1)]
        if not all(isinstance(end, int | float) and not isinstance(end, bool) and math.isfinite(end) for end in ends):
            raise ConfigError(where, "needs numbers as low and high")
        low, high, step = raw["low"], raw["high"], raw.get("step")
        is_log = raw.get("log", False)
        if not isinstance(is_log, bool):
            raise ConfigError(where, "log must be true or false")
        if low >= high:
            raise ConfigError(where, f"low must be below high, got {low} and {high}")
        if is_log and low <= 0:
            raise ConfigError(where, f"on a logarithmic scale low must be above 0, got {low}")
        if step is not None and (is_log or step <= 0 or step > high - low):
            raise ConfigError(where, "step must be above 0, fit into the range, and cannot go with log")
        return cls(low=low, high=high, step=step, log=is_log, is_int=all(isinstance(end, int) for end in ends))

    @property
    def is_range(self) -> bool:
        return not self.choices

    def values(self) -> list[Any]:
        """What a grid tries; empty for a range without steps."""
        if self.choices:
            return list(self.choices)
        if self.step is None or self.low is None:
            return []
        found = (self.low + number * self.step for number in range(self.count()))
        return [int(value) if self.is_int else round(value, 12) for value in found]

    def count(self) -> int:
        if self.choices:
            return len(self.choices)
        if self.step is None or self.low is None or self.high is None:
            return 0
        return math.floor((self.high - self.low) / self.step + 1e-9) + 1

    def ends(self) -> list[Any]:
        """The values that say whether all of it may be."""
        return list(self.choices) or [self.low, self.high]

    def draw(self, rng: random.Random) -> Any:
        if values := self.values() if self.choices or (self.step and self.count() < 10_000) else []:
            return rng.choice(values)
        low, high = float(self.low or 0), float(self.high or 0)
        value = math.exp(rng.uniform(math.log(low), math.log(high))) if self.log else rng.uniform(low, high)
        value = min(max(value, low), high)
        return round(value) if self.is_int else value

    def to_table(self) -> dict[str, Any]:
        if self.choices:
            return {"choices": self.choices}
        table: dict[str, Any] = {"low": self.low, "high": self.high}
        return table | ({"step": self.step} if self.step is not None else {}) | ({"log": True} if self.log else {})


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """Everything that decides what a sweep tries. 0 as a budget means none."""

    name: str = text("sweep", help="Shown in lists.")
    sampler: str = choice(
        "grid",
        SAMPLERS,
        help="How points are chosen: every one of the grid, at random, by TPE, or by CMA-ES (numbers only).",
    )
    pruner: str = choice(
        "none",
        PRUNERS,
        help="Ends trials early that fall behind: below the median of the others at the same step, or by Hyperband.",
    )
    objective: str = choice(
        "pass@1", OBJECTIVES, help="pass@1 of the last evaluation, or the mean reward of the last steps."
    )
    direction: str = choice("maximize", ("maximize", "minimize"), help="Which way is better.")
    last_steps: int = bounded(10, low=1, high=100_000, help="Steps whose mean reward is the objective.")
    trials: int = bounded(20, low=1, high=1_000_000, help="Points to try; a grid tries all of its own.")
    seeds: list[int] = field(
        default_factory=lambda: [0], metadata={"help": "Every point is trained once with each of these seeds."}
    )
    concurrency: int = bounded(1, low=1, high=256, help="Runs in flight at a time.")
    priority: int = bounded(
        0, low=-100, high=100, help="A sweep starts nothing while one of higher priority has runs waiting."
    )
    retries: int = bounded(1, low=0, high=20, help="Times that a failed run is resumed before its trial counts failed.")
    max_steps: int = bounded(0, low=0, help="Budget of training steps over all runs; 0: none.")
    max_tokens: int = bounded(0, low=0, help="Budget of tokens over all runs; 0: none.")
    max_hours: float = bounded(0.0, low=0, help="Budget of training hours over all runs; 0: none.")
    leave_out_illegal: bool = field(
        default=False, metadata={"help": "Leaves out points whose settings do not go together, instead of refusing."}
    )
    parameters: dict[str, Any] = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """Raises ConfigError, whose key names the field at fault."""
        spec: Self = from_table(cls, raw)
        if not spec.name.strip() or len(spec.name) > 150:
            raise ConfigError("name", "needs a name of at most 150 characters")
        if not spec.seeds or any(isinstance(s, bool) or not isinstance(s, int) or s < 0 for s in spec.seeds):
            raise ConfigError("seeds", "needs whole numbers from 0 on, such as 0, 1, 2")
        if len(set(spec.seeds)) < len(spec.seeds):
            raise ConfigError("seeds", "names a seed twice")
        if "seed" in spec.parameters:
            raise ConfigError("parameters.seed", "seeds have a field of their own")
        if not spec.parameters:
            raise ConfigError("parameters", "needs at least one parameter to vary")
        space = spec.space
        if spec.sampler == "grid":
            for key, parameter in space.items():
                if parameter.is_range and parameter.step is None:
                    raise ConfigError(f"parameters.{key}", "a grid needs choices, or a range with a step")
        if spec.sampler == "cmaes" and not any(parameter.is_range for parameter in space.values()):
            raise ConfigError("sampler", "CMA-ES moves numbers: give at least one parameter a range")
        return spec

    @classmethod
    def from_toml(cls, source: str) -> Self:
        try:
            raw = tomllib.loads(source)
        except (ValueError, RecursionError) as error:
            raise ConfigError("", f"not valid TOML: {error}") from None
        return cls.from_dict(raw)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_toml(self) -> str:
        return to_toml(self.to_dict())

    @property
    def space(self) -> dict[str, Parameter]:
        return {key: Parameter.from_table(key, raw) for key, raw in self.parameters.items()}

    def point_count(self) -> int:
        """Points that will be tried, illegal ones included; never enumerated."""
        if self.sampler != "grid":
            return self.trials
        return math.prod(parameter.count() for parameter in self.space.values())

    def run_count(self) -> int:
        return self.point_count() * len(self.seeds)

    def grid(self) -> Iterator[Point]:
        space = self.space
        for values in itertools.product(*(parameter.values() for parameter in space.values())):
            yield dict(zip(space, values, strict=True))

    def draws(self, count: int) -> Iterator[Point]:
        """Points of the space at random, the same each time."""
        rng, space = random.Random(0), self.space  # noqa: S311
        for _ in range(count):
            yield {key: parameter.draw(rng) for key, parameter in space.items()}

    def config(self, point: Mapping[str, Any], seed: int = 0, *, name: str = "") -> RunConfig:
        """The run at `point`. Another algorithm or task than the base's drops the knobs that belonged to that.

        Raises:
            ConfigError: no such setting, or a value that it cannot have.
        """
        raw = json.loads(json.dumps(self.base))
        algorithm = point.get("algorithm", raw.get("algorithm", "grpo"))
        if algorithm != raw.get("algorithm", "grpo"):
            raw["algorithm_params"] = {}
            recipe = named(algorithm) if isinstance(algorithm, str) else None
            for table, settings in (recipe.settings if recipe else {}).items():
                raw[table] = {**raw.get(table, {}), **settings}
        if "task.name" in point and point["task.name"] != raw.get("task", {}).get("name", "addition"):
            raw["task"] = {**raw.get("task", {}), "params": {}}
        for key, value in point.items():
            put(raw, key, value)
        return RunConfig.from_dict({**raw, "seed": seed, "name": name or self.name})


def put(raw: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        raw = raw.setdefault(part, {})
        if not isinstance(raw, dict):
            raise ConfigError(key, "is no setting")
    raw[last] = value


def told(point: Mapping[str, Any]) -> str:
    """A point in a few words."""
    return ", ".join(f"{key.rpartition('.')[2]} {shown(value)}" for key, value in point.items())


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) if isinstance(value, str | int) else json.dumps(value)


def spec_fields() -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """The fields that a form shows, with their types."""
    hints = typing.get_type_hints(SweepSpec)
    for one in dataclasses.fields(SweepSpec):
        if one.name not in {"parameters", "base"}:
            yield one, hints[one.name]
