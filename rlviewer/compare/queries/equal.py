"""What each set of runs came to at equal steps, tokens, rollouts or time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlviewer.compare.queries.arms import Arm, Choice
from rlviewer.compare.queries.matrix import Cell, at, cell, run_curves

TITLES: Mapping[str, tuple[str, str, bool]] = {
    "reward": ("training reward", "Mean reward of the last 10 steps up to the common point.", False),
    "entropy": ("entropy", "Nats per token, the same steps.", False),
    "dead": ("dead groups", "Share of groups whose rewards are all equal, the same steps.", True),
}


@dataclass(frozen=True, slots=True)
class EqualRow:
    arm: Arm
    cells: Sequence[tuple[str, Cell, bool]]  # title, mean with interval over seeds, whether it is a share
    last_steps: tuple[int, int]  # fewest and most steps that its runs stored


@dataclass(frozen=True, slots=True)
class EqualTable:
    """`end` is the point that every run reached."""

    end: float | None
    rows: Sequence[EqualRow]
    heads: Sequence[tuple[str, str]]

    @property
    def place(self) -> float | int | None:
        return int(self.end) if self.end is not None and self.end == int(self.end) else self.end


def equal_table(choice: Choice, axis: str) -> EqualTable:
    """Two queries."""
    curves = {own.run_id: own for own in run_curves([run for arm in choice.arms for run in arm.runs])}
    ends = [float(getattr(own, axis)[-1]) for own in curves.values()]
    end = min(ends, default=None)
    rows = []
    for arm in choice.ordered:
        own = [curves[run.pk] for run in arm.runs if run.pk in curves]
        cells = [
            (title, cell([at(run, axis, end, getattr(run, key)) for run in own], is_share=is_share), is_share)
            for key, (title, _, is_share) in TITLES.items()
        ]
        counts = [len(run.step) for run in own] or [0]
        rows.append(EqualRow(arm, cells, (min(counts), max(counts))))
    return EqualTable(end, rows, [(title, meaning) for title, meaning, _ in TITLES.values()])
