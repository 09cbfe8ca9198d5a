"""The training loop, top to bottom: choose, sample, score, advantage, token weights, loss, step, record.

`python -m training.run --run-dir DIR --run-uid UID --attempt N [--resume] [--parent-fd FD] [--progress]`
"""

import argparse
import contextlib
import dataclasses
import errno
import logging
import os
import sys
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from training import checkpoint_files, checkpoints, distributed, legality
from training.alarms import sampler_alarm
from training.attempt import Attempt, die_with_parent, take_folder
from training.auxiliary import AUXILIARIES
from training.config import ConfigError, RunConfig
from training.credit import ModelColumns, Signal, assign_credit, drop_reasons
from training.divergences import adapted_coefficient, adapted_entropy_coefficient
from training.evaluation import evaluate, is_evaluation_due, judged, profile_base, sampling_json
from training.learner import (
    LearnerBatch,
    NonFiniteError,
    Objective,
    Update,
    likeliest_under,
    logprobs_under,
    update_policy,
)
from training.losses import LOSSES, MASKED
from training.metrics import training_metrics
from training.optimizers import learning_rate_at
from training.plans import PLANS
from training.policy import Policy
from training.prepare import checkpoint_folder, prepare, resume
from training.processes import further_processes, is_among_others
from training.progress import Progress
from training.recording import Recorder, batch_header, make_batch
from training.reward_shaping import kl_in_reward
from training.rewards import LABEL_FREE, reward_functions
from training.rollouts import (
    Rollouts,
    ScoredRollouts,
    join_rollouts,
    join_scores,
    outcomes_by_group,
    rescored,
    sample_rollouts,
    seen_groups,
    shuffle_rewards,
    tracked_values,
)
from training.run_state import Run
from training.seeds import derived_seed, fix_string_hashes
from training.selection import prompt_columns
from training.transforms import TRANSFORMS, PromptContext
from training.trust_region import update_within_region
from training.voting import vote_metrics

FINISHED, FAILED, REFUSED, STOPPED = 0, 1, 2, 3

logger = logging.getLogger("training")


def train(run: Run, first_step: int, progress: Progress) -> bool:
    """Steps from `first_step` to the last; False when stopped on request. Ends with a checkpoint either way."""
    config = run.config
    profile_base(run)
    for step in range(first_step, config.steps):
        if is_evaluation_due(config, step):
            evaluate(run, step, progress)
        if run.attempt.is_stop_wanted(phase="training"):
            run.attempt.report(state="stopping")
            # Replacing a checkpoint by its equal would leave an instant without it.
            if run.attempt.status["last_checkpoint"] != step:
                save_checkpoint(run, step)
            return False
        train_step(run, step, progress)
        if (step + 1) % config.checkpoint.every_steps == 0 or step + 1 == config.steps:
            save_checkpoint(run, step + 1)
    evaluate(run, config.steps, progress)
    return True


def train_step(run: Run, step: int, progress: Progress) -> None:
    started = time.perf_counter()
    run.seconds.clear()
    rollouts, scores = gather_step(run, step)
    run.events.clear()
    with run.phase("score"):
        columns, scores = ask_models(run, rollouts, scores)
        signal = find_signal(run, step, rollouts, scores, columns)
        observed = observe_step(run, step, rollouts, scores)
    with run.phase("learn"):
        batch = learner_batch(run, rollouts, signal, columns)
        updates = learn_step(run, batch, step)
        if updates:
            run.engine.weights_changed()
        side_metrics = learn_values(run, step, rollouts, signal, columns)
    run.rollouts += len(scores.scored)
    # A step that trained nothing leaves the baseline as it was.
    baseline = {} if signal.groups.running_mean is None else {"baseline": run.running_mean}
    if signal.groups.running_mean is not None and updates:
        run.running_mean = signal.groups.running_mean
    metrics = baseline | training_metrics(rollouts, scores, signal, batch, updates) | observed | side_metrics
    metrics["prompts_sampled"] = float(len(signal.choices))
    metrics["prompts_kept"] = float(sum(choice.kept for choice in signal.choices))
    metrics |= run.coefficients
    adapt_coefficients(run, metrics)
    run.events += sampler_alarm(metrics, limit=run.config.sampling.gap_alarm, dtype=run.config.model.dtype)
    if run.recorder is not None:
        record_step(run, run.recorder, step, rollouts, scores, signal, columns, updates, metrics, started)
        progress.step(step + 1, metrics)
    run.attempt.report(state="running", phase="training", step=step + 1, rollouts=run.rollouts)


