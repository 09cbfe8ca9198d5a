"""What the evaluations of a run say: held-out numbers by checkpoint, and the prompts that were gained and lost."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlviewer.lib.visible import visible_start
from rlviewer.runs.measures import Measure, measure_of
from rlviewer.runs.models import Group, Run, Step
from rlviewer.runs.queries.series import Series

MOST_CHANGED = 10
COLUMNS = ("eval_parsed_share", "eval_reward_mean", "eval_length_mean")


@dataclass(frozen=True, slots=True)
class Checked:
    """One evaluated checkpoint; a value is None where that metric is not stored."""

    step: Step
    values: Sequence[tuple[Measure, float | None]]


@dataclass(frozen=True, slots=True)
class PromptChange:
    prompt: str
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class EvaluationPage:
    measures: Sequence[Measure]
    rows: Sequence[Checked]  # newest first
    gained: Sequence[PromptChange]
    lost: Sequence[PromptChange]
    gained_count: int
    lost_count: int
    same_count: int


def evaluation_page(run: Run, series: dict[str, Series]) -> EvaluationPage:
    """Three queries. Gained and lost: the same prompts in the first evaluation and in the newest one of its set."""
    steps = list(
        Step.objects.filter(run=run, is_current=True)
        .exclude(split="train")
        .select_related("attempt")
        .order_by("-index", "split")
    )
    ordered = sorted(name for name in series if name.startswith("eval_pass_at_"))
    names = [*sorted(ordered, key=len), *(name for name in COLUMNS if name in series)]
    lookup = {name: dict(zip(series[name].current.steps, series[name].current.values, strict=True)) for name in names}
    rows = [Checked(step, [(measure_of(name), lookup[name].get(step.index)) for name in names]) for step in steps]
    changes = _changes(steps)
    gained = sorted((c for c in changes if c.change > 0), key=lambda c: -c.change)
    lost = sorted((c for c in changes if c.change < 0), key=lambda c: c.change)
    return EvaluationPage(
        measures=[measure_of(name) for name in names],
        rows=rows,
        gained=gained[:MOST_CHANGED],
        lost=lost[:MOST_CHANGED],
        gained_count=len(gained),
        lost_count=len(lost),
        same_count=len(changes) - len(gained) - len(lost),
    )


def _changes(steps: Sequence[Step]) -> list[PromptChange]:
    if not steps:
        return []
    same_set = [step for step in steps if step.split == steps[0].split]
    newest, first = same_set[0], same_set[-1]
    if newest.pk == first.pk:
        return []
    judged = Group.objects.filter(success_share__isnull=False)
    before = {
        prompt: share or 0.0 for prompt, share in judged.filter(step=first).values_list("prompt_id", "success_share")
    }
    after = judged.filter(step=newest, prompt__in=list(before)).select_related("prompt").order_by("index")
    return [
        PromptChange(visible_start(bytes(group.prompt.text), 100), before[group.prompt_id], group.success_share or 0.0)
        for group in after.defer("prompt__oracle_trace")
    ]
