"""Whether ours and TRL's GRPO learn alike: the same step of both, then rewards over a whole training."""

import dataclasses
import json
import statistics
import subprocess
import sys
from pathlib import Path

from bench.peers.trl_steps import WITNESSED_STEPS, Spec
from bench.report import say
from bench.trl import ours_with, spec, theirs_with, write_prompts, written

# The warm-started built-in model on additions of two digits, as in the demo.
SEEDS, STEPS, PROMPTS, RATE, BAR = 5, 60, 32, 6e-5, 0.05
STUDENT_T = 1.860  # 95th percentile at 2 x 5 - 2 degrees of freedom


def learning(work: Path, python: Path) -> list[str]:
    """The same step of both, and the interval of the difference of the mean rewards over the last half of the steps."""
    found: dict[str, list[float]] = {"ours": [], "theirs": []}
    first: dict[str, list[float]] = {"ours": [], "theirs": []}
    for seed in range(SEEDS):
        plan = learning_plan(work, seed)
        trainers = ("ours", ours_with(plan)), ("theirs", theirs_with(in_our_order(plan), python))
        for name, trainer in trainers:
            with trainer as client:
                first[name].append(client.steps(STEPS // 6).reward)
                client.steps(STEPS // 2 - STEPS // 6)
                found[name].append(client.steps(STEPS // 2).reward)
        say(f"seed {seed}: mean reward {found['ours'][-1]:.3f} ours, {found['theirs'][-1]:.3f} TRL's")
    low, high = difference_interval(found["ours"], found["theirs"])
    means, starts = ([statistics.mean(side) for side in one.values()] for one in (found, first))
    return [
        same_step(work, python),
        "",
        f"Learning: {STEPS} steps of {PROMPTS} prompts with 8 completions each, additions of two digits from the same warm start,"
        f" {SEEDS} seeds each, the prompts of a seed the same and in the same order. Mean reward over the first sixth:"
        f" {starts[0]:.3f} ours, {starts[1]:.3f} TRL's; over the last half: {means[0]:.3f} ours, {means[1]:.3f} TRL's; 90 % interval of"
        f" the difference {low:+.3f} to {high:+.3f} (wanted within {-BAR:+} and {BAR:+}).",
    ]


def learning_plan(work: Path, seed: int) -> Spec:
    return spec(
        work, "builtin", reward="exact", prompts_per_step=PROMPTS, max_new_tokens=8, end_chance=None, learning_rate=RATE,
        seed=seed,
    )  # fmt: skip


def in_our_order(plan: Spec) -> Spec:
    """With the prompts one after another as our trainer takes them: TRL reads them from the top."""
    from training.tasks.files import ANSWER_IN, family
    from training.tasks.pool import make_pool

    pool = make_pool(family(plan.prompts), {"answer_in": ANSWER_IN.default}, 0, plan.seed)
    ordered = Path(plan.prompts).with_suffix(f".{plan.seed}.jsonl")
    write_prompts(ordered, [(task.prompt, int(task.answer)) for task in pool.take(STEPS * plan.prompts_per_step)])
    return dataclasses.replace(plan, prompts=str(ordered))


def same_step(work: Path, python: Path) -> str:
    """How far apart both end when ours takes TRL's first steps with TRL's completions."""
    plan = dataclasses.replace(learning_plan(work, 0), witness=str(work / "witness.pt"))
    with theirs_with(in_our_order(plan), python) as client:
        client.steps(WITNESSED_STEPS)
    command = [sys.executable, "-m", "bench.trainer_replay", written(plan, "ours")]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return (
        f"The same step: {found['steps']} steps of ours with the completions of TRL's. Mean rewards differ in {found['rewards_differ']}"
        f" of them, no gradient by more than {found['gradient']:.1e} (the largest is at least {found['largest_gradient']:.2f}), and"
        f" no weight after the last by more than {found['weights']:.1e} (a step moves one by up to {plan.learning_rate:.0e})."
    )


def difference_interval(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """90 %, of the difference of two means of `SEEDS` each."""
    difference = statistics.mean(ours) - statistics.mean(theirs)
    error = ((statistics.variance(ours) + statistics.variance(theirs)) / SEEDS) ** 0.5
    return difference - STUDENT_T * error, difference + STUDENT_T * error
