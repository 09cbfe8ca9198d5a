"""Seeds for everything that is drawn during a run. Imports no torch."""

import hashlib
import os
import sys
from collections.abc import Mapping


def fix_string_hashes() -> None:
    """Starts this process over under fixed hashes unless they are: some task generators walk over sets of texts."""
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same command again


def derived_seed(seed: int, purpose: str, number: int) -> int:
    """A seed of its own for each purpose and number; 63 bits, since it is stored in a signed column."""
    digest = hashlib.sha256(f"{purpose}|{seed}|{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class SeedStream:
    """Seeds one after another; the n-th depends on the stream's seed, its purpose and n only."""

    def __init__(self, seed: int, purpose: str) -> None:
        self.seed = seed
        self.purpose = purpose
        self.drawn = 0

    def next(self) -> int:
        self.drawn += 1
        return derived_seed(self.seed, self.purpose, self.drawn - 1)

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps; JSON-ready."""
        return {"seed": self.seed, "drawn": self.drawn}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was taken."""
        self.seed, self.drawn = int(state["seed"]), int(state["drawn"])
