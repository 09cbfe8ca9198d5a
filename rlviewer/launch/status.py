"""What a trainer says of itself: attempts/N/status.json, replaced as a whole at each change."""

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from rlviewer.lib.text import bytes_from_str, text_from_bytes


def shown(text: str) -> str:
    """`text` as Postgres takes it (an exception may quote anything), and not too long for a page."""
    return text_from_bytes(bytes_from_str(text))[:2000]


@dataclass(frozen=True, slots=True)
class TrainerError:
    """The exception that ended a trainer, or why it refused its configuration."""

    type: str = ""
    message: str = ""
    where: str = ""  # file:line, or the key of the configuration

    @classmethod
    def from_json(cls, raw: Any) -> Self | None:
        if not isinstance(raw, dict):
            return None
        return cls(*(shown(str(raw.get(f.name) or "")) for f in fields(cls)))


@dataclass(frozen=True, slots=True)
class TrainerStatus:
    """One status.json; the defaults stand for a trainer that has not written one yet."""

    state: str = "starting"
    step: int = 0  # steps done
    steps: int = 0  # planned
    phase: str = ""
    rollouts: int = 0
    reason: str = ""
    error: TrainerError | None = None
    resumed_from_step: int | None = None
    pid: int | None = None
    last_checkpoint: int | None = None
    checkpoints: list[dict[str, Any]] | None = None  # on its disk; None: it has not looked yet
    plugins: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    code_version: str = ""
    seconds: float = 0.0

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The status in `path`; None when there is none yet, or none that can be read."""
        try:
            raw = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return None
        if not isinstance(raw, dict):
            return None
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in raw.items() if key in known}
        return cls(**{**values, "error": TrainerError.from_json(raw.get("error"))})

    @property
    def where(self) -> str:
        """`at step 41`, for the reasons that people read."""
        return "while starting" if self.state == "starting" and not self.step else f"at step {self.step}"
