"""What a run will cost before it starts, and how far to trust that."""

from dataclasses import dataclass
from pathlib import Path

from django.db.models import DurationField, ExpressionWrapper, F, QuerySet, Sum

from rlviewer.runs.models import Run, RunState
from training.config import BUILTIN_MODEL, SMOLLM2_MODEL, RunConfig
from training.model_folder import smollm2_folder

# Measured on the demo with the built-in model: everything that a step does, by token that it may sample at most.
SECONDS_PER_TOKEN = 3e-4
BUILTIN_BYTES = 4_000_000
STARTING_SECONDS = 6.0
# Measured on stored runs: token chunk with its arrays a token; narrow row, indexes and searchable text a rollout.
BYTES_PER_TOKEN = 20
BYTES_PER_ROLLOUT = 700
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.gguf")


@dataclass(frozen=True, slots=True)
class Estimate:
    seconds: float
    rollouts: int  # training and evaluation
    tokens: int
    disk_bytes: int  # in the database; checkpoints come on top
    basis: str  # one sentence for the person who decides


def estimate(config: RunConfig, runs: QuerySet[Run]) -> Estimate:
    """From finished ones among `runs`, those that the person may see. Two queries."""
    rollouts = count_rollouts(config)
    similar = runs.filter(
        state=RunState.FINISHED,
        model=config.model.path,
        task=config.task.name,
        rollout_count__gt=0,
        current_attempt=1,
        config__model__device=config.model.device,
        started_at__isnull=False,
    )
    same_length = similar.filter(config__sampling__max_new_tokens=config.sampling.max_new_tokens)
    measured = _from_runs(same_length, rollouts) or _from_runs(similar, rollouts)
    return measured or _from_formula(config, rollouts)


def count_rollouts(config: RunConfig) -> int:
    """Every completion that will be sampled: the steps' and the evaluations'."""
    every = config.eval.every_steps
    evaluations = 2 if every == 0 else len({*range(0, config.steps, every), config.steps})
    sampled = config.steps * config.sampling.prompts_per_step * config.sampling.group_size
    return sampled + evaluations * config.eval.prompts * config.eval.samples


def _from_runs(runs: QuerySet[Run], rollouts: int) -> Estimate | None:
    newest = list(runs.order_by("-id").values_list("pk", flat=True)[:5])
    if not newest:
        return None
    total = Run.objects.filter(pk__in=newest).aggregate(
        duration=Sum(ExpressionWrapper(F("ended_at") - F("started_at"), output_field=DurationField())),
        rollouts=Sum("rollout_count"),
        tokens=Sum("token_count"),
    )
    tokens = round(rollouts * total["tokens"] / total["rollouts"])
    seconds = rollouts * total["duration"].total_seconds() / total["rollouts"]
    which = "last finished run" if len(newest) == 1 else f"last {len(newest)} finished runs"
    basis = f"Measured on your {which} of this model and task."
    return Estimate(seconds, rollouts, tokens, _disk_bytes(rollouts, tokens), basis)


def _from_formula(config: RunConfig, rollouts: int) -> Estimate:
    """An upper bound of the tokens: every completion as long as it may get."""
    tokens = rollouts * config.sampling.max_new_tokens
    scale, basis = 1.0, "No finished run of this model and task yet: from the built-in model's speed on two CPU cores."
    if config.model.path != BUILTIN_MODEL:
        folder = smollm2_folder() if config.model.path == SMOLLM2_MODEL else Path(config.model.path)
        scale = max(1.0, _weight_bytes(folder) / BUILTIN_BYTES) if folder else 1.0
        basis = "No finished run of this model and task yet: a guess from the size of its weights, for two CPU cores."
    seconds = STARTING_SECONDS + tokens * SECONDS_PER_TOKEN * scale
    return Estimate(seconds, rollouts, tokens, _disk_bytes(rollouts, tokens), basis)


def _weight_bytes(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for pattern in WEIGHT_FILES for path in folder.glob(pattern))
    except (OSError, ValueError):  # no such folder, or no name of one
        return 0


def _disk_bytes(rollouts: int, tokens: int) -> int:
    return tokens * BYTES_PER_TOKEN + rollouts * BYTES_PER_ROLLOUT
