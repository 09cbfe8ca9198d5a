"""Trains with our loop step by step, as `bench.trl` tells: `python -m bench.trainer_steps SPEC.json`."""

import json
import random
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.peers.trl_steps import Spec, Stopwatch, end_ids, say, set_end_chance
from training.attempt import Attempt
from training.config import RunConfig
from training.prepare import prepare
from training.progress import Progress
from training.run import train_step
from training.run_state import Run

draws = random.Random(0)  # noqa: S311 - of a benchmark


def random_reward(task: Any, completions: Sequence[Any]) -> list[float]:
    return [draws.random() for _ in completions]


class Counted(Progress):
    def __init__(self, stopwatch: Stopwatch) -> None:
        super().__init__(10**6, draws_bar=False)
        self.stopwatch = stopwatch

    def step(self, done: int, metrics: Mapping[str, float]) -> None:
        self.stopwatch.count([int(metrics["tokens_sampled"])], [metrics["reward_mean"]])


def configuration(spec: Spec) -> dict[str, Any]:
    reward = "bench.trainer_steps:random_reward" if spec.reward == "random" else "task"
    return {
        "seed": spec.seed,
        "algorithm": "grpo@trl",
        "threads": torch.get_num_threads(),
        "hooks": {"H4": [reward]},
        "task": {"name": f"file:{spec.prompts}"},
        "model": {"path": spec.model, "chat": "off"},  # the prompts' text is whole
        "sampling": {
            "group_size": spec.group_size,
            "prompts_per_step": spec.prompts_per_step,
            "max_new_tokens": spec.max_new_tokens,
        },
        "optimizer": {"learning_rate": spec.learning_rate},
    }


def prepared(spec: Spec) -> Run:
    folder = Path(spec.work)
    (folder / "spool").mkdir(parents=True, exist_ok=True)
    return prepare(RunConfig.from_dict(configuration(spec)), Attempt(folder, 1), str(uuid.uuid4()))


def train(spec: Spec) -> None:
    run = prepared(spec)
    if spec.end_chance is not None:
        set_end_chance(run.policy.model, end_ids(run.policy.model, run.policy.tokenizer), spec.end_chance)
    stopwatch = Stopwatch()
    progress = Counted(stopwatch)
    say({"ready": True})
    is_wanted, step = stopwatch.wait(), 0
    while is_wanted:
        train_step(run, step, progress)
        step += 1
        is_wanted = stopwatch.step()
    if run.recorder is not None:
        run.recorder.close()


if __name__ == "__main__":
    train(Spec(**json.loads(Path(sys.argv[1]).read_text())))