def gather_step(run: Run, step: int) -> tuple[Rollouts, ScoredRollouts]:
    """Sample and score; then once more for every group that H9 does not accept, while rounds are left."""
    missing, rounds = run.config.sampling.prompts_per_step, []
    for _ in range(1 + run.resolved.params.get("extra_rounds", 0)):
        with run.phase("sample"):
            rollouts = sample_step(run, step, missing)
        with run.phase("score"):
            scores = score_step(run, rollouts)
        rounds.append((rollouts, scores))
        missing -= sum(map(run.selection.accepts, outcomes_by_group(rollouts, scores)))
        if not missing:
            break
    sampled, scored = zip(*rounds, strict=True)
    return join_rollouts(sampled, run.policy.pad_id), join_scores(scored)


def sample_step(run: Run, step: int, prompt_count: int) -> Rollouts:
    """H1 and H9 choose, H2 words the prompt, H3 plans, the engine samples."""
    config = run.config.sampling
    chosen = run.selection.choose(prompt_count)
    transform = TRANSFORMS[run.part("H2")]
    context = PromptContext(step, run.config.steps, run.transform_rng, run.resolved.params, run.supply.examples)
    prompts = [run.policy.worded(transform(choice.task, context)) for choice in chosen]
    requests = PLANS[run.part("H3")](prompts, config.group_size)
    return sample_rollouts(
        run.policy,
        run.engine,
        chosen,
        prompts,
        requests,
        temperature=config.temperature,
        max_new_tokens=config.max_new_tokens,
        seed=run.sampler_seeds.next(),
    )


def score_step(run: Run, rollouts: Rollouts) -> ScoredRollouts:
    """H4."""
    scores = judged(run, rollouts, reward_functions(run.resolved.parts["H4"]))
    if run.config.shuffle_rewards:
        scores = shuffle_rewards(rollouts, scores, seed=run.shuffle_seeds.next())
    return scores


def observe_step(run: Run, step: int, rollouts: Rollouts, scores: ScoredRollouts) -> dict[str, float]:
    """H1 and H9 learn from what came of their choices; the metrics they give."""
    config, seen = run.config, seen_groups(rollouts, scores)
    supplied = run.supply.observe([(group.choice.task, group.right) for group in seen])
    if LABEL_FREE & set(run.resolved.parts["H4"]):
        supplied |= vote_metrics([(group.answers, group.correct) for group in seen])
    return supplied | run.selection.observe(
        step,
        seen,
        lambda responses: rescored(
            run.policy,
            responses,
            temperature=config.sampling.temperature,
            micro_batch=config.optimizer.micro_batch_rollouts,
        ),
    )


def ask_models(run: Run, rollouts: Rollouts, scores: ScoredRollouts) -> tuple[ModelColumns, ScoredRollouts]:
    """What the other models say of the rollouts, and the scores with the KL in the reward where it belongs there."""
    needed, params = run.resolved.needs, run.resolved.params
    micro_batch = run.config.optimizer.micro_batch_rollouts

    def logprobs(policy: Policy | None) -> torch.Tensor | None:
        temperature = run.config.sampling.temperature
        if policy is None:
            return None
        return logprobs_under(policy, rollouts.tokens, temperature=temperature, micro_batch=micro_batch)

    ref_logprobs = logprobs(run.reference)
    recomputed = logprobs(run.policy if "recomputed_logprobs" in needed else None)
    token_rewards = None
    if params["kl_place"] == "reward" and ref_logprobs is not None:
        shaped = kl_in_reward(
            rollouts,
            scores,
            rollouts.sampler_logprobs if recomputed is None else recomputed,
            ref_logprobs,
            coefficient=run.coefficients["kl_coefficient"],
            estimator=params["kl_estimator"],
        )
        scores, token_rewards = shaped.scores, shaped.token_rewards
    top = None
    if "top_logprobs" in needed:
        temperature, count = run.config.sampling.temperature, params["top_count"]
        top = likeliest_under(
            run.policy, rollouts.tokens, temperature=temperature, micro_batch=micro_batch, count=count
        )
    values = run.side_model.values(rollouts.tokens)
    return ModelColumns(ref_logprobs, recomputed, values, token_rewards, top), scores


