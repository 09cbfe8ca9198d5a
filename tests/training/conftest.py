"""A model small enough to train in milliseconds, and runs of it.

Transformers brings Triton, which must not be imported before kernels/conftest.py has chosen how it runs: only fixtures do.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from training.config import BUILTIN_MODEL, ModelConfig

if TYPE_CHECKING:
    from training.policy import Policy

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained Llama of 20 k parameters with the built-in tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from training.warmstart import build_tokenizer

    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        # Far from uniform, so that a mistake in a log-probability shows.
        initializer_range=0.3,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def policy(model_folder: Path) -> "Policy":
    from training.policy import load_policy

    return load_policy(ModelConfig(path=str(model_folder)))


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """A run folder with a configuration of a few quick steps of the built-in model, which is right now and then.

    `top` are lines of the first table, `tables` further ones.
    """

    def make(name: str = "run", *, steps: int = 4, top: str = "", model: str = BUILTIN_MODEL, tables: str = "") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.toml").write_text(
            f"""
steps = {steps}
threads = 1
{top}
[model]
path = '{model}'
[sampling]
group_size = 4
prompts_per_step = 3
max_new_tokens = 6
[optimizer]
learning_rate = 1e-4
[eval]
every_steps = 4
prompts = 6
samples = 2
[checkpoint]
every_steps = 3
{tables}
"""
        )
        return folder

    return make
