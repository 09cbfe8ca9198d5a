"""Trains with TRL's GRPO step by step, as it is told. Run by the peer's own Python.

trl_steps.py SPEC.json    (a `Spec`; each line on stdin is a number of steps, each answer a line of JSON)
trl_steps.py --convert GGUF FOLDER    write the weights of a GGUF file as a Hugging Face folder
"""

import json
import math
import os
import random
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WITNESSED_STEPS = 3


@dataclass(frozen=True)
class Spec:
    """A training that both sides do alike."""

    model: str  # folder
    prompts: str  # JSON lines of prompt and answer
    work: str
    reward: str  # random: uniform in 0 to 1, so that no group is dead; exact: 1 for the answer
    group_size: int
    prompts_per_step: int
    max_new_tokens: int
    end_chance: (
        float | None
    )  # of every token to be the last, 0 for completions of full length; None leaves the model alone
    learning_rate: float
    seed: int
    witness: str = ""  # file that TRL's first steps are written to: completions, gradients, weights


@dataclass
class Answer:
    """What some steps took."""

    seconds: float
    processor_seconds: float
    tokens: int  # sampled
    reward: float
    peak_bytes: int  # of the process since it started


def set_end_chance(model: Any, end_ids: list[int], chance: float) -> None:
    """Give the output layer a bias so that the first end token comes with about this chance and others never."""
    import torch

    old = model.get_output_embeddings()
    head = torch.nn.Linear(old.in_features, old.out_features, bias=True)
    head.weight = old.weight
    head.bias = torch.nn.Parameter(torch.zeros(old.out_features), requires_grad=False)
    head.bias[end_ids] = -1e4
    if chance:
        # Right for logits that are all about equal, as those of an untrained model are.
        head.bias[end_ids[0]] = math.log(chance / (1 - chance) * (old.out_features - len(end_ids)))
    model.set_output_embeddings(head)


def peak_bytes() -> int:
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


class Stopwatch:
    """Waits for a number of steps on stdin and answers when they are done."""

    def __init__(self) -> None:
        self.left = self.steps = self.tokens = 0
        self.rewards: list[float] = []
        self.start = self.start_processor = 0.0

    def wait(self) -> bool:
        """False when nobody wants more."""
        line = sys.stdin.readline()
        if not line:
            return False
        self.left = self.steps = int(line)
        self.tokens, self.rewards = 0, []
        self.start, self.start_processor = time.perf_counter(), time.process_time()
        return True

    def count(self, lengths: list[int], rewards: list[float]) -> None:
        self.tokens += sum(lengths)
        self.rewards.append(sum(rewards) / len(rewards))

    def step(self) -> bool:
        """A step is done; False when nobody wants more."""
        self.left -= 1
        if self.left:
            return True
        answer = Answer(
            seconds=(time.perf_counter() - self.start) / self.steps,
            processor_seconds=(time.process_time() - self.start_processor) / self.steps,
            tokens=self.tokens // self.steps,
            reward=sum(self.rewards) / len(self.rewards),
            peak_bytes=peak_bytes(),
        )
        say({**answer.__dict__, "rewards": self.rewards})
        return self.wait()


def say(answer: dict[str, Any]) -> None:
    # Not sys.stdout: libraries write there too.
    os.write(1, json.dumps(answer).encode() + b"\n")


def train(spec: Spec) -> None:
    import datasets
    import torch
    import transformers
    from trl import GRPOConfig, GRPOTrainer

    datasets.disable_progress_bars()
    rows = [json.loads(line) for line in Path(spec.prompts).read_text().splitlines()]
    model = transformers.AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(spec.model)
    if spec.end_chance is not None:
        set_end_chance(model, end_ids(model, tokenizer), spec.end_chance)
    stopwatch, draws = Stopwatch(), random.Random(spec.seed)  # noqa: S311 - of a benchmark
    witnessed: list[dict[str, Any]] = []

    def reward(completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float]:
        if spec.reward == "random":
            rewards = [draws.random() for _ in completions]
        else:
            rewards = [float(one == wanted) for one, wanted in zip(completions, answer, strict=True)]
        stopwatch.count([len(ids) for ids in completion_ids], rewards)
        witnessed.append({"completions": completion_ids})
        return rewards

    class Steps(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            say({"ready": True})
            stopwatch.wait()

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if spec.witness:
                named = model.named_parameters()
                gradients = {name: one.grad.clone() for name, one in named if one.grad is not None}
                witnessed[-1] |= {"reward": stopwatch.rewards[-1], "gradients": gradients}

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if spec.witness:
                witnessed[-1]["weights"] = {name: one.detach().clone() for name, one in model.named_parameters()}
                if len(witnessed) == WITNESSED_STEPS:
                    torch.save(witnessed, spec.witness)
            control.should_training_stop = not stopwatch.step()

    batch = spec.group_size * spec.prompts_per_step
    config = GRPOConfig(
        output_dir=spec.work, use_cpu=True, bf16=False, seed=spec.seed, report_to=[], save_strategy="no",
        disable_tqdm=True, logging_steps=10**9, max_steps=10**6, shuffle_dataset=False,
        per_device_train_batch_size=batch, gradient_accumulation_steps=1, num_generations=spec.group_size,
        max_completion_length=spec.max_new_tokens, temperature=1.0,
        # Its own defaults, which our preset `grpo@trl` takes.
        loss_type="dapo", scale_rewards="group", beta=0.0, epsilon=0.2, num_iterations=1, max_grad_norm=1.0,
        # Adam as we set it.
        learning_rate=spec.learning_rate, lr_scheduler_type="constant",
        adam_beta1=0.9, adam_beta2=0.99, adam_epsilon=1e-8, weight_decay=0.0, gradient_checkpointing=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=reward, args=config, callbacks=[Steps()],
        train_dataset=datasets.Dataset.from_list(rows),
    )  # fmt: skip
    # Its progress lines would mix with the answers.
    sys.stdout = sys.stderr
    trainer.train()


def end_ids(model: Any, tokenizer: Any) -> list[int]:
    ids: list[int] = []
    for source in (tokenizer.eos_token_id, model.config.eos_token_id, model.generation_config.eos_token_id):
        ids += [one for one in (source if isinstance(source, list) else [source]) if one is not None]
    return list(dict.fromkeys(ids))


def convert(gguf: Path, folder: str) -> None:
    import torch
    import transformers

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # A model that came from a quantised file refuses to be saved; its floats in a fresh one do not.
    config = loaded.config
    del config.quantization_config
    plain = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    if sys.argv[1] == "--convert":
        convert(Path(sys.argv[2]), sys.argv[3])
    else:
        train(Spec(**json.loads(Path(sys.argv[1]).read_text())))
