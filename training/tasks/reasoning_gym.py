"""Every dataset of the reasoning-gym library as a task family, `reasoning_gym:NAME`. Imports no torch.

The library is imported when a dataset is first named. Some of its datasets walk over sets of texts, so a seed gives the same
task in another process only under a fixed PYTHONHASHSEED; the trainer starts itself over with one.
"""

import contextlib
import dataclasses
import datetime
import enum
import functools
import importlib
import io
import json
import math
import random
import re
from collections.abc import Mapping
from typing import Any

from training.config import ConfigError
from training.params import unknown
from training.tasks.base import Param, Task, TaskFamily, Verdict, steps, unreadable

PREFIX = "reasoning_gym:"
# fmt: off
DATASETS = (
    "ab", "acre", "advanced_geometry", "aiw", "arc_1d", "arc_agi", "base_conversion", "basic_arithmetic", "bf",
    "binary_alternation", "binary_matrix", "bitwise_arithmetic", "boxnet", "caesar_cipher",
    "calendar_arithmetic", "chain_sum", "circuit_logic", "codeio", "coin_flip", "color_cube_rotation",
    "complex_arithmetic", "composite", "count_bits", "count_primes", "countdown", "course_schedule",
    "cryptarithm", "decimal_arithmetic", "decimal_chain_sum", "dice", "emoji_mystery", "family_relationships",
    "figlet_font", "fraction_simplification", "futoshiki", "game_of_life", "game_of_life_halting", "gcd",
    "graph_color", "group_anagrams", "gsm_symbolic", "intermediate_integration", "isomorphic_strings", "jugs",
    "kakurasu", "knight_swap", "knights_knaves", "largest_island", "lcm", "leg_counting", "letter_counting",
    "letter_jumble", "list_functions", "mahjong_puzzle", "manipulate_matrix", "maze", "mini_sudoku",
    "modulo_grid", "n_queens", "needle_haystack", "number_filtering", "number_format", "number_sequence",
    "number_sorting", "palindrome_generation", "palindrome_partitioning", "path_star", "polynomial_equations",
    "polynomial_multiplication", "pool_matrix", "power_function", "prime_factorization", "products",
    "propositional_logic", "puzzle24", "quantum_lock", "ransom_note", "rearc", "rectangle_count",
    "rotate_matrix", "rotten_oranges", "rubiks_cube", "rush_hour", "self_reference", "sentence_reordering",
    "shortest_path", "simple_equations", "simple_geometry", "simple_integration", "sokoban", "spell_backward",
    "spiral_matrix", "string_insertion", "string_manipulation", "string_splitting", "string_synthesis",
    "sudoku", "survo", "syllogism", "time_intervals", "tower_of_hanoi", "tsumego", "word_ladder",
    "word_sequence_reversal", "word_sorting", "zebra_puzzles",
)
# fmt: on

# Knobs that are ours to set: a task is the only one of a dataset made for it.
OUR_KNOBS = frozenset({"size", "seed"})
# These load word lists or boards when built and draw only from their seed: built once, then reseeded.
SLOW_TO_BUILD = frozenset({"arc_agi", "codeio", "figlet_font", "group_anagrams", "word_ladder"})
# No single right answer, but the metadata holds one. boxnet and rush_hour hold none at all.
ANSWER_IN_METADATA = {
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
}
# The library's scorer takes any text for True: compared with the answer as written instead.
COMPARED_AS_TEXT = frozenset({"game_of_life_halting"})
LONGEST_ANSWER = 20_000
LONGEST_EVALUATED = 1000

