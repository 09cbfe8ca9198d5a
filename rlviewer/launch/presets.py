"""Configurations to start from: what the launch form offers and `make demo` trains."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.config import RunConfig

DEMO_FILE = Path(__file__).resolve().parents[2] / "training" / "data" / "demo.toml"


@dataclass(frozen=True, slots=True)
class Preset:
    title: str
    summary: str
    config: dict[str, Any]  # what RunConfig.from_dict takes; what it leaves out keeps its default

    def run_config(self, **changes: Any) -> RunConfig:
        """The preset as a configuration; `changes` replace its top-level values."""
        return RunConfig.from_dict({**self.config, **changes})


PRESETS: dict[str, Preset] = {
    "demo": Preset(
        title="Watch a model learn",
        summary="A model of a million parameters learns addition with GRPO, in about four minutes on two CPU cores.",
        config=tomllib.loads(DEMO_FILE.read_text(encoding="utf-8")),
    ),
    "short": Preset(
        title="A first look",
        summary="Ten small steps, to see how everything fits together; it learns next to nothing.",
        config={
            "name": "first look",
            "steps": 10,
            "sampling": {"group_size": 8, "prompts_per_step": 8, "max_new_tokens": 24},
            "eval": {"every_steps": 5, "prompts": 32, "samples": 2},
            "checkpoint": {"every_steps": 5},
        },
    ),
}