def find_signal(run: Run, step: int, rollouts: Rollouts, scores: ScoredRollouts, columns: ModelColumns) -> Signal:
    """H5, H9 again, and H6."""
    return assign_credit(
        rollouts,
        scores,
        columns,
        run.resolved.parts,
        run.resolved.params,
        run.selection,
        running_mean=run.running_mean,
        truncated=run.config.truncated,
        seed=derived_seed(run.config.seed, "token weights", step),
    )


def learner_batch(run: Run, rollouts: Rollouts, signal: Signal, columns: ModelColumns) -> LearnerBatch:
    return LearnerBatch(
        tokens=rollouts.tokens,
        sampler_logprobs=rollouts.sampler_logprobs,
        token_advantages=signal.weights.token_advantages,
        token_weights=signal.weights.token_weights,
        loss_mask=signal.loss_mask,
        ref_logprobs=columns.ref_logprobs,
        recomputed_logprobs=columns.recomputed_logprobs,
        selected=signal.weights.selected,
        top_ids=None if columns.top is None else columns.top[0],
        top_logprobs=None if columns.top is None else columns.top[1],
        # A further loss reads the tokens behind a cut as well.
        forward_tokens=None if run.resolved.parts["H8"] else signal.weights.forward_tokens,
    )


def learn_step(run: Run, batch: LearnerBatch, step: int) -> list[Update]:
    """H7 and H8: the step's updates, none when no token counts."""
    if not bool(batch.loss_mask.any()):
        logger.warning("step %d: no token counts, the policy stays as it is", step)
        run.events.append({"kind": "no-update", "reason": "no token counts"})
        return []
    config, temperature = run.config, run.config.sampling.temperature
    objective = Objective(
        policy_loss=LOSSES[run.part("H7")],
        auxiliary={name: AUXILIARIES[name] for name in run.resolved.parts["H8"]},
        params=run.resolved.params | run.coefficients,
        needs_entropy="policy_entropy" in run.resolved.needs,
    )
    updates: list[Update] = []
    for number in range(config.optimizer.updates_per_step):
        where = f"at step {step}, update {number}"
        try:
            if run.part("H7") == "trust_region":
                updates.append(
                    update_within_region(
                        run.policy, batch, objective, config.optimizer, temperature=temperature, where=where
                    )
                )
            else:
                updates.append(
                    update_policy(
                        run.policy,
                        run.optimizer,
                        batch,
                        objective,
                        config.optimizer,
                        temperature=temperature,
                        learning_rate=learning_rate_at(config.optimizer, step, config.steps),
                        where=where,
                    )
                )
            if run.average is not None:
                run.average.update()
        except NonFiniteError as error:
            leave_out(run, error)
            break
    return updates


def learn_values(run: Run, step: int, rollouts: Rollouts, signal: Signal, columns: ModelColumns) -> dict[str, float]:
    """H10: the critic fits the returns."""
    if columns.values is None or signal.weights.returns is None:
        return {}
    try:
        return run.side_model.update(rollouts.tokens, columns.values[:, :-1], signal.weights.returns, signal.loss_mask)
    except NonFiniteError as error:
        leave_out(run, NonFiniteError(f"{error}, at step {step}"))
        return {}


def leave_out(run: Run, error: NonFiniteError) -> None:
    """What becomes of an update whose numbers are not finite: the end of the run, or an event of the step."""
    if run.config.optimizer.non_finite == "stop":
        raise error
    logger.warning("%s: the update is left out", error)
    run.events.append({"kind": "update-skipped", "reason": str(error)})


def adapt_coefficients(run: Run, metrics: Mapping[str, float]) -> None:
    """The weights of KL and entropy for the next step, where they follow a target."""
    params = run.resolved.params
    if params["kl_target"] and "ref_kl_k1" in metrics:
        run.coefficients["kl_coefficient"] = adapted_coefficient(
            run.coefficients["kl_coefficient"],
            metrics["ref_kl_k1"],
            target=params["kl_target"],
            horizon=params["kl_horizon"],
            rollouts=run.config.sampling.prompts_per_step * run.config.sampling.group_size,
        )
    if params.get("entropy_target") and "entropy" in metrics:
        run.coefficients["entropy_coefficient"] = adapted_entropy_coefficient(
            run.coefficients["entropy_coefficient"],
            metrics["entropy"],
            target=params["entropy_target"],
            step=params["entropy_step"],
        )


