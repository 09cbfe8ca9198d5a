"""A DAG of boolean gates with named nodes: `bee=1 cat=0 dog=xor(bee,cat) dog?` is answered by `True`.

No step can be skipped: each gate hangs on every one of its inputs at the values they have, each gate feeds the next, and no
single input fixes the answer. True and False are equally likely.
Source: after the natural-language boolean DAGs of arXiv:2601.21576.
"""

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from training.config import ConfigError
from training.tasks.base import Param, Task, TaskFamily, Verdict, check_text, steps

# fmt: off
NAMES = (
    "ant", "ape", "bat", "bee", "boa", "cat", "cod", "cow", "cub", "dog", "doe", "eel", "elk", "emu", "ewe",
    "fly", "fox", "gnu", "hen", "hog", "jay", "kid", "koi", "owl", "pig", "pup", "ram", "rat", "ray", "yak",
)
# fmt: on
WORD = re.compile(r"True|False")
# A gate and the indexes of the nodes it reads.
Gate = tuple[str, tuple[int, ...]]


def generate(rng: random.Random, params: Mapping[str, Any]) -> Task:
    while True:
        inputs = [rng.random() < 0.5 for _ in range(params["inputs"])]
        gates = draw_gates(rng, inputs, params["depth"], params["fan_in"])
        if not one_input_decides(inputs, gates):
            break
    names = rng.sample(NAMES, len(inputs) + len(gates))
    values = evaluate(inputs, gates)
    given = [f"{name}={int(value)}" for name, value in zip(names, inputs, strict=False)]
    lines = [
        f"{name}={kind}({','.join(names[index] for index in reads)})"
        for name, (kind, reads) in zip(names[len(inputs) :], gates, strict=True)
    ]
    found = [f"{name}={int(value)};" for name, value in zip(names[len(inputs) :], values[len(inputs) :], strict=True)]
    answer = str(values[-1])
    return Task(
        family=FAMILY.name,
        params=dict(params),
        difficulty=float(params["depth"]),
        prompt=f"{' '.join(given + lines)} {names[len(values) - 1]}?",
        answer=answer,
        oracle=steps(*found, answer),
        operands=canonical(inputs, gates),
    )


def draw_gates(rng: random.Random, inputs: Sequence[bool], depth: int, fan_in: int) -> list[Gate]:
    """One gate a level; its first input is the gate before it, its output a fair coin."""
    values = list(inputs)
    gates: list[Gate] = []
    for level in range(depth):
        before = [len(values) - 1] if level else []
        others = range(len(values) - len(before))
        reads = tuple(before + rng.sample(others, min(fan_in, len(values)) - len(before)))
        wanted = rng.random() < 0.5
        kind = rng.choice(sensitive_kinds([values[index] for index in reads], wanted))
        gates.append((kind, tuple(rng.sample(reads, len(reads)))))
        values.append(wanted)
    return gates


def sensitive_kinds(read: Sequence[bool], wanted: bool) -> list[str]:
    """Kinds of gate that give `wanted` and would change if any one of the values read did."""
    kinds = ["xor" if (sum(read) % 2 == 1) == wanted else "xnor"]
    if all(read):
        kinds.append("and" if wanted else "nand")
    if not any(read):
        kinds.append("nor" if wanted else "or")
    return kinds


def gate_value(kind: str, read: Sequence[bool]) -> bool:
    if kind in ("and", "nand"):
        return all(read) == (kind == "and")
    if kind in ("or", "nor"):
        return any(read) == (kind == "or")
    return (sum(read) % 2 == 1) == (kind == "xor")


def evaluate(inputs: Sequence[bool], gates: Sequence[Gate]) -> list[bool]:
    """Values of all nodes, gate by gate."""
    values = list(inputs)
    for kind, reads in gates:
        values.append(gate_value(kind, [values[index] for index in reads]))
    return values


def one_input_decides(inputs: Sequence[bool], gates: Sequence[Gate]) -> bool:
    """Whether some input, at the value it has, gives the answer whatever the others are."""
    outcomes = {world: evaluate(world, gates)[-1] for world in itertools.product((False, True), repeat=len(inputs))}
    return any(
        len({outcome for world, outcome in outcomes.items() if world[index] == value}) == 1
        for index, value in enumerate(inputs)
    )


def canonical(inputs: Sequence[bool], gates: Sequence[Gate]) -> str:
    """Equal for tasks that differ in names and in the order a gate lists its inputs."""
    given = "".join(str(int(value)) for value in inputs)
    return " ".join([given, *(f"{kind}({','.join(map(str, sorted(reads)))})" for kind, reads in gates)])


def check(task: Task, completion: str) -> Verdict:
    return check_text(task, completion, pattern=WORD, noun="True or False")


def check_together(params: Mapping[str, Any]) -> None:
    if params["fan_in"] > params["inputs"]:
        raise ConfigError(
            "task.params.fan_in",
            f"must be at most task.params.inputs ({params['inputs']}), got {params['fan_in']}",
        )


FAMILY = TaskFamily(
    name="natbool_dag",
    title="Boolean DAG",
    help="Evaluate a chain of boolean gates with named nodes.",
    params={
        "inputs": Param(4, "Named inputs with a given value.", low=2, high=8),
        "depth": Param(3, "Gates, each reading the one before it.", low=1, high=16),
        "fan_in": Param(2, "Inputs of each gate.", low=2, high=4),
    },
    generate=generate,
    check=check,
    check_together=check_together,
    at_level=lambda level: {"depth": level + 1},
    last_level=11,
)
