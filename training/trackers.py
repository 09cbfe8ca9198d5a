"""H9 with a memory: what the base model can do with each prompt of a pool, and a running value of each. Imports no torch."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from training import voting
from training.config import ConfigError
from training.seeds import derived_seed
from training.selection import ChosenPrompt, Rescore, Response, SeenGroup, Uniform
from training.supply import TaskSupply
from training.tasks.base import Task
from training.tasks.pool import TaskPool
from training.tasks.stream import task_key

ALL = "all"


def base_rates(seen: SeenGroup) -> dict[str, Any]:
    """What a chosen prompt says of the base model; a sample that was not scored does not count."""
    scored = [correct for correct, outcome in zip(seen.correct, seen.outcomes, strict=True) if not math.isnan(outcome)]
    counts = voting.votes(seen.answers)
    return {
        "base_pass_rate": sum(scored) / len(scored) if scored else None,
        "base_samples": len(scored),
        "base_majority": max(counts.values(), default=0) / max(len(seen.answers), 1),
    }


def difficulty_band(
    pass_rates: Sequence[float | None], *, preset: str, share: float, includes_unsolved: bool, rng: random.Random
) -> list[int]:
    """Positions of `share` of the prompts: the hardest, middle or easiest by the base model's pass rate, or random ones.

    A prompt the base model never solved is left out unless `includes_unsolved`, one without a scored sample always. Prompts of
    equal pass rate stand in a random order, which follows from `rng`. Fewer eligible prompts than wanted are all taken.

    Raises:
        ValueError: no prompt is left.
    Source: "Hard examples are all you need", arXiv:2508.14094.
    """
    wanted = max(round(share * len(pass_rates)), 1)
    eligible = [at for at, rate in enumerate(pass_rates) if rate is not None and (rate > 0 or includes_unsolved)]
    if not eligible:
        raise ValueError("the base model solved none of the prompts")
    rng.shuffle(eligible)
    if preset != "random":
        eligible.sort(key=lambda at: pass_rates[at] or 0.0, reverse=preset == "easy")
    start = max((len(eligible) - wanted) // 2, 0) if preset == "middle" else 0
    return sorted(eligible[start : start + wanted])


class BaseProfile(Uniform):
    """Prompts of a pool picked by what the base model could do with them before training."""

    def __init__(self, supply: TaskSupply, params: Mapping[str, Any], seed: int) -> None:
        super().__init__(supply, params, seed)
        if not isinstance(supply, TaskPool):
            raise ValueError("needs a pool of prompts that come again")
        self.tasks = supply.tasks
        self.rates: list[dict[str, Any]] = []
        self.kept: TaskPool | None = None

    @property
    def to_profile(self) -> list[Task]:
        return [] if self.rates else self.tasks

    @property
    def profile_samples(self) -> int:
        samples: int = self.params["profile_samples"]
        return samples

    def learn_profile(self, seen: Sequence[SeenGroup]) -> None:
        self._set_rates([base_rates(group) for group in seen])

    def choose(self, count: int) -> list[ChosenPrompt]:
        if self.kept is None:
            raise ValueError("the base model has not been asked yet")
        return [ChosenPrompt(task, **self._known(task)) for task in self.kept.take(count)]

    def _known(self, task: Task) -> dict[str, Any]:
        position = self.position(task)
        return {"position": position, **self.rates[position]}

    def position(self, task: Task) -> int:
        assert isinstance(self.supply, TaskPool)
        return self.supply.position[task_key(task)]

    def _set_rates(self, rates: list[dict[str, Any]]) -> None:
        self.rates = rates
        band = list(range(len(self.tasks)))
        if self.params["preset"] != ALL:
            try:
                band = difficulty_band(
                    [rate["base_pass_rate"] for rate in rates],
                    preset=self.params["preset"],
                    share=self.params["keep_share"],
                    includes_unsolved=self.params["include_unsolved"],
                    rng=random.Random(derived_seed(self.seed, "difficulty ties", 0)),  # noqa: S311 - reproducible
                )
            except ValueError as error:
                raise ConfigError(
                    "algorithm_params.include_unsolved",
                    f"{error} in {self.profile_samples} samples each; set it to true, take more samples or easier tasks",
                ) from None
        self.kept = TaskPool([self.tasks[position] for position in band], self.seed)

    def observe(self, step: int, seen: Sequence[SeenGroup], rescore: Rescore) -> dict[str, float]:
        assert self.kept is not None
        return {"pool_prompts": float(len(self.kept.tasks))}

    def state(self) -> dict[str, Any]:
        return {"rates": self.rates, "taken": self.kept.taken if self.kept else 0}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state.get("rates"):
            self._set_rates(list(state["rates"]))
            assert self.kept is not None
            self.kept.taken = int(state["taken"])


# Beta counts that a forgotten prompt keeps: 1 / (1 - 0.875), as many as the fastest forgetting leaves in the long run.
FIRST_COUNT, SLOWEST, FASTEST = 8, 0.96, 0.875


def first_counts(samples: int, successes: float) -> tuple[float, float]:
    """Beta counts (a, b) of a prompt after `samples` of the base model; half a success and half a failure without any.

    Source: Xu and Ding 2025, SPO, arXiv:2509.13232, and its released code.
    """
    if not samples:
        return 0.5, 0.5
    return (
        FIRST_COUNT * (successes + 0.5) / (samples + 1),
        FIRST_COUNT * (samples - successes + 0.5) / (samples + 1),
    )


def forgetting(drift: float, half_life: float) -> float:
    """What remains of old counts after the policy moved by `drift` nats per token: halved each `half_life`, in bounds."""
    return min(max(2 ** (-drift / half_life), FASTEST), SLOWEST)


def sampling_weight(value: float, count: float, *, exponent: float) -> float:
    """`sqrt(v (1 - v)) / count^exponent + 0.05`: prompts that may go either way come more often."""
    return math.sqrt(max(value * (1 - value), 0.0)) / count**exponent + 0.05


class Tracked(BaseProfile):
    """Prompts drawn by a running value of each, which is also the baseline of its completions.

    Source: Xu and Ding 2025, SPO, arXiv:2509.13232, and its released code.
    """

    def __init__(self, supply: TaskSupply, params: Mapping[str, Any], seed: int) -> None:
        super().__init__(supply, params, seed)
        self.counts: list[tuple[float, float]] = []
        self.last_seen: list[int | None] = []
        self.memory: list[Response | None] = []
        self.rng = random.Random(derived_seed(seed, "tracker", 0))  # noqa: S311 - reproducible, not secret

    @property
    def to_profile(self) -> list[Task]:
        return [] if self.counts or not self.profile_samples else self.tasks

    def learn_profile(self, seen: Sequence[SeenGroup]) -> None:
        """The base model's samples as first counts; without any every prompt starts at one half."""
        self.rates = [base_rates(group) for group in seen]
        for group in seen:
            scored = [outcome for outcome in group.outcomes if not math.isnan(outcome)]
            _check_range(scored)
            self.counts.append(first_counts(len(scored), math.fsum(scored)))
        self.memory = [group.first for group in seen]
        self.last_seen = [None] * len(seen)

    def choose(self, count: int) -> list[ChosenPrompt]:
        """`count` different prompts, by weight and without replacement (Efraimidis and Spirakis 2006)."""
        if not self.counts:
            self._start_without_profile()
        weights = [self._weight(position) for position in range(len(self.tasks))]
        keys = [self.rng.random() ** (1 / weight) for weight in weights]
        positions = sorted(range(len(keys)), key=keys.__getitem__, reverse=True)[:count]
        return [
            ChosenPrompt(
                self.tasks[at],
                weights[at],
                tracker_value=self.counts[at][0] / sum(self.counts[at]),
                tracker_count=sum(self.counts[at]),
                tracker_last_seen=self.last_seen[at],
                **self._known(self.tasks[at]),
            )
            for at in positions
        ]

    def _start_without_profile(self) -> None:
        size = len(self.tasks)
        self.counts, self.last_seen, self.memory = [first_counts(0, 0)] * size, [None] * size, [None] * size
        self.rates = [{} for _ in self.tasks]

    def _weight(self, position: int) -> float:
        a, b = self.counts[position]
        return sampling_weight(a / (a + b), a + b, exponent=self.params["count_exponent"])

    def observe(self, step: int, seen: Sequence[SeenGroup], rescore: Rescore) -> dict[str, float]:
        """Forget by how far the policy moved on each prompt's last completion, then count the new outcomes."""
        positions = [self.position(group.choice.task) for group in seen]
        known = {at: memory for at in positions if (memory := self.memory[at]) is not None}
        drifts = dict(zip(known, map(drift_of, known.values(), rescore(list(known.values()))), strict=True))
        kept: list[float] = []
        errors: list[float] = []
        for position, group in zip(positions, seen, strict=True):
            scored = [outcome for outcome in group.outcomes if not math.isnan(outcome)]
            if not scored:
                continue
            _check_range(scored)
            a, b = self.counts[position]
            factor = forgetting(drifts.get(position, 0.0), self.params["drift_half_life"])
            kept.append(factor)
            errors.append(math.fsum(scored) / len(scored) - a / (a + b))
            self.counts[position] = (
                factor * a + math.fsum(scored),
                factor * b + math.fsum(1 - outcome for outcome in scored),
            )
            self.last_seen[position] = step
            self.memory[position] = group.first
        if not kept:
            return {}
        return {
            "tracker_kept_share": math.fsum(kept) / len(kept),
            "tracker_drift": math.fsum(drifts.values()) / len(drifts) if drifts else 0.0,
            "tracker_error": math.fsum(errors) / len(errors),
            "tracker_value": math.fsum(a / (a + b) for a, b in self.counts) / len(self.counts),
        }

    def state(self) -> dict[str, Any]:
        version, internal, gauss = self.rng.getstate()
        return {
            "rates": self.rates,
            "counts": self.counts,
            "last_seen": self.last_seen,
            "memory": [response and _packed(response) for response in self.memory],
            "rng": [version, list(internal), gauss],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        if not state:
            return
        self.rates = list(state["rates"])
        self.counts = [(a, b) for a, b in state["counts"]]
        self.last_seen = list(state["last_seen"])
        self.memory = [packed and _unpacked(packed) for packed in state["memory"]]
        version, internal, gauss = state["rng"]
        self.rng.setstate((version, tuple(internal), gauss))


def drift_of(response: Response, now: Sequence[float]) -> float:
    """Mean of |log-probability then - now| over the tokens that were sampled, in nats."""
    moved = [abs(then - later) for then, later in zip(response.logprobs, now, strict=True) if not math.isnan(then)]
    return math.fsum(moved) / max(len(moved), 1)


def _check_range(outcomes: Sequence[float]) -> None:
    for outcome in outcomes:
        if not 0 <= outcome <= 1:
            raise ValueError(f"a tracker needs rewards from 0 to 1, got {outcome}; take another algorithm or reward")


def _packed(response: Response) -> list[Any]:
    logprobs = [None if math.isnan(value) else value for value in response.logprobs]
    return [list(response.prompt_ids), list(response.completion_ids), logprobs]


def _unpacked(packed: Sequence[Any]) -> Response:
    response = Response(*packed)
    return replace(response, logprobs=[math.nan if value is None else value for value in response.logprobs])