def record_step(
    run: Run,
    recorder: Recorder,
    step: int,
    rollouts: Rollouts,
    scores: ScoredRollouts,
    signal: Signal,
    columns: ModelColumns,
    updates: list[Update],
    metrics: dict[str, float],
    started: float,
) -> None:
    """Hand the step to the writer.

    `seconds_record` is what recording takes from the step: how long it holds the loop up, and the writer's processor time of all
    batches since the step before. `seconds_write` is the writer from start to end: it waits for the disk while the loop goes on.
    """
    recorder.wait()
    with run.phase("record"):
        header = batch_header(
            run.uid,
            run.attempt.number,
            step,
            split="train",
            phase_seconds=run.seconds,
            events=list(run.events),
        )
        token_columns = {
            "token_advantages": signal.weights.token_advantages,
            "token_weights": signal.weights.token_weights,
            "loss_mask": signal.loss_mask,
            "clip_flag": updates[-1].clip_flag if updates else torch.full_like(rollouts.origin, MASKED),
        }
        if updates:
            token_columns["policy_logprobs"] = updates[-1].policy_logprobs
        if columns.ref_logprobs is not None:
            token_columns["ref_logprobs"] = columns.ref_logprobs
        if columns.recomputed_logprobs is not None:
            token_columns["recomputed_logprobs"] = columns.recomputed_logprobs
        if columns.values is not None:
            token_columns["x_value"] = columns.values[:, :-1]
        elif (foreseen := tracked_values(rollouts)) is not None:
            token_columns["x_value"] = foreseen
        if columns.top is not None:
            for number, (ids, logprobs) in enumerate(zip(*(one.unbind(dim=-1) for one in columns.top), strict=True), 1):
                token_columns[f"x_top{number}_id"] = ids
                token_columns[f"x_top{number}_logprob"] = logprobs
        recorded = make_batch(
            header,
            rollouts,
            scores,
            ends_step=run.policy.ends_step,
            checkpoint_step=step,
            sample_seconds=run.seconds["sample"],
            rollout_columns={
                "advantage": signal.advantage.cpu().numpy(),
                "kept": signal.kept.cpu().numpy(),
                "drop_reason": drop_reasons(rollouts, scores, signal),
            },
            token_columns=token_columns,
            group_columns={
                "sampling": [sampling_json(run.config.sampling)] * len(rollouts.prompts),
                # Empty says that it taught; null would leave the reader to compare rewards.
                "dead_cause": [cause or "" for cause in signal.groups.dead_cause],
                "kept": [choice.kept for choice in signal.choices],
                "drop_reason": [choice.drop_reason or None for choice in signal.choices],
                "stratum_keys": signal.stratum_keys(rollouts.group_index),
                **prompt_columns(rollouts.chosen),
            },
        )
    metrics |= {f"seconds_{name}": run.seconds[name] for name in ("sample", "score", "learn")}
    beside = recorder.take_seconds()
    metrics["seconds_record"] = run.seconds["record"] + beside.taken
    metrics["seconds_write"], metrics["seconds_write_cpu"] = beside.write, beside.write_cpu
    metrics["seconds_step"] = time.perf_counter() - started
    recorder.put(recorded, metrics)


def save_checkpoint(run: Run, step: int) -> None:
    """After everything that led to it is durable in the spool."""
    run.attempt.report(phase="saving a checkpoint")
    if run.recorder is not None:
        run.recorder.flush()
    saved = checkpoints.save(
        checkpoint_folder(run.attempt),
        run.policy,
        run.optimizer,
        run.state(),
        side_state=run.side_model.state(),
        average=run.average,
        step=step,
        keep=run.config.checkpoint.keep,
    )
    kept = [] if saved is None else checkpoint_files.listed(checkpoint_folder(run.attempt))
    run.attempt.report(last_checkpoint=step, checkpoints=[one.summary() for one in kept])


def run_attempt(
    attempt: Attempt, run_uid: str, *, is_resume: bool, draws_bar: bool, arguments: Sequence[str] = ()
) -> int:
    """One attempt from its configuration to its last checkpoint; returns the exit code and leaves the status behind.

    Args:
        arguments: of `training.run`, to start the run's other processes with.
    """
    try:
        with take_folder(attempt.run_folder) if distributed.is_leader() else contextlib.nullcontext():
            if distributed.is_leader():
                attempt.reserve_space()
            attempt.report()
            config = RunConfig.from_file(attempt.run_folder / "config.toml")
            attempt.report(steps=config.steps)
            config = with_started_processes(config)
            legality.check(config, takes_own=True)
            with all_processes(config, attempt, arguments):
                is_finished = train_attempt(config, attempt, run_uid, is_resume=is_resume, draws_bar=draws_bar)
    except Exception as error:
        return report_failure(attempt, error)
    attempt.release_space()
    if is_finished:
        attempt.report(state="finished", phase="", reason=f"trained {config.steps} steps")
        return FINISHED
    attempt.report(state="stopped", phase="", reason=f"stopped on request after {attempt.status['step']} steps")
    return STOPPED


