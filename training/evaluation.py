"""The policy on prompts that it does not train on, judged with the answer key and stored like any rollouts."""

import contextlib
import functools
import json
import time
from collections.abc import Iterator
from typing import Any

from training import distributed
from training.config import RunConfig, SamplingConfig
from training.metrics import correct_per_prompt, evaluation_metrics
from training.plans import SampleRequest
from training.progress import Progress
from training.recording import batch_header, make_batch
from training.rewards import RewardFunction, evaluation_functions
from training.rollouts import (
    Rollouts,
    ScoredRollouts,
    join_rollouts,
    join_scores,
    sample_rollouts,
    score_rollouts,
    seen_groups,
)
from training.run_state import Run
from training.seeds import derived_seed
from training.selection import ChosenPrompt
from training.tasks.base import Task
from training.trackers import base_rates
from training.transforms import identity

HELD_OUT, BASE_PROFILE = "heldout", "base_profile"
PROFILE_ROLLOUTS = 1024  # of the base model at a time


def judged(run: Run, rollouts: Rollouts, functions: list[RewardFunction]) -> ScoredRollouts:
    """What the reward functions say, asked once however many processes there are."""
    return distributed.from_leader(
        lambda: score_rollouts(
            rollouts,
            run.resolved.family,
            functions,
            truncated=run.config.truncated,
            params=run.resolved.params,
        )
    )


def is_evaluation_due(config: RunConfig, step: int) -> bool:
    """Before the first step and on the schedule; the last model is evaluated after the loop."""
    return step == 0 or (config.eval.every_steps > 0 and step % config.eval.every_steps == 0)


def evaluate(run: Run, checkpoint_step: int, progress: Progress) -> None:
    """Held-out rollouts of the policy as it is. Draws nothing that training draws, so the schedule changes no step."""
    started, samples = time.perf_counter(), run.config.eval.samples
    run.attempt.report(state="running", phase="evaluating")
    run.seconds.clear()
    with evaluated_weights(run):
        rollouts, scores = answer(
            run, run.held_out, samples, seed=derived_seed(run.config.seed, "evaluation", checkpoint_step)
        )
    if checkpoint_step == 0:
        run.base_correct = correct_per_prompt(rollouts, scores)
    metrics = evaluation_metrics(rollouts, scores, samples=samples)
    progress.evaluation(checkpoint_step, metrics)
    metrics["seconds_step"] = time.perf_counter() - started
    base = {
        "base_pass_rate": [right / samples for right in run.base_correct],
        "base_samples": [samples] * len(run.held_out),
    }
    record_answers(run, checkpoint_step, HELD_OUT, rollouts, scores, metrics, base)


def profile_base(run: Run) -> None:
    """What the base model makes of the prompts that H9 wants to know about, stored as an evaluation of its own."""
    tasks, samples = run.selection.to_profile, run.selection.profile_samples
    if not tasks:
        return
    started = time.perf_counter()
    run.seconds.clear()
    size = max(PROFILE_ROLLOUTS // samples, 1)
    parts = []
    for first in range(0, len(tasks), size):
        run.attempt.report(state="running", phase=f"asking the base model, prompt {first + 1} of {len(tasks)}")
        seed = derived_seed(run.config.seed, "base profile", first)
        parts.append(answer(run, tasks[first : first + size], samples, seed=seed))
    sampled, scored = zip(*parts, strict=True)
    rollouts, scores = join_rollouts(sampled, run.policy.pad_id), join_scores(scored)
    run.selection.learn_profile(seen_groups(rollouts, scores))
    metrics = evaluation_metrics(rollouts, scores, samples=samples)
    metrics["seconds_step"] = time.perf_counter() - started
    rates = [base_rates(group) for group in seen_groups(rollouts, scores)]
    base = {name: [rate[name] for rate in rates] for name in ("base_pass_rate", "base_samples")}
    record_answers(run, 0, BASE_PROFILE, rollouts, scores, metrics, base)


def answer(run: Run, tasks: list[Task], samples: int, *, seed: int) -> tuple[Rollouts, ScoredRollouts]:
    """Completions of `tasks` as they stand, judged with the answer key."""
    config = run.config
    with run.phase("sample"):
        rollouts = sample_rollouts(
            run.policy,
            run.engine,
            [ChosenPrompt(task) for task in tasks],
            [run.policy.worded(identity(task)) for task in tasks],
            [SampleRequest(prompt=index, count=samples) for index in range(len(tasks))],
            temperature=config.sampling.temperature,
            max_new_tokens=config.sampling.max_new_tokens,
            seed=seed,
        )
    with run.phase("score"):
        scores = judged(run, rollouts, evaluation_functions(run.resolved.parts["H4"]))
    return rollouts, scores


def record_answers(
    run: Run,
    checkpoint_step: int,
    split: str,
    rollouts: Rollouts,
    scores: ScoredRollouts,
    metrics: dict[str, float],
    group_columns: dict[str, Any],
) -> None:
    if run.recorder is None:
        return
    header = batch_header(run.uid, run.attempt.number, checkpoint_step, split=split, phase_seconds=run.seconds)
    recorded = make_batch(
        header,
        rollouts,
        scores,
        ends_step=run.policy.ends_step,
        checkpoint_step=checkpoint_step,
        sample_seconds=run.seconds["sample"],
        rollout_columns={},
        token_columns={},
        group_columns={"sampling": [sampling_json(run.config.sampling)] * len(rollouts.prompts), **group_columns},
    )
    run.recorder.put(recorded, metrics)


@contextlib.contextmanager
def evaluated_weights(run: Run) -> Iterator[None]:
    """The weights that evaluations see: those that train, or their moving average."""
    if run.average is None or not run.config.eval.average_weights:
        yield
        return
    with run.average.in_place():
        run.engine.weights_changed()
        yield
    run.engine.weights_changed()


@functools.cache
def sampling_json(sampling: SamplingConfig) -> str:
    told = ("temperature", "max_new_tokens", "top_k", "top_p", "min_p", "engine")
    return json.dumps({name: getattr(sampling, name) for name in told})