# Scorers of these datasets evaluate the answer as Python, so only what can neither call into Python nor name a number too
# large to hold may reach them.
LITERAL = re.compile(r"""[\w\s,\[\]'"]*""", re.ASCII)
ARITHMETIC = re.compile(r"(?!.*\*\*)(?:[0-9]{1,15}(?![0-9])|[-+*/(). ])*")
ALGEBRA = re.compile(r"(?:[0-9]{1,15}(?:\.[0-9]{1,15})?(?![0-9A-Za-z])|[A-Za-z]+(?![0-9])|[-+*/^() ])*")
EVALUATED = {
    "binary_matrix": LITERAL,
    "countdown": ARITHMETIC,
    "intermediate_integration": ALGEBRA,
    "n_queens": LITERAL,
    "polynomial_multiplication": ALGEBRA,
    "puzzle24": ARITHMETIC,
    "simple_integration": ALGEBRA,
    "spiral_matrix": LITERAL,
    "string_insertion": LITERAL,
}
FUNCTIONS = frozenset(("exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "sqrt", "pi"))
NAME = re.compile(r"[A-Za-z]+")
POWER = re.compile(r"\*\*|\^")
# A whole power of at most two digits, or a fraction of such, of a symbol or of one bracket.
SMALL_POWER = re.compile(
    r"[A-Za-z0-9)] *(?:\*\*|\^) *(?:-?[0-9]{1,2}|\(-?[0-9]{1,2}(?:/[0-9]{1,2})?\))(?![0-9. ]*(?:\*\*|\^|[0-9]))"
)
BRACKET_POWER = re.compile(r"\) *(?:\*\*|\^)")


def family(name: str) -> TaskFamily:
    """The dataset `name` (without the prefix) as a family.

    Raises:
        ConfigError: there is no such dataset, or the library is not installed.
    """
    if name not in DATASETS:
        raise ConfigError("task.name", unknown(name, DATASETS, "reasoning-gym dataset"))
    return _family(name)


@functools.cache
def _family(name: str) -> TaskFamily:
    dataset_class, config_class = _library().DATASETS[name]
    summary = next(iter((dataset_class.__doc__ or "").strip().splitlines()), "")
    return TaskFamily(
        name=PREFIX + name,
        title=f"reasoning-gym: {name.replace('_', ' ')}",
        help=summary or "A dataset of the reasoning-gym library.",
        params=_knobs(config_class),
        generate=functools.partial(_generate, name),
        check=_check,
        check_together=functools.partial(_check_together, name),
    )


def _library() -> Any:
    try:
        importlib.import_module("reasoning_gym")
        return importlib.import_module("reasoning_gym.factory")
    except ImportError as error:
        raise ConfigError(
            "task.name", f"reasoning-gym cannot be imported ({error}); install the extra `train`"
        ) from error


def _knobs(config_class: type[Any]) -> dict[str, Param]:
    """Fields of a dataset's configuration that a configuration file can hold."""
    default = config_class()
    knobs = {}
    for field in dataclasses.fields(config_class):
        value = _plain(getattr(default, field.name))
        if field.name in OUR_KNOBS or not isinstance(value, int | float | str | bool | list | tuple | None):
            continue
        if field.type is float and isinstance(value, int):
            value = float(value)
        options = tuple(item.value for item in field.type) if isinstance(field.type, enum.EnumMeta) else ()
        knobs[field.name] = Param(value, field.name.replace("_", " ").capitalize() + ".", options=options)
    return knobs


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value.value if isinstance(value, enum.Enum) else value


def _configuration(name: str, params: Mapping[str, Any], seed: int) -> Any:
    """The dataset's own configuration object, checked by the library."""
    config_class = _library().DATASETS[name][1]
    default = config_class()
    values = {key: _typed(getattr(default, key), value, key) for key, value in params.items()}
    if name == "composite":
        values["datasets"] = _composite_datasets(values["datasets"])
    config = config_class(size=1, seed=seed, **values)
    if hasattr(config, "validate"):
        config.validate()
    return config


def _typed(default: Any, value: Any, key: str) -> Any:
    if isinstance(default, datetime.date | datetime.time) and isinstance(value, str):
        return type(default).fromisoformat(value)
    if isinstance(default, enum.Enum):
        return type(default)(value)
    return list(value) if isinstance(value, list) else value


def _composite_datasets(raw: Any) -> list[Any]:
    """`[{name = "chain_sum", weight = 1, config = {...}}]` as the library's own type."""
    spec = importlib.import_module("reasoning_gym.composite").DatasetSpec
    if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
        raise ValueError("datasets must be a list of tables with name and weight")
    return [spec(**{"weight": 1.0, "config": {}, **item}) for item in raw]


def _check_together(name: str, params: Mapping[str, Any]) -> None:
    try:
        _configuration(name, params, seed=0)
    except (AssertionError, TypeError, ValueError) as error:
        reason = str(error) or "the library refuses this combination"
        # The library says which knob in words only.
        key = next((knob for knob in params if re.search(rf"\b{knob}\b", reason)), "")
        raise ConfigError(f"task.params.{key}".rstrip("."), reason) from error


def _dataset(name: str, params: Mapping[str, Any], seed: int) -> Any:
    if name in SLOW_TO_BUILD:
        dataset = _built(name, json.dumps(params, sort_keys=True))
        dataset.seed = dataset.config.seed = seed
        return dataset
    return _library().DATASETS[name][0](config=_configuration(name, params, seed))


@functools.lru_cache(maxsize=16)
def _built(name: str, params: str) -> Any:
    return _library().DATASETS[name][0](config=_configuration(name, json.loads(params), seed=0))


def _generate(name: str, rng: random.Random, params: Mapping[str, Any]) -> Task:
    # The compiler behind one of the datasets prints while it works.
    with contextlib.redirect_stdout(io.StringIO()):
        dataset, entry = _draw(name, rng, params)
    answer = oracle_answer(name, entry)
    return Task(
        family=PREFIX + name,
        params=dict(params),
        difficulty=0.0,
        prompt=entry["question"],
        answer=answer,
        oracle=steps(answer) if answer else (),
        payload={"dataset": dataset, "entry": entry},
    )


def _draw(name: str, rng: random.Random, params: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    while True:
        dataset = _dataset(name, params, rng.getrandbits(31))
        entry = dataset[0]
        # An integral that the library could not solve comes back as its own answer.
        if "Integral(" not in str(entry["answer"]):
            return dataset, entry


def oracle_answer(name: str, entry: Mapping[str, Any]) -> str:
    """A right answer as text; empty where the library knows none."""
    answer = entry["answer"]
    if answer is None and name in ANSWER_IN_METADATA:
        answer = entry["metadata"][ANSWER_IN_METADATA[name]]
    if answer is None:
        return ""
    return answer if isinstance(answer, str) else json.dumps(answer)


def answer_text(completion: str) -> str:
    """What stands in the last <answer> element, else the whole completion; without surrounding white space."""
    start = completion.rfind("<answer>")
    end = completion.find("</answer>", start)
    return (completion[start + len("<answer>") : end] if 0 <= start < end else completion).strip()


def _check(task: Task, completion: str) -> Verdict:
    found = answer_text(completion)
    name = task.family.removeprefix(PREFIX)
    if not found or len(found) > max(LONGEST_ANSWER, 2 * len(task.answer)) or not _is_safe(name, found, task.answer):
        return unreadable(found, "an answer of the form that the prompt asks for")
    try:
        score = _score(name, task, found)
    except Exception as error:  # a hundred scorers of others, each failing in its own way on odd text
        return Verdict(0.0, False, None, f"The library could not score it: {type(error).__name__}.")
    if not math.isfinite(score):
        return Verdict(0.0, False, None, f"The library's score was {score}.")
    reward = min(max(score, 0.0), 1.0)
    if reward == 1:
        return Verdict(1.0, True, found, "Right.")
    expected = f" Expected {task.answer[:200]}." if task.answer else ""
    return Verdict(reward, False, found, f"Scored {reward:.3g}.{expected}")


def _score(name: str, task: Task, answer: str) -> float:
    if name in COMPARED_AS_TEXT:
        return float(answer == task.answer)
    return float(task.payload["dataset"].score_answer(answer, task.payload["entry"]))


def _is_safe(name: str, answer: str, right: str) -> bool:
    # int() and float() read digits of every script; only the prompt's own are an answer.
    if any(char.isdecimal() and not char.isascii() and char not in right for char in answer):
        return False
    allowed = EVALUATED.get(name)
    if allowed is None:
        return True
    if len(answer) > max(LONGEST_EVALUATED, 2 * len(right)) or not allowed.fullmatch(answer):
        return False
    return allowed is not ALGEBRA or _is_tame_algebra(answer)


def _is_tame_algebra(answer: str) -> bool:
    """Only known functions and one-letter symbols, and no powers of powers: they grow past any memory."""
    if any(len(name) > 1 and name not in FUNCTIONS for name in NAME.findall(answer)):
        return False
    return len(SMALL_POWER.findall(answer)) == len(POWER.findall(answer)) and len(BRACKET_POWER.findall(answer)) <= 1
