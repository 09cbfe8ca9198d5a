"""The pages of the Signal tab, one entry each: what it asks, who answers, who draws it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlviewer.runs.models import Run
from rlviewer.signal.queries.costliest import costliest
from rlviewer.signal.queries.costs import costs
from rlviewer.signal.queries.coverage import badge, coverage_page
from rlviewer.signal.queries.data_audit import data_audit
from rlviewer.signal.queries.dead_groups import dead_details, dead_groups
from rlviewer.signal.queries.diversity import diversity_page
from rlviewer.signal.queries.gains import gains
from rlviewer.signal.queries.gradient_budget import gradient_budget
from rlviewer.signal.queries.passes import passes
from rlviewer.signal.queries.point import point
from rlviewer.signal.queries.rewards import mean_against_highest, rewards
from rlviewer.signal.queries.trust_region import trust_region
from rlviewer.signal.queries.what_if import what_if
from rlviewer.signal.steps import StepRange

# The run, its steps, and the query for what else an address may say.
Content = Callable[[Run, StepRange, Mapping[str, str]], Any]


@dataclass(frozen=True, slots=True)
class SignalPage:
    """`content` gives what `template` shows. `parts` are pieces that the page fetches by themselves, since they take longer."""

    title: str
    question: str
    template: str
    content: Content
    parts: Mapping[str, tuple[str, Content]] = field(default_factory=dict)
    has_range: bool = True  # the address may narrow its steps
    takes_runs: bool = False  # the curves of other runs can be laid over those of its charts


DEFAULT = "dead-groups"
# Pages of later apps, by the name of their address.
FURTHER = {"counterfactual": "Other algorithms", "rescore": "Other rewards"}
PAGES: dict[str, SignalPage] = {
    DEFAULT: SignalPage(
        "Dead groups",
        "How much of what was sampled taught nothing, why, and what helps?",
        "signal/dead_groups.html",
        dead_groups,
        {"details": ("signal/_dead_details.html", dead_details)},
        takes_runs=True,
    ),
    "passes": SignalPage(
        "pass@k",
        "Did training add ability, or only make likely what the base model could already do?",
        "signal/passes.html",
        passes,
        has_range=False,
    ),
    "gains": SignalPage(
        "Who gains",
        "Who gains: prompts that were easy already, or hard ones?",
        "signal/gains.html",
        gains,
        has_range=False,
    ),
    "rewards": SignalPage(
        "Rewards",
        "Does the best of many get better, or only the average?",
        "signal/rewards.html",
        rewards,
        {"plane": ("signal/_plane.html", mean_against_highest)},
        takes_runs=True,
    ),
    "costs": SignalPage(
        "Length and cost",
        "What does a solved prompt cost, and where does the time go?",
        "signal/costs.html",
        costs,
        takes_runs=True,
    ),
    "trust-region": SignalPage(
        "Trust region",
        "How far from the sampling policy is each update, and did old rollouts help at all?",
        "signal/trust_region.html",
        trust_region,
        {"what-if": ("signal/_what_if.html", what_if)},
        takes_runs=True,
    ),
    "gradient-budget": SignalPage(
        "Gradient budget",
        "What are the updates spent on?",
        "signal/gradient_budget.html",
        gradient_budget,
        {"costliest": ("signal/_costliest.html", costliest)},
    ),
    "point": SignalPage(
        "What made a point",
        "Which rollouts and tokens made this point of a curve?",
        "signal/point.html",
        point,
        has_range=False,
    ),
    "data-audit": SignalPage(
        "Data audit",
        "Is the trainer learning from what you think it learns from?",
        "signal/data_audit.html",
        data_audit,
    ),
    "diversity": SignalPage(
        "Diversity",
        "Is the policy still exploring, or saying the same thing in other words?",
        "signal/diversity.html",
        diversity_page,
        takes_runs=True,
    ),
    "coverage": SignalPage(
        "Coverage",
        "What does the source of this run record, and what can therefore not be shown?",
        "signal/coverage.html",
        coverage_page,
        {"badge": ("signal/_coverage_badge.html", badge)},
    ),
}
