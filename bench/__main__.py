"""`python -m bench [SECTION] [--size small|full]`: run benchmarks and rewrite their parts of BENCHMARKS.md."""

import argparse
import importlib
import os
from pathlib import Path

from bench.report import write_section

CHECKOUT = Path(__file__).resolve().parents[1]
# Section -> what it answers. Each is a module with run(size, folder) -> the lines of its part.
SECTIONS = {
    "ingest": "How fast, how small and how safe rollouts are stored, beside MLflow and Phoenix",
    "inspect": "How fast pages and searches over a million rollouts are, beside MLflow and Phoenix",
    "trainer": "What recording costs the trainer",
    "loss": "What the loss stage costs",
    "trl": "How long a training step takes, and how much memory, beside TRL",
    "counterfactual": "How soon a worker says what other algorithms would have made of a stored step",
    "stack": "How fast it starts and how much memory it needs when idle",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", nargs="?", choices=SECTIONS, metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--section", choices=SECTIONS, default=os.environ.get("SECTION") or None)
    parser.add_argument("--size", choices=["small", "full"], default=os.environ.get("SIZE") or "small")
    arguments = parser.parse_args()
    chosen = arguments.name or arguments.section
    folder = Path(os.environ.get("BENCH_FOLDER") or CHECKOUT / ".bench")
    folder.mkdir(exist_ok=True)
    for name in [chosen] if chosen else SECTIONS:
        lines = importlib.import_module(f"bench.{name}").run(arguments.size, folder)
        write_section(CHECKOUT / "BENCHMARKS.md", name, SECTIONS[name], arguments.size, lines)


if __name__ == "__main__":
    main()
