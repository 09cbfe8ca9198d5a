"""What a run's source records, beside the other sources of its project, and what can therefore not be shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlviewer.runs.models import Run, Step
from rlviewer.runs.queries.ledger import RunLedger, run_ledger
from rlviewer.runs.queries.step import TRAIN
from rlviewer.signal.material import read_step
from rlviewer.signal.measures.coverage import RECORDED, RecordedField
from rlviewer.signal.queries.columns import step_columns
from rlviewer.signal.steps import StepRange

# Runs of the project that speak for their sources, newest first.
MOST_RUNS = 200
# How our own trainer is told to record what it does not always have.
HOW = {
    "ref_logprobs": "Set algorithm_params.kl_coefficient above 0.",
    "recomputed_logprobs": "Choose a recipe that corrects the sampler's mismatch, such as tis.",
    "step_boundaries": "Choose a task whose completions show their steps.",
    "answer_cluster": "Choose a reward that votes, such as ttrl.",
}
OWN_SOURCE = "rlviewer"


@dataclass(frozen=True, slots=True)
class Cell:
    """How many of the rollouts of a source have a field."""

    held: int
    count: int

    @property
    def share(self) -> float | None:
        return self.held / self.count if self.count else None

    @property
    def state(self) -> str:
        return "none" if not self.held else "full" if self.held >= self.count else "part"


@dataclass(frozen=True, slots=True)
class FieldRow:
    field: RecordedField
    own: Cell
    others: Sequence[Cell]  # of the other sources, in their order
    how: str

    @property
    def is_closed(self) -> bool:
        return self.own.state == "none"


@dataclass(frozen=True, slots=True)
class Example:
    """A rollout of one step that has a field, and one that has not."""

    field: RecordedField
    step: int
    having: int | None
    lacking: int | None


@dataclass(frozen=True, slots=True)
class Coverage:
    step_count: int
    done: int
    source: str
    sources: Sequence[str]  # other sources of the project
    rows: Sequence[FieldRow]
    timed: Cell  # steps with the seconds of their phases
    has_vocabulary: bool
    ledger: RunLedger
    example: Example | None


@dataclass(frozen=True, slots=True)
class Badge:
    full: int
    part: int
    count: int

    @property
    def missing(self) -> int:
        return self.count - self.full - self.part


def coverage_page(run: Run, steps: StepRange, query: Mapping[str, str]) -> Coverage:
    """Four queries, more for an example or for what could not be stored; tokens are read of one step at most."""
    of = step_columns(run, steps, "recorded", stored=("rollout_count", "phase_seconds::text"))
    counts = [count for count, row in zip(of["rollout_count"], of["recorded"], strict=True) if row]
    known = [row for row in of["recorded"] if row]
    sources = _other_sources(run)
    chosen = next((field for field in RECORDED if field.key == query.get("field")), None)
    return Coverage(
        step_count=len(of["index"]),
        done=len(known),
        source=run.source,
        sources=list(sources),
        rows=[
            FieldRow(
                field,
                _cell(known, counts, place),
                [_cell([row for row, _ in rows], [count for _, count in rows], place) for rows in sources.values()],
                HOW.get(field.key, "") if run.source == OWN_SOURCE else f"Write “{field.key}” with every rollout.",
            )
            for place, field in enumerate(RECORDED)
        ],
        timed=Cell(sum(text != "{}" for text in of["phase_seconds::text"]), len(of["index"])),
        has_vocabulary=run.vocabulary_id is not None,
        ledger=run_ledger(run),
        example=None if chosen is None else _example(run, chosen, of),
    )


def _cell(rows: Sequence[Sequence[int]], counts: Sequence[int], place: int) -> Cell:
    """Steps that were worked out before the field was looked for say nothing of it."""
    pairs = [(row[place], count) for row, count in zip(rows, counts, strict=True) if place < len(row)]
    return Cell(sum(held for held, _ in pairs), sum(count for _, count in pairs))


def _other_sources(run: Run) -> dict[str, list[tuple[list[int], int]]]:
    """Of each other source, what the newest step of its newest runs records. One query."""
    found = (
        Step.objects.filter(
            run__project=run.project_id, split=TRAIN, is_current=True, stepsignal__recorded__isnull=False
        )
        .exclude(run__source=run.source)
        .order_by("run", "-index")
        .distinct("run")
        .values_list("run__source", "stepsignal__recorded", "rollout_count")
    )
    by_source: dict[str, list[tuple[list[int], int]]] = {}
    for source, recorded, count in found[:MOST_RUNS]:
        by_source.setdefault(source, []).append((recorded or [], count))
    return dict(sorted(by_source.items()))


def _example(run: Run, field: RecordedField, of: dict[str, list[Any]]) -> Example | None:
    """From the newest step where some rollouts have it and some do not, else from the newest step."""
    place = RECORDED.index(field)
    steps = [
        (0 < row[place] < count, index)
        for index, row, count in zip(of["index"], of["recorded"], of["rollout_count"], strict=True)
        if row and place < len(row)
    ]
    if not steps:
        return None
    _, index = max(steps)
    material = read_step(Step.objects.get(run=run, split=TRAIN, is_current=True, index=index))
    held = field.holds(material)
    ids = material.narrow["id"]
    return Example(
        field,
        index,
        having=ids[int(held.argmax())] if held.any() else None,
        lacking=ids[int((~held).argmax())] if not held.all() else None,
    )


def badge(run: Run, _steps: StepRange, _query: Mapping[str, str]) -> Badge | None:
    """Of the newest step that is worked out; None before the first. One query."""
    found = (
        Step.objects.filter(run=run, split=TRAIN, is_current=True, stepsignal__recorded__isnull=False)
        .order_by("-index")
        .values_list("stepsignal__recorded", "rollout_count")
        .first()
    )
    if found is None:
        return None
    recorded, count = found[0] or [], found[1]
    full = sum(held >= count for held in recorded)
    return Badge(full, sum(0 < held < count for held in recorded), len(recorded))
