"""What a solved prompt costs, and where the time goes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlviewer.charts import areas, bars, curves, theme
from rlviewer.charts.areas import Area, AreaChart
from rlviewer.charts.bars import BarChart, Bars
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Curve, CurveChart
from rlviewer.runs.models import Run
from rlviewer.signal.measures.outcomes import LENGTH_BINS, length_edge
from rlviewer.signal.queries.dead_groups import at_step, browse
from rlviewer.signal.steps import StepRange

PHASES = ("sample", "score", "learn", "sync", "record")
NO_TIMINGS = "No timings in this source; the panels of lengths stand alone."


@dataclass(frozen=True, slots=True)
class _StepRow:
    index: int
    rollouts: int
    kept: int
    sampled: int
    trained: int
    truncated: float | None
    reward: float | None
    phases: str  # JSON: seconds by phase
    solved: int | None
    length_right: float | None
    length_wrong: float | None
    right: Sequence[int] | None
    wrong: Sequence[int] | None
    unjudged: Sequence[int] | None

    @property
    def seconds(self) -> Mapping[str, float]:
        return {name: value for name, value in json.loads(self.phases).items() if isinstance(value, int | float)}


@dataclass(frozen=True, slots=True)
class Costs:
    step_count: int
    sampled: int
    trained: int
    rollouts: int
    dropped: int
    solved: int | None  # groups with a right rollout, in all steps
    seconds: float | None
    charts: Sequence[Chart]

    @property
    def tokens_a_solved_prompt(self) -> float | None:
        return self.sampled / self.solved if self.solved else None

    @property
    def seconds_a_solved_prompt(self) -> float | None:
        return self.seconds / self.solved if self.solved and self.seconds else None

    @property
    def trained_share(self) -> float | None:
        return self.trained / self.sampled if self.sampled else None


def costs(run: Run, steps: StepRange, _query: Mapping[str, str]) -> Costs:
    """One query over the steps of the range."""
    found = steps.rows(
        run,
        "SELECT s.index, s.rollout_count, s.kept_count, s.tokens_sampled, s.tokens_trained, s.truncated_share,"
        " s.reward_mean, s.phase_seconds::text, g.solved_groups, g.length_right_mean, g.length_wrong_mean,"
        " g.lengths_right, g.lengths_wrong, g.lengths_unjudged"
        " FROM runs_step s LEFT JOIN signal_stepsignal g ON g.step_id = s.id WHERE IN_RANGE ORDER BY s.index",
    )
    by_step = [_StepRow(*row) for row in found]
    solved = [step.solved for step in by_step if step.solved is not None]
    seconds = sum(sum(step.seconds.values()) for step in by_step)
    return Costs(
        step_count=len(by_step),
        sampled=sum(step.sampled for step in by_step),
        trained=sum(step.trained for step in by_step),
        rollouts=sum(step.rollouts for step in by_step),
        dropped=sum(step.rollouts - step.kept for step in by_step),
        solved=sum(solved) if solved else None,
        seconds=seconds or None,
        charts=_charts(run, steps, by_step) if by_step else [],
    )


def _charts(run: Run, steps: StepRange, by_step: Sequence[_StepRow]) -> list[Chart]:
    index = [step.index for step in by_step]

    def line(name: str, values: Sequence[float | None], place: int = 0, *terms: str) -> Curve:
        return Curve(name, index, values, theme.colour_of(place), links=at_step(run, *terms))

    length = [
        line("right", [step.length_right for step in by_step], 0, "correct:yes"),
        line("wrong", [step.length_wrong for step in by_step], 1, "correct:no"),
    ]
    price = [step.sampled / step.solved if step.solved else None for step in by_step]
    tokens = [
        line("sampled", [step.sampled for step in by_step]),
        line("trained", [step.trained for step in by_step], 1, "kept:yes"),
    ]
    has_judged = any(step.length_right is not None or step.length_wrong is not None for step in by_step)
    return [
        Chart("lengths", "Mean length by outcome", "tokens", curves.figure(CurveChart("tokens", length)) if has_judged else None,
              nothing="Not recorded: no rollout of these steps was judged right or wrong."),
        _histogram(run, steps, by_step),
        Chart("truncated", "Cut at the token limit", "share of rollouts",
              curves.figure(CurveChart("share", [line("truncated", [s.truncated for s in by_step], 0, "stop:length")], is_share=True))),
        Chart("price", "Tokens for a solved prompt", "tokens", curves.figure(CurveChart("tokens", [line("tokens", price)])),
              meaning="All tokens sampled in the step, for each of its prompts with a right rollout."),
        Chart("tokens", "Tokens sampled and trained on", "tokens", curves.figure(CurveChart("tokens", tokens)),
              meaning="Trained: counted by the loss, in rollouts that entered the update."),
        *_timings(run, by_step),
    ]  # fmt: skip


def _histogram(run: Run, steps: StepRange, by_step: Sequence[_StepRow]) -> Chart:
    """Rollouts by length and outcome; a bar leads to them."""
    parts = (
        ("right", "right", "correct:yes", 0),
        ("wrong", "wrong", "correct:no", 1),
        ("unjudged", "not judged", "correct:none", 7),
    )
    totals = {
        name: [
            sum(column[place] for step in by_step if (column := getattr(step, name))) for place in range(LENGTH_BINS)
        ]
        for name, *_ in parts
    }
    used = [place for place in range(LENGTH_BINS) if any(total[place] for total in totals.values())]
    title, unit = "Rollouts by length and outcome", "rollouts"
    if not used:
        return Chart("histogram", title, unit, None, nothing="Not worked out yet.")
    shown = [place for place in range(used[0], used[-1] + 1) if length_edge(place) < length_edge(place + 1)]
    spans = [(length_edge(place), length_edge(place + 1) - 1) for place in shown]
    series = [
        Bars(words, [totals[name][place] for place in shown],
             [browse(run, steps.term, term, f"length:{0 if low == 1 else low}..{high}") for low, high in spans],
             theme.colour_of(colour))
        for name, words, term, colour in parts
        if any(totals[name])
    ]  # fmt: skip
    names = [str(low) if low == high else f"{low} to {high}" for low, high in spans]
    figure = bars.figure(BarChart("tokens", unit, names, series, is_stacked=True))
    return Chart("histogram", title, unit, figure, meaning="Bins grow with the length: two to a doubling.")


def _timings(run: Run, by_step: Sequence[_StepRow]) -> list[Chart]:
    timed = [step for step in by_step if step.seconds]
    if not timed:
        return [Chart("phases", "Where the time goes", "seconds", None, nothing=NO_TIMINGS)]
    names = [*(name for name in PHASES if any(name in step.seconds for step in timed))]
    names += sorted({name for step in timed for name in step.seconds} - set(names))
    slowest = browse(run, "step:{x}").replace("%7B", "{").replace("%7D", "}") + "&sort=-length"
    stack = AreaChart(
        "seconds",
        [step.index for step in timed],
        [Area(name, [step.seconds.get(name) for step in timed], slowest) for name in names],
    )
    paid = [
        step.reward / total if (total := sum(step.seconds.values())) and step.reward is not None else None
        for step in timed
    ]
    earned = CurveChart("reward per second", [Curve("mean reward per second", [step.index for step in timed], paid)])
    return [
        Chart("phases", "Where the time goes", "seconds", areas.figure(stack),
              meaning="The trainer's own clock, by phase of the step; a mark leads to the longest rollouts of its step."),
        Chart("earned", "Mean reward for a second of the step", "reward per second", curves.figure(earned),
              meaning="Mean reward of the step's rollouts over the seconds the step took."),
    ]  # fmt: skip
