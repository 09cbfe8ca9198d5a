from rlviewer.accounts.models import Project
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Attempt
from rlviewer.runs.queries.series import merged, metric_series, pass_at_k_name
from tests.factories import make_batch, make_run


def test_a_later_attempt_replaces_what_it_stored_again() -> None:
    series = merged([(1, [0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0]), (2, [1], [10.0]), (2, [2], [20.0])])
    assert series.current.steps == [0, 1, 2, 3]
    assert series.current.values == [0.0, 10.0, 20.0, 3.0]
    assert list(series.superseded) == [1]
    assert (series.superseded[1].steps, series.superseded[1].values) == ([1, 2], [1.0, 2.0])
    assert series.latest == 3.0


def test_chunks_of_one_attempt_replace_nothing() -> None:
    series = merged([(1, [0, 1], [0.0, 1.0]), (1, [2], [2.0])])
    assert series.superseded == {} and series.current.steps == [0, 1, 2]


def test_all_names_come_in_one_query(project: Project, django_assert_num_queries) -> None:
    run = make_run(project)
    Attempt.objects.create(run=run, number=2)
    store_batch(make_batch(run, split="heldout", step=0), source="test")
    for attempt, step in ((1, 0), (1, 1), (2, 1)):
        store_batch(make_batch(run, step=step, attempt=attempt, seed=attempt), source="test")
    with django_assert_num_queries(1):
        series = metric_series(run.pk, ["reward_mean", "loss"])
    assert series["loss"].current.steps == [0, 1]
    assert series["loss"].superseded[1].steps == [1]
    assert pass_at_k_name(series) == "eval_pass_at_4" and "grad_norm" not in series
