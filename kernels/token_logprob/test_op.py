"""The Triton kernels against the reference, on a GPU or in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.testing import assert_matches
from kernels.token_logprob import blocks, op, reference

TEMPERATURE = 0.7
CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs a program after another: few of them, but more than one in every direction."""
    monkeypatch.setattr(op, "ROW_BLOCK", 256)
    monkeypatch.setattr(op, "TILE", {"BLOCK_N": 16, "BLOCK_V": 64, "BLOCK_H": 16})
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 1 << 12)
    monkeypatch.setattr(blocks, "MIN_COLUMNS", 64)


# 7 is smaller than a block, 513 leaves one lane in the third, 1000 needs the running maximum four times.
@pytest.mark.parametrize(("rows", "vocab"), [(1, 7), (5, 513), (3, 1000)])
def test_tokens_under_logits_match_the_reference(rows: int, vocab: int, device: str) -> None:
    torch.manual_seed(0)
    logits, ids = 4 * torch.randn(rows, vocab, device=device), torch.randint(vocab, (rows,), device=device)
    assert_matches(
        lambda logits: op.token_logprob_and_entropy(logits, ids),
        lambda logits: reference.token_logprob_and_entropy(logits, ids),
        [logits],
        atol=1e-5,
    )


def test_logits_that_rise_fall_or_are_impossible(device: str) -> None:
    rising = torch.linspace(-60, 60, 600, device=device)
    logits = torch.stack(
        [rising, rising.flip(0), torch.where(torch.arange(600, device=device) < 300, -torch.inf, rising)]
    )
    ids = torch.tensor([599, 3, 400], device=device)
    assert_matches(
        lambda logits: op.token_logprob_and_entropy(logits, ids),
        lambda logits: reference.token_logprob_and_entropy(logits, ids),
        [logits],
        atol=1e-5,
    )


def test_rows_may_lie_apart_and_in_half_precision(device: str) -> None:
    torch.manual_seed(0)
    wide, ids = torch.randn(4, 2, 300, device=device, dtype=torch.bfloat16), torch.randint(300, (4,), device=device)
    for view in (wide[:, 0], wide[:, 0].T.contiguous().T):
        values = op.token_logprob_and_entropy(view, ids)
        for mine, wanted in zip(values, reference.token_logprob_and_entropy(view, ids), strict=True):
            torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-5)


# Ragged in every direction against tiles of 16 x 64 x 16, and one that fits exactly.
@pytest.mark.parametrize(("tokens", "vocab", "width"), [(1, 7, 5), (37, 201, 24), (32, 128, 16)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_tokens_under_a_linear_layer_match_the_reference(
    tokens: int, vocab: int, width: int, has_bias: bool, device: str
) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(tokens, width, device=device), torch.randn(vocab, width, device=device)]
    inputs += [torch.randn(vocab, device=device)] if has_bias else []
    ids = torch.randint(vocab, (tokens,), device=device)
    assert_matches(
        lambda *inputs: through_triton(*inputs, ids=ids),
        lambda hidden, weight, bias=None: reference.linear_token_logprob(
            hidden, weight, bias, ids, temperature=TEMPERATURE
        ),
        inputs,
        atol=2e-5,
    )


def test_a_linear_layer_in_half_precision_is_summed_in_full(device: str) -> None:
    torch.manual_seed(0)
    # The interpreter multiplies the bits of bf16 as if they were whole numbers.
    half = torch.bfloat16 if device == "cuda" else torch.float16
    hidden, weight = torch.randn(20, 64, device=device, dtype=half), torch.randn(130, 64, device=device, dtype=half)
    ids = torch.randint(130, (20,), device=device)
    values = through_triton(hidden, weight, ids=ids)
    exact = reference.linear_token_logprob(hidden.double(), weight.double(), None, ids, temperature=TEMPERATURE)
    for mine, wanted in zip(values, exact, strict=True):
        torch.testing.assert_close(mine.double(), wanted, atol=5e-5, rtol=1e-5)


def test_blocks_of_impossible_tokens_add_nothing(device: str) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(5, 8, device=device), torch.randn(200, 8, device=device)
    bias = torch.where(torch.arange(200, device=device) < 70, -torch.inf, 0.0)
    ids = torch.full((5,), 150, device=device)
    assert_matches(
        lambda hidden, weight: through_triton(hidden, weight, bias, ids=ids),
        lambda hidden, weight: reference.linear_token_logprob(hidden, weight, bias, ids, temperature=TEMPERATURE),
        [hidden, weight],
        atol=2e-5,
    )


def test_double_precision_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="float64"):
        op.token_logprob_and_entropy(
            torch.zeros(1, 2, device=device, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
        )


def test_every_kernel_compiles_for_a_gpu() -> None:
    """The interpreter takes what the compiler refuses. Without it, and for a GPU that need not be here."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILE], env=environment, cwd=CHECKOUT, check=True)


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from kernels.token_logprob import kernel, op
constants = {**op.TILE, "BLOCK": op.ROW_BLOCK, "HAS_BIAS": True}
halves = ("logits_ptr", "hidden_ptr", "weight_ptr", "bias_ptr", "grad_ptr")
for function in (kernel.row_statistics, kernel.row_gradient, kernel.tile_statistics, kernel.tile_gradient):
    names = function.arg_names
    types = {name: "*fp32" if name.endswith("_ptr") else "i32" for name in names}
    types |= {name: "*bf16" for name in halves} | {"ids_ptr": "*i64", "inverse_temperature": "fp32"}
    types |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        fn=function,
        signature={name: types[name] for name in names},
        constexprs={name: value for name, value in constants.items() if name in names},
    )
    assert compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
"""


def through_triton(hidden: Tensor, weight: Tensor, bias: Tensor | None = None, *, ids: Tensor) -> tuple[Tensor, ...]:
    logprobs, entropy = blocks.linear_token_logprob(
        hidden, weight, bias, ids, temperature=TEMPERATURE, with_entropy=True, tiles=op
    )
    assert entropy is not None
    return logprobs, entropy
