"""Time and memory of the loss stage against plain log-softmax."""

import json
import subprocess
import sys
from pathlib import Path

from bench.report import matmul_seconds, say, table
from kernels.token_logprob.bench import ROUNDS, TOKENS, WIDTH

VOCABULARIES = (50_000, 150_000)


def run(size: str, folder: Path) -> list[str]:
    rows = []
    for vocabulary in VOCABULARIES:
        command = [sys.executable, "-m", "kernels.token_logprob.bench", str(vocabulary)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1])
        found = json.loads(done.stdout)
        ours, plain = found["blocks"], found["plain"]
        rows.append([
            f"{vocabulary:,}", f"{ours['seconds']:.2f}", f"{plain['seconds']:.2f}", f"{ours['seconds'] / plain['seconds']:.2f}",
            f"{ours['processor'] / plain['processor']:.2f}", "1.15",
            f"{ours['peak_bytes'] / 1e6:.0f}", f"{plain['peak_bytes'] / 1e6:.0f}", f"1/{plain['peak_bytes'] / ours['peak_bytes']:.0f}", "1/8",
        ])  # fmt: skip
        say(" ".join(rows[-1]))
    return [
        f"Log-probabilities of {TOKENS} tokens (4 x 512) under an output layer of width {WIDTH}, forward and backward, fp32: in blocks of"
        f" the vocabulary against log-softmax of all logits. {ROUNDS} rounds in turns, medians. Memory: what the pass needs at its"
        " peak, its inputs and the output matrix' own gradient left out, each in a process of its own.",
        "",
        *table(
            ["vocabulary", "blocks (s)", "plain (s)", "ratio", "processor time", "at most", "blocks (MB)", "plain (MB)", "ratio", "at most"],
            rows,
        ),
        "",
        f"Yardstick: 4096^3 float32 matmul {matmul_seconds():.2f} s.",
    ]  # fmt: skip
