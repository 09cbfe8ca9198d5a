"""Makes the built-in model: a Llama of about a million parameters that reads characters, half taught to do sums.

`python -m training.warmstart` writes it again, the same bytes on the same machine and torch. It is trained on solved tasks,
never on held-out ones, and stopped early: it answers in the right form and is right now and then, which is where
reinforcement learning can begin.
"""

import argparse
import logging
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from training.model_folder import BUILTIN_FOLDER
from training.seeds import derived_seed
from training.tasks.alphabet import ALPHABET
from training.tasks.base import Task
from training.tasks.catalog import FAMILIES, make_params
from training.tasks.stream import TaskStream

PAD, EOS = "<pad>", "<eos>"
CONTEXT_TOKENS = 2048

logger = logging.getLogger("training")


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """So many tasks of one family at one difficulty."""

    family: str
    tasks: int
    params: dict[str, Any] = field(default_factory=dict)


# Single digits first: where carrying is learned.
SUMS = (Share("addition", 96), Share("addition", 32, {"digits": 1}))
# Each family at its usual difficulty, and easier where that is out of reach so early.
OTHERS = (
    Share("reversal", 32, {"length": 3}),
    Share("sorting", 32, {"count": 2}),
    Share("natbool_dag", 32),
    Share("multiplication", 32, {"digits": 1, "other_digits": 1}),
    Share("reversal", 32),
    Share("modular_arithmetic", 32),
    Share("countdown", 32, {"count": 2, "largest_target": 40}),
    Share("sorting", 32),
    Share("multiplication", 32),
    Share("countdown", 32),
)
SEED = 1
# The other families one a step, then sums as well: they are learned fast and must not be learned to the end.
OTHER_STEPS = 250
STEPS = 580
WARMUP_STEPS = 50
LEARNING_RATE = 1e-3


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A token a character of the alphabet; every other character is spelled in the bytes of its UTF-8."""
    spelled = {character.encode()[0] for character in ALPHABET}
    tokens = [PAD, EOS, *ALPHABET, *(f"<0x{byte:02X}>" for byte in range(256) if byte not in spelled)]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Wide and shallow: two layers learn sums as well as four and take half the time a token."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=CONTEXT_TOKENS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def answer_loss(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, tasks: list[Task]) -> Tensor:
    """Mean of -log p over the tokens of the answers and their ends, in nats."""
    prompts = [tokenizer.encode(task.prompt) for task in tasks]
    answers = [[*tokenizer.encode(task.answer), tokenizer.eos_token_id] for task in tasks]
    width = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    # Padding stands on the right, where no earlier token sees it.
    ids = torch.full((len(tasks), width), tokenizer.pad_token_id)
    labels = torch.full((len(tasks), width), -100)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    logits = model(input_ids=ids).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def warm_start(steps: int, seed: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """A model that has seen `steps` batches of solved tasks."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.0)
    streams = {share: _stream(share, seed, number) for number, share in enumerate((*SUMS, *OTHERS))}
    started = time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS)
        share = OTHERS[step % len(OTHERS)]
        losses = {share.family: answer_loss(model, tokenizer, streams[share].take(share.tasks))}
        if step >= OTHER_STEPS:
            sums = [task for part in SUMS for task in streams[part].take(part.tasks)]
            losses["sums"] = answer_loss(model, tokenizer, sums)
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 17 == 0:
            shown = ", ".join(f"{name} {loss.item():.3f}" for name, loss in losses.items())
            logger.info("step %d of %d: %s, %.0f s", step + 1, steps, shown, time.monotonic() - started)
    return model, tokenizer


def _stream(share: Share, seed: int, number: int) -> TaskStream:
    family = FAMILIES[share.family]
    return TaskStream(family, make_params(family, share.params), derived_seed(seed, "warm start", number))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m training.warmstart", description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=BUILTIN_FOLDER, help="folder to write")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    # Sums of floats depend on how they are split over threads.
    torch.set_num_threads(1)
    model, tokenizer = warm_start(options.steps, options.seed)
    # Half precision is exact enough to start from and halves the file.
    model.half().save_pretrained(options.to)
    tokenizer.save_pretrained(options.to)
    size = sum(file.stat().st_size for file in options.to.iterdir())
    logger.info("wrote %s, %.1f MB, %s parameters", options.to, size / 1e6, f"{model.num_parameters():,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
