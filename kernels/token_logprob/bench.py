"""The loss stage in blocks against plain log-softmax: `python -m kernels.token_logprob.bench VOCAB`, one line of JSON.

One forward and one backward pass of a mean over tokens. Time: both in turns. Memory: each in a process of its own, what it
needs at most beyond its inputs and the gradient of the output matrix.
"""

import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import kernels
from kernels.token_logprob import reference

TOKENS, WIDTH, ROUNDS = 4 * 512, 576, 5
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def in_blocks(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return kernels.linear_token_logprob(hidden, weight, None, ids)[0].mean()


def plain(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return reference.token_logprob(torch.nn.functional.linear(hidden, weight), ids).mean()


WAYS: dict[str, Loss] = {"blocks": in_blocks, "plain": plain}


def inputs(tokens: int, vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    hidden = torch.randn(tokens, WIDTH, device=device, requires_grad=True)
    weight = (0.05 * torch.randn(vocab, WIDTH, device=device)).requires_grad_()
    return hidden, weight, torch.randint(vocab, (tokens,), device=device)


def seconds(vocab: int) -> dict[str, dict[str, float]]:
    """Median wall and processor seconds; the first round warms up."""
    leaves = inputs(TOKENS, vocab)
    wall: dict[str, list[float]] = {name: [] for name in WAYS}
    processor: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS + 1):
        for name, way in WAYS.items():
            start, start_processor = time.perf_counter(), time.process_time()
            way(*leaves).backward()
            _wait()
            wall[name].append(time.perf_counter() - start)
            processor[name].append(time.process_time() - start_processor)
            leaves[0].grad = leaves[1].grad = None
    return {
        name: {"seconds": statistics.median(wall[name][1:]), "processor": statistics.median(processor[name][1:])}
        for name in WAYS
    }


def peak_bytes(name: str, vocab: int) -> int:
    """Of this process, which must do nothing else."""
    # Brings every library and thread in.
    WAYS[name](*inputs(8, 512)).backward()
    leaves = inputs(TOKENS, vocab)
    before = _held_bytes()
    WAYS[name](*leaves).backward()
    assert leaves[1].grad is not None
    return _peak_bytes() - before - leaves[1].grad.nbytes


def _held_bytes() -> int:
    """Now; the peak starts here again."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return _status_bytes("VmRSS")


def _peak_bytes() -> int:
    # Not getrusage: there a process starts with the peak of its parent.
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    found = re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(vocab: int) -> dict[str, dict[str, float]]:
    result = seconds(vocab)
    for name in WAYS:
        command = [sys.executable, "-m", "kernels.token_logprob.bench", str(vocab), name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        result[name]["peak_bytes"] = float(done.stdout)
    return result


if __name__ == "__main__":
    vocab, *names = sys.argv[1:]
    for name in names:
        sys.stdout.write(f"{peak_bytes(name, int(vocab))}\n")
    if not names:
        sys.stdout.write(json.dumps(measure(int(vocab))) + "\n")
