"""The configuration of one run: frozen dataclasses, bounds checked, typos named. Imports no torch."""

import dataclasses
import difflib
import hashlib
import json
import math
import tomllib
import types
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

BUILTIN_MODEL = "builtin:tiny"
SMOLLM2_MODEL = "builtin:smollm2"


class ConfigError(ValueError):
    """A configuration that cannot run. `key` is the dotted name of the field at fault, `""` for the whole."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}" if key else message)
        self.key = key
        self.message = message


def bounded(
    default: Any, *, low: float | None = None, high: float | None = None, open_low: bool = False, help: str = ""
) -> Any:
    """A number with inclusive bounds (`open_low`: the lower one excluded) and one sentence for the form."""
    return field(default=default, metadata={"low": low, "high": high, "open_low": open_low, "help": help})


def choice(default: str, options: tuple[str, ...], *, help: str = "") -> Any:
    return field(default=default, metadata={"options": options, "help": help})


def text(default: str, *, help: str = "") -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True)
class TaskConfig:
    name: str = text(
        "addition",
        help="What is asked: a task family or reasoning_gym:DATASET; in a file also data and code of your own.",
    )
    params: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "Knobs of the task family, such as its difficulty."}
    )
    pool: int = bounded(
        0,
        low=0,
        high=1_000_000,
        help="So many different tasks that come again and again; 0: new ones without end, or all of a file.",
    )


@dataclass(frozen=True, slots=True)
class ModelConfig:
    path: str = text(
        BUILTIN_MODEL,
        help="builtin:tiny, builtin:smollm2 (after make smollm2), or the folder of a Hugging Face causal LM.",
    )
    dtype: str = choice(
        "float32", ("float32", "bfloat16"), help="Type of the weights; small steps of bfloat16 collect in float32."
    )
    device: str = choice(
        "auto", ("auto", "cpu", "cuda"), help="Where the policy lives; auto: on a GPU where there is one."
    )
    chat: str = choice(
        "auto",
        ("auto", "on", "off"),
        help="Words each prompt as a person's turn by the tokenizer's chat template; auto: where there is a template.",
    )
    gradient_checkpointing: bool = field(
        default=False,
        metadata={"help": "Works layers out again on the way back instead of keeping them: less memory, more time."},
    )
    lora_rank: int = bounded(0, low=0, high=1024, help="Rank of the adapters that learn (LoRA); 0: all weights learn.")
    lora_alpha: float = bounded(
        32.0, low=0, high=4096, open_low=True, help="Adapters count alpha / rank; used with lora_rank."
    )
    lora_targets: str = text(
        "all-linear",
        help="Layers with an adapter, by the last part of their names with commas between; all-linear: "
        "every linear layer but the output. Used with lora_rank.",
    )


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    group_size: int = bounded(8, low=1, high=1024, help="Completions per prompt.")
    prompts_per_step: int = bounded(
        32, low=1, high=65536, help="Prompts per step; times the group size it is the rollouts of a step."
    )
    max_new_tokens: int = bounded(64, low=1, high=131072, help="Longest completion, in tokens.")
    temperature: float = bounded(
        1.0,
        low=0.0001,
        high=100,
        help="Divides the logits: below 1 draws likely tokens more often. The policy is trained under the same.",
    )
    top_k: int = bounded(0, low=0, high=10_000_000, help="Only the k likeliest tokens are drawn; 0: all.")
    top_p: float = bounded(
        1.0, low=0, high=1, open_low=True, help="Only the likeliest tokens that together have this probability; 1: all."
    )
    min_p: float = bounded(
        0.0, low=0, high=1, help="Only tokens with this share of the likeliest one's probability; 0: all."
    )
    engine: str = choice(
        "torch",
        ("torch", "vllm", "vllm_server"),
        help="What samples: the policy itself, vLLM in the same process, or vLLM as a server of its own.",
    )
    gap_alarm: float = bounded(
        0.0,
        low=0,
        help="Mean difference of sampler and policy log-probabilities, in nats, from which a step carries an alarm; "
        "0: 0.001 for float32, 0.05 for bfloat16.",
    )
    max_prompt_tokens: int = bounded(
        0, low=0, high=10_000_000, help="Longest prompt that vLLM makes room for; 0: as much as the model's context."
    )
    memory_fraction: float = bounded(0.4, low=0, high=1, open_low=True, help="Share of the GPU's memory for vLLM.")
    tensor_parallel: int = bounded(1, low=1, high=64, help="GPUs that the vLLM server spreads the model over.")
    server_devices: str = text(
        "", help="GPUs of the vLLM server as in CUDA_VISIBLE_DEVICES, such as 1,2; empty: the trainer's."
    )
    server_url: str = text("", help="A vLLM server that runs already (see docs/engines.md); empty: start one.")


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    name: str = choice(
        "adamw",
        ("adamw", "sgd", "muon"),
        help="Optimiser; muon takes the matrices of the layers and adamw the rest.",
    )
    learning_rate: float = bounded(
        6e-5, low=0, high=1, open_low=True, help="Highest learning rate, which the warm-up ends at."
    )
    beta1: float = bounded(0.9, low=0, high=0.9999, help="First decay of adamw; the momentum of sgd and muon.")
    beta2: float = bounded(0.99, low=0, high=0.99999, help="Second decay of adamw.")
    eps: float = bounded(1e-8, low=0, high=1, open_low=True, help="Added to adamw's denominator.")
    weight_decay: float = bounded(
        0.0, low=0, high=10, help="Weights shrink by this share of the learning rate an update."
    )
    warmup_steps: int = bounded(
        0, low=0, high=1_000_000, help="Steps over which the learning rate rises from near 0 to its peak; 0: none."
    )
    schedule: str = choice(
        "constant", ("constant", "linear", "cosine"), help="How the learning rate falls from its peak to its floor."
    )
    floor_fraction: float = bounded(
        0.0, low=0, high=1, help="What is left of the learning rate after the last step of linear or cosine."
    )
    ema_decay: float = bounded(
        0.0, low=0, high=0.999999, help="Keeps a moving average of the weights, by this decay an update; 0: none."
    )
    max_grad_norm: float = bounded(
        1.0, low=0, open_low=True, help="Gradients of a larger norm, over all weights, are scaled down to it."
    )
    updates_per_step: int = bounded(
        1,
        low=1,
        high=64,
        help="Optimiser steps on each batch of rollouts, all of it each time; from the second on the policy differs "
        "from what sampled.",
    )
    micro_batch_rollouts: int = bounded(
        256,
        low=1,
        high=65536,
        help="Most rollouts per forward and backward pass: fewer need less memory and train the same.",
    )
    non_finite: str = choice(
        "stop", ("stop", "skip"), help="A loss or gradient that is not finite ends the run, or leaves out the update."
    )


@dataclass(frozen=True, slots=True)
class EvalConfig:
    every_steps: int = bounded(20, low=0, help="Steps between evaluations; 0 evaluates only the first and last model.")
    prompts: int = bounded(
        256, low=1, high=100_000, help="Held-out prompts that an evaluation asks, the same each time."
    )
    samples: int = bounded(4, low=1, high=1024, help="Completions per held-out prompt, for pass@k.")
    average_weights: bool = field(
        default=False, metadata={"help": "Evaluates the moving average of the weights (optimizer.ema_decay)."}
    )


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    every_steps: int = bounded(10, low=1, help="Steps between checkpoints; a killed run repeats at most so many.")
    keep: int = bounded(2, low=1, high=1000, help="So many of the newest checkpoints are kept, older ones deleted.")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Everything that decides what a run does. `algorithm_params` overrides the recipe's parts by name."""

    name: str = text("run", help="Shown in lists.")
    algorithm: str = text("grpo", help="What it learns by, a recipe or a preset; docs/algorithms describes each.")
    algorithm_params: dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": "Knobs of the algorithm by name; the others stay as its recipe has them."},
    )
    hooks: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "Parts by hook, H1 to H10, in place of the recipe's."}
    )
    steps: int = bounded(
        100,
        low=1,
        high=10_000_000,
        help="Training steps: each samples a batch of rollouts and updates the policy with it.",
    )
    seed: int = bounded(
        0, low=0, high=2**63 - 1, help="Of tasks and draws. Same seed, same machine: same rollouts and losses."
    )
    threads: int = bounded(0, low=0, high=1024, help="CPU threads of torch; 0 lets torch choose.")
    processes: int = bounded(
        1, low=1, high=64, help="Processes on the worker's host that share the model and the work, a GPU each."
    )
    truncated: str = choice(
        "keep",
        ("keep", "mask", "reward_zero"),
        help="A completion cut at max_new_tokens trains as it was judged (keep), is compared but does not train (mask), or "
        "earns 0.",
    )
    shuffle_rewards: bool = field(
        default=False,
        metadata={"help": "Control run: rewards are shuffled inside each batch, so that there is nothing to learn."},
    )
    task: TaskConfig = field(default_factory=TaskConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """The configuration; what it does not name is the recipe's, else the default.

        Raises:
            ConfigError: names the first key at fault and, for a typo, the nearest right one.
        """
        # Recipes use what this module defines.
        from training.recipes import with_settings

        return from_table(cls, with_settings(raw))

    @classmethod
    def from_toml(cls, source: str, *, where: str = "config") -> Self:
        try:
            raw = tomllib.loads(source)
        # Also a ValueError: a number of thousands of digits.
        except (ValueError, RecursionError) as error:
            raise ConfigError("", f"{where}: not valid TOML: {error}") from None
        return cls.from_dict(raw)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        return cls.from_toml(path.read_text(encoding="utf-8"), where=str(path))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_toml(self) -> str:
        return to_toml(self.to_dict())

    def repeat_digest(self) -> str:
        """Equal for runs that differ only in name and seed."""
        same = {key: value for key, value in self.to_dict().items() if key not in {"name", "seed"}}
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()


def from_table(cls: type[Any], raw: dict[str, Any]) -> Any:
    """The frozen dataclass of fields made by `bounded`, `choice` and `text` that a table describes.

    Raises:
        ConfigError: names the first key at fault and, for a typo, the nearest right one.
    """
    return _build(cls, raw, "")


def _build(cls: type[Any], raw: dict[str, Any], prefix: str) -> Any:
    known = {f.name: f for f in fields(cls)}
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known keys: {', '.join(known)}"
            raise ConfigError(prefix + key, f"unknown key; {hint}")
        kind = hints[key]
        if dataclasses.is_dataclass(kind):
            if not isinstance(value, dict):
                raise ConfigError(prefix + key, f"must be a table, got {value!r}")
            values[key] = _build(kind, value, f"{prefix}{key}.")  # type: ignore[arg-type]
        else:
            values[key] = _checked(kind, value, prefix + key, known[key].metadata)
    return cls(**values)


def _checked(kind: Any, value: Any, key: str, rules: "types.MappingProxyType[str, Any] | Any") -> Any:
    if kind is float and type(value) is int:
        value = as_float(value)
    wanted = typing.get_origin(kind) or kind
    if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
        raise ConfigError(key, f"must be {NAMES.get(wanted, wanted.__name__)}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(key, f"must be a finite number, got {value}")
    low, high = rules.get("low"), rules.get("high")
    if low is not None and (value < low or (rules.get("open_low") and value == low)):
        raise ConfigError(key, f"must be {'greater than' if rules.get('open_low') else 'at least'} {low}, got {value}")
    if high is not None and value > high:
        raise ConfigError(key, f"must be at most {high}, got {value}")
    options = rules.get("options")
    if options and value not in options:
        near = difflib.get_close_matches(value, options, n=1)
        raise ConfigError(
            key, f"{value!r} is not one of {', '.join(options)}" + (f"; did you mean {near[0]}?" if near else "")
        )
    return value


def as_float(value: int) -> float:
    """`value` as a float; one of hundreds of digits becomes infinite, which every bound refuses."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "a table", list: "a list"}


def to_toml(table: dict[str, Any], prefix: str = "") -> str:
    """TOML of nested tables of numbers, texts, booleans and lists; JSON's strings are TOML basic strings."""
    lines, tables = [], []
    for key, value in table.items():
        if isinstance(value, dict) and value:
            name = f"{prefix}{_toml_key(key)}"
            tables.append(f"\n[{name}]\n{to_toml(value, name + '.')}")
        else:
            lines.append(f"{_toml_key(key)} = {toml_value(value)}\n")
    return "".join(lines) + "".join(tables)


def toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    # ensure_ascii would write surrogate pairs, which TOML has no escape for; DEL must be escaped in TOML and is not in JSON.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else toml_value(key)
