"""The page of diversity: its warning, its curves and the groups behind a point."""

import pytest

from rlviewer.accounts.models import Project
from rlviewer.runs.models import Group
from rlviewer.signal.queries.diversity import diversity_page, trend, warning_of
from rlviewer.signal.services import compute_pending
from rlviewer.signal.steps import StepRange
from tests.factories import fill_run, make_run

pytestmark = pytest.mark.django_db
FALLING = [2.0] * 20 + [1.0] * 20
HELD = [1.0] * 40


def test_a_trend_compares_the_ends() -> None:
    assert trend(FALLING) == 0.5
    assert trend([2.0] * 10) is None
    assert trend([None, *FALLING]) == 0.5
    assert trend([0.0] * 40) is None


def test_tokens_and_answers_that_part_are_told() -> None:
    assert "Token entropy fell to 50%" in warning_of(FALLING, HELD)
    assert "the same answers in other words" in warning_of(HELD, FALLING)
    assert warning_of(FALLING, FALLING) == ""
    assert warning_of(HELD, HELD) == ""
    assert warning_of([None] * 40, FALLING) == ""


def test_a_point_leads_to_its_groups(project: Project) -> None:
    run = make_run(project)
    fill_run(run, 2, groups=4, group_size=4)
    compute_pending()
    page = diversity_page(run, StepRange(), {"near": "semantic_entropy", "step": "1"})
    assert page.near is not None
    signals = dict(
        Group.objects.filter(step__run=run, step__split="train", step__index=1).values_list(
            "index", "groupsignal__semantic_entropy"
        )
    )
    assert {row.group: row.value for row in page.near.groups} == pytest.approx(signals)
    mean = sum(signals.values()) / len(signals)
    gaps = [abs(row.value - mean) for row in page.near.groups]
    assert gaps == sorted(gaps)
    charts = {chart.key: chart for chart in page.charts}
    assert all(charts[key].figure for key in ("entropy", "semantic", "distinct", "similar", "repeats", "pass"))
    semantic = charts["semantic"].figure
    assert semantic is not None and semantic["data"][0]["y"][1] == pytest.approx(mean)
    assert diversity_page(run, StepRange(), {"near": "no", "step": "1"}).near is None
