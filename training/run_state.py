"""What a run is made of while it trains."""

import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from training.attempt import Attempt
from training.config import RunConfig
from training.engines.base import Engine
from training.legality import Resolved
from training.optimizers import Optimizer, WeightAverage
from training.policy import Policy
from training.recording import Recorder
from training.seeds import SeedStream
from training.selection import Uniform
from training.side_models import SideModel
from training.supply import TaskSupply
from training.tasks.base import Task


@dataclass(slots=True)
class Run:
    """Everything a step needs. What changes from step to step is in `state()`."""

    config: RunConfig
    resolved: Resolved
    policy: Policy
    reference: Policy | None
    engine: Engine
    optimizer: Optimizer
    average: WeightAverage | None
    side_model: SideModel
    supply: TaskSupply
    selection: Uniform
    held_out: list[Task]
    sampler_seeds: SeedStream
    shuffle_seeds: SeedStream
    transform_rng: random.Random
    recorder: Recorder | None  # of the process that leads
    attempt: Attempt
    uid: str
    rollouts: int = 0
    running_mean: float = 0.0  # of the rewards of the steps before
    base_correct: list[int] = field(default_factory=list)  # per held-out prompt, of the base model
    coefficients: dict[str, float] = field(default_factory=dict)  # of terms whose weight may follow a target
    events: list[dict[str, Any]] = field(default_factory=list)  # of the step at hand
    seconds: dict[str, float] = field(default_factory=dict)  # phases of the step at hand

    def part(self, hook: str) -> str:
        return self.resolved.parts[hook][0]

    def state(self) -> dict[str, Any]:
        return {
            "stream": self.supply.state(),
            "selection": self.selection.state(),
            "sampler_seeds": self.sampler_seeds.state(),
            "shuffle_seeds": self.shuffle_seeds.state(),
            "transform_rng": self.transform_rng.getstate(),
            "rollouts": self.rollouts,
            "running_mean": self.running_mean,
            "coefficients": self.coefficients,
            "base_correct": self.base_correct,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.supply.restore(state["stream"])
        self.sampler_seeds.restore(state["sampler_seeds"])
        self.shuffle_seeds.restore(state["shuffle_seeds"])
        version, internal, gauss = state["transform_rng"]
        self.transform_rng.setstate((version, tuple(internal), gauss))
        self.rollouts = state["rollouts"]
        # Checkpoints of older versions keep none of these.
        self.running_mean = state.get("running_mean", 0.0)
        self.selection.restore(state.get("selection", {}))
        self.coefficients |= state.get("coefficients", {})
        self.base_correct = state["base_correct"]

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