def train_attempt(config: RunConfig, attempt: Attempt, run_uid: str, *, is_resume: bool, draws_bar: bool) -> bool:
    """From the models to the last checkpoint; False when stopped on request."""
    run = prepare(config, attempt, run_uid)
    with contextlib.ExitStack() as open_things:
        open_things.enter_context(contextlib.closing(run.engine))
        if run.recorder is not None:
            open_things.enter_context(contextlib.closing(run.recorder))
            checkpoint_files.discard_unfinished(checkpoint_folder(attempt))
        first_step = resume(run) if is_resume else 0
        attempt.report(state="running", phase="training")
        progress = Progress(config.steps, draws_bar=draws_bar and distributed.is_leader())
        open_things.enter_context(contextlib.closing(progress))
        return train(run, first_step, progress)


def with_started_processes(config: RunConfig) -> RunConfig:
    """The configuration with as many processes as torchrun started, if it did.

    Raises:
        ConfigError: it wants another number.
    """
    if not is_among_others():
        return config
    started = distributed.processes()
    if config.processes not in (1, started):
        raise ConfigError(
            "processes", f"is {config.processes}, but {started} were started; leave it out under torchrun"
        )
    return dataclasses.replace(config, processes=started)


@contextlib.contextmanager
def all_processes(config: RunConfig, attempt: Attempt, arguments: Sequence[str]) -> Iterator[None]:
    """The run's processes have met: those that torchrun started, or those that this one starts."""
    further: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if config.processes > 1 and not is_among_others():
        further = further_processes(
            config.processes - 1,
            arguments,
            # The main thread may be waiting for the one that is gone.
            lambda reason: os._exit(report_failure(attempt, RuntimeError(reason))),
        )
    with further, distributed.together():
        yield


def report_failure(attempt: Attempt, error: Exception) -> int:
    """Say in the log and in the status what ended the attempt."""
    if not distributed.is_leader():
        distributed.leave_word(attempt.folder, f"{type(error).__name__}: {error}")
        logger.error("process %d failed", distributed.rank(), exc_info=error)
        return REFUSED if isinstance(error, ConfigError) else FAILED
    attempt.release_space()
    if isinstance(error, ConfigError):
        code, where, reason = REFUSED, error.key, f"refused: {error}"
        logger.error(reason)
    else:
        code, where = FAILED, ""
        for frame in traceback.extract_tb(error.__traceback__)[-1:]:
            where = f"{Path(frame.filename).name}:{frame.lineno}"
        reason = failure_reason(attempt, error)
        logger.error(reason, exc_info=error)
    try:
        attempt.report(
            state="failed",
            phase="",
            reason=reason,
            error={"type": type(error).__name__, "message": str(error), "where": where},
        )
    except OSError as unwritable:
        logger.error("the status cannot be written either: %s", unwritable)
    return code


def failure_reason(attempt: Attempt, error: Exception) -> str:
    when = f"after {attempt.status['step']} steps"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk that holds {attempt.run_folder} is full, {when}; free some space and resume"
    if isinstance(error, RuntimeError) and (word := distributed.word_of_others(attempt.folder)):
        return f"another process of the run failed {when}: {word}"
    return f"{type(error).__name__} {when}: {error}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m training.run", description="Train one attempt of a run.")
    parser.add_argument("--run-dir", type=Path, required=True, help="folder with config.toml")
    parser.add_argument("--run-uid", type=uuid.UUID, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--resume", action="store_true", help="go on from the newest intact checkpoint")
    parser.add_argument("--parent-fd", type=int, help="read end of a pipe; this process ends when it closes")
    parser.add_argument("--progress", action="store_true", help="draw a progress bar on stderr")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    logging.basicConfig(
        level=logging.INFO if distributed.is_leader() and not options.progress else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stdout,
    )
    if options.parent_fd is not None:
        die_with_parent(options.parent_fd)
    attempt = distributed.SharedAttempt(options.run_dir.resolve(), options.attempt)
    attempt.stop_on_signals()
    return run_attempt(
        attempt, str(options.run_uid), is_resume=options.resume, draws_bar=options.progress, arguments=given
    )


if __name__ == "__main__":
    fix_string_hashes()
    sys.exit(main())
