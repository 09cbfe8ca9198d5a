"""From a configuration to a run that can train, fresh or from its newest checkpoint."""

import logging
import os
import random
from dataclasses import replace
from pathlib import Path

import torch

from training import checkpoint_files, checkpoints, distributed, legality, vocabulary
from training.attempt import Attempt
from training.config import ConfigError, RunConfig
from training.legality import Resolved
from training.machine import code_version, hardware, keep_freed_memory
from training.optimizers import Optimizer, WeightAverage
from training.policy import BeforeLearning, Policy, load_policy
from training.recording import Recorder
from training.rewards import reward_functions
from training.run_state import Run
from training.seeds import SeedStream, derived_seed
from training.selections import SELECTIONS
from training.sharding import sharded, shared_engine
from training.side_models import SIDE_MODELS
from training.supply import SUPPLIES, SupplyContext, TaskSupply
from training.tasks.base import Task
from training.tasks.pool import check_room
from training.tasks.stream import HELD_OUT_SEED, held_out_tasks
from training.transforms import TRANSFORMS, PromptContext, Segment, TransformedPrompt

CHECKED_EXAMPLES = 16  # prompts with examples that are counted before the start

logger = logging.getLogger("training")


def checkpoint_folder(attempt: Attempt) -> Path:
    return checkpoint_files.folder_of(attempt.run_folder)


def prepare(config: RunConfig, attempt: Attempt, run_uid: str) -> Run:
    """Load and build what the configuration names.

    Raises:
        ConfigError: it cannot run; names the key.
    """
    resolved = legality.resolve(config, on_worker=True)
    reward_functions(resolved.parts["H4"])  # one's own must be found before a model is loaded for it
    if config.threads or distributed.processes() > 1:
        torch.set_num_threads(config.threads or distributed.own_threads())
    keep_freed_memory()
    # Same seed, same rollouts: on a GPU too, as far as its kernels allow.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.manual_seed(config.seed)
    attempt.report(phase="loading the model")
    policy = load_policy(config.model)
    held_out = held_out_tasks(resolved.family, resolved.task_params, config.eval.prompts, HELD_OUT_SEED)
    check_prompts(policy, held_out, config)
    check_room(
        resolved.family,
        resolved.task_params,
        lambda prompt: prompt_tokens(policy, prompt),
        max_new_tokens=config.sampling.max_new_tokens,
        context_tokens=policy.context_tokens,
    )
    if distributed.is_leader():
        vocabulary.write(attempt.run_folder / vocabulary.FILE_NAME, policy.pieces)
    supply = SUPPLIES[resolved.parts["H1"][0]](
        SupplyContext(
            resolved.family,
            resolved.task_params,
            config.seed,
            config.sampling.group_size,
            resolved.pool,
            resolved.params,
        )
    )
    check_examples(policy, supply, held_out, resolved, config)
    attempt.report(
        plugins={
            "recipe": resolved.recipe.name,
            "parameters": resolved.params,
            "task": {"name": resolved.family.name, "version": resolved.family.version},
            **resolved.parts,
        },
        hardware=hardware(policy.device),
        code_version=code_version(),
    )
    # A side model may start as a copy of the policy, and shards cannot be copied.
    side_model = SIDE_MODELS[resolved.parts["H10"][0]](policy, resolved.params, config.optimizer.micro_batch_rollouts)
    policy = sharded(policy)
    optimizer = Optimizer(policy.model, config.optimizer)
    decay = config.optimizer.ema_decay
    return Run(
        config=config,
        resolved=resolved,
        policy=policy,
        reference=load_reference(policy, config) if "ref_logprobs" in resolved.needs else None,
        engine=shared_engine(policy, config, attempt.folder),
        optimizer=optimizer,
        average=WeightAverage(optimizer.parameters, decay) if decay else None,
        side_model=side_model,
        supply=supply,
        selection=SELECTIONS[resolved.parts["H9"][0]](supply, resolved.params, config.seed),
        held_out=held_out,
        sampler_seeds=SeedStream(config.seed, "sampler"),
        shuffle_seeds=SeedStream(config.seed, "shuffle"),
        transform_rng=random.Random(derived_seed(config.seed, "transform", 0)),  # noqa: S311 - reproducible, not secret
        recorder=Recorder(attempt.run_folder / "spool") if distributed.is_leader() else None,
        attempt=attempt,
        uid=run_uid,
        coefficients={
            name: resolved.params[name]
            for name, need in (("kl_coefficient", "ref_logprobs"), ("entropy_coefficient", "policy_entropy"))
            if need in resolved.needs
        },
    )


def load_reference(policy: Policy, config: RunConfig) -> Policy:
    """The policy before its first step: without its adapters, or loaded once more."""
    return BeforeLearning(policy) if config.model.lora_rank else sharded(load_policy(config.model))


def prompt_tokens(policy: Policy, prompt: str) -> int:
    """So many tokens as a task's prompt takes."""
    return len(policy.encode(policy.worded(TransformedPrompt(prompt=(Segment(prompt),))).text))


def check_examples(
    policy: Policy, supply: TaskSupply, tasks: list[Task], resolved: Resolved, config: RunConfig
) -> None:
    """Nothing, if some prompts leave room for their completions also with the most that H2 puts before them.

    Raises:
        ConfigError: names the room and the longest prompt.
    """
    if resolved.parts["H2"] != ("worked_examples",):
        return
    rng = random.Random(derived_seed(config.seed, "longest prompts", 0))  # noqa: S311 - reproducible, not secret
    params = resolved.params | {"examples_start": 1.0, "examples_end": 1.0}
    context = PromptContext(0, 1, rng, params, supply.examples)
    # A window of difficulty starts at its first level, whatever the held-out tasks are made at.
    first = [replace(task, difficulty=0.0) for task in tasks[:CHECKED_EXAMPLES]]
    transform = TRANSFORMS["worked_examples"]
    check_prompts(policy, [replace(task, prompt=transform(task, context).text) for task in first], config)


def check_prompts(policy: Policy, tasks: list[Task], config: RunConfig) -> None:
    """Nothing, if these prompts leave room for their completions.

    Raises:
        ConfigError: names the room and the longest prompt.
    """
    longest, new = max(prompt_tokens(policy, task.prompt) for task in tasks), config.sampling.max_new_tokens
    if policy.context_tokens is not None and longest + new > policy.context_tokens:
        raise ConfigError(
            "sampling.max_new_tokens",
            f"a prompt of {longest} tokens and {new} new ones do not fit the model's context of {policy.context_tokens}; "
            f"lower it to {max(policy.context_tokens - longest, 0)} at most, or make the tasks shorter",
        )


def resume(run: Run) -> int:
    """Go on from the newest intact checkpoint; returns the first step to do, 0 when there is none."""
    folder = checkpoint_folder(run.attempt)
    run.attempt.report(checkpoints=[one.summary() for one in checkpoint_files.listed(folder)])
    found = distributed.from_leader(lambda: checkpoint_files.newest_intact(folder))
    if found is None:
        logger.info("no checkpoint to resume from, starting from step 0")
        return 0
    restored = checkpoints.load(found, run.policy, run.optimizer, run.average)
    run.restore(restored.state)
    run.side_model.restore(restored.side_state)
    run.attempt.report(
        resumed_from_step=found.step,
        step=found.step,
        rollouts=run.rollouts,
        last_checkpoint=found.step,
    )
    logger.info("resumed from the checkpoint after step %d", found.step)
    return found.step
