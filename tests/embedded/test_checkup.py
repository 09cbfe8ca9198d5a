"""What doctor says of what is stored; the parts themselves are asked in test_stack.py."""

from rlviewer.accounts.models import Project
from rlviewer.embedded.checkup import Level, check_ledger
from rlviewer.ingest.services import store_batch
from tests.factories import make_batch, make_run


def test_what_was_refused_or_parked_is_told(project: Project) -> None:
    run = make_run(project)
    (finding,) = check_ledger()
    assert (finding.level, finding.found) == (Level.OK, "0 rollouts refused, 0 batches parked")
    store_batch(make_batch(run, stop_reason=["unknown", *["stop"] * 15]), source="test")
    store_batch(make_batch(run, attempt=2), source="test")
    (finding,) = check_ledger()
    assert (finding.level, finding.found) == (Level.NOTE, "1 rollouts refused, 1 batches parked")
