"""The page of the gradient budget against sums over every stored rollout."""

import numpy as np
import pytest
from pytest_django.fixtures import DjangoAssertNumQueries

from rlviewer.accounts.models import Project
from rlviewer.runs.models import Rollout, Run, Step
from rlviewer.signal import aggregation, sums
from rlviewer.signal.models import RolloutSums, StepPart
from rlviewer.signal.queries import costliest as module
from rlviewer.signal.queries.costliest import costliest
from rlviewer.signal.queries.gradient_budget import gradient_budget, term_of
from rlviewer.signal.services import compute_pending
from rlviewer.signal.steps import StepRange
from tests.factories import fill_run, make_run

pytestmark = pytest.mark.django_db
ALL = StepRange()


@pytest.fixture
def run(project: Project) -> Run:
    run = make_run(project, config={"sampling": {"max_new_tokens": 24}})
    fill_run(run, 4, groups=4, group_size=4)
    compute_pending()
    return run


def expected(run: Run, name: str) -> dict[int, float]:
    """Every rollout's budget under an aggregation, from its own sums."""
    found: dict[int, float] = {}
    for step in Step.objects.filter(run=run, split="train"):
        rows = sums.unpack(RolloutSums.objects.get(step=step).payload)
        group = dict(Rollout.objects.filter(group__step=step).values_list("pk", "group_id"))
        groups = np.array([group[int(pk)] for pk in rows["rollout"]])
        counted = rows["counted"] > 0
        counts = aggregation.StepCounts(
            int(rows["counted"].sum()), int(counted.sum()), len(set(groups[counted].tolist()))
        )
        own = aggregation.sums(rows["mass"], rows["counted"], groups)[aggregation.SUM_OF[name]]
        own = own / aggregation.divisor(name, counts, constant_tokens=24)
        found |= dict(zip(rows["rollout"].tolist(), own.tolist(), strict=True))
    return found


@pytest.mark.parametrize("name", aggregation.SUM_OF)
def test_the_page_adds_up_what_rollouts_were_spent_on(run: Run, name: str) -> None:
    run.config["algorithm_params"] = {"aggregation": name}
    page = gradient_budget(run, ALL, {"by": "sign"})
    whole = expected(run, name)
    assert (page.aggregation, page.is_told) == (name, True)
    assert sum(row.share for row in page.parts) == pytest.approx(1)
    total = next(chart for chart in page.charts if chart.key == "total")
    assert total.figure is not None
    assert sum(total.figure["data"][0]["y"]) == pytest.approx(sum(whole.values()), rel=1e-6)


@pytest.mark.parametrize("name", ["token_mean", "rollout_mean", "prompt_mean"])
def test_the_most_expensive_rollouts_are_those_of_all_steps(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.config["algorithm_params"] = {"aggregation": name}
    whole = expected(run, name)
    assert sum(row.share for row in costliest(run, ALL, {}).prompts) == pytest.approx(1)
    # With fewer listed than there are steps, some steps are not read.
    monkeypatch.setattr(module, "LISTED", 2)
    found = costliest(run, ALL, {})
    largest = sorted(whole.values(), reverse=True)[:2]
    assert [row.value for row in found.rollouts] == pytest.approx(largest)
    assert [row.value for row in found.rollouts] == pytest.approx([whole[row.rollout.pk] for row in found.rollouts])


def test_two_aggregations_side_by_side(run: Run) -> None:
    page = gradient_budget(run, ALL, {"by": "length", "other": "token_sum"})
    assert page.other == "token_sum"
    assert sum(row.other_share or 0 for row in page.parts) == pytest.approx(1)
    assert [chart.key for chart in page.charts] == ["share", "total", "other"]
    assert gradient_budget(run, ALL, {"other": "rollout_mean"}).other == ""  # its own


def test_every_split_has_parts_and_their_addresses_find_rollouts(run: Run) -> None:
    assert set(StepPart.objects.filter(step__run=run, mass__isnull=False).values_list("split", flat=True)) == set(
        range(6)
    )
    assert term_of("length", "17-32") == ("length:17..32",)
    assert term_of("length", "2") == ("length:2..2",)
    assert term_of("difficulty", "2") == ("difficulty:2",)
    assert term_of("family", "it's") == (r"task:'it\'s'",)


def test_a_source_without_an_aggregation_is_told_so(run: Run) -> None:
    run.algorithm = "somebody else's"
    page = gradient_budget(run, ALL, {})
    assert (page.aggregation, page.is_told) == ("token_mean", False)


def test_number_of_queries(run: Run, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(3):
        gradient_budget(run, ALL, {"other": "token_sum"})
    with django_assert_num_queries(5):
        costliest(run, ALL, {})
