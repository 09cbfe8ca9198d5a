"""Read rollouts of a run, filtered as its list is. For members of the run's project; others get 404."""

from typing import Any

from django.db.models import F, QuerySet
from django.http import HttpResponse
from ninja import Query, Router
from ninja.errors import HttpError

from rlviewer.accounts.api_auth import ApiRequest
from rlviewer.runs.api import PathId, as_json, read, refuse_unknown, rollout_out, visible_run
from rlviewer.runs.api_schemas import Page, RolloutFilters, RolloutOut, columns
from rlviewer.runs.models import Rollout
from rlviewer.search.browse import Among, Place, Scope, Search, Sort
from rlviewer.search.fields import FIELDS
from rlviewer.search.language import FilterError
from rlviewer.search.tree import Comparison, Node

router = Router(tags=["runs"])
NEXT_HEADER = "Rlviewer-Next"
# Rollouts of one Arrow answer together, unpacked; at least one rollout is always given.
ARROW_BYTES = 32 * 1024 * 1024
OLDEST = Sort(FIELDS["id"])


@router.get("/runs/{run_id}/rollouts", response=Page[RolloutOut])
def rollout_list(request: ApiRequest, run_id: PathId, filters: Query[RolloutFilters]) -> HttpResponse:
    """Rollouts without their tokens, in the order they were stored."""
    refuse_unknown(request, filters)
    rows, following = found(request, run_id, filters)
    items = [rollout_out(row) for row in rows.values_list(*columns(RolloutOut).values())]
    return as_json({"items": items, "next": following})


@router.get(
    "/runs/{run_id}/rollouts.arrow",
    openapi_extra={
        "responses": {
            200: {
                "description": f"An Arrow IPC stream; the header {NEXT_HEADER} is the next `after`, absent at the end.",
                "content": {"application/vnd.apache.arrow.stream": {}},
            }
        }
    },
)
def rollouts_arrow(request: ApiRequest, run_id: PathId, filters: Query[RolloutFilters]) -> HttpResponse:
    """Rollouts with every token, exact to the bit. Fewer than `limit` come when they are big."""
    # numpy and Arrow are big and an idle site does not need them.
    from rlviewer.runs.arrow import rollout_stream

    refuse_unknown(request, filters)
    rollouts, following = found(request, run_id, filters)
    rows = list(read(rollouts, RolloutOut, "chunk_id", "position", "group_id"))
    body, count = rollout_stream(rows, max_bytes=ARROW_BYTES)
    response = HttpResponse(body, content_type="application/vnd.apache.arrow.stream")
    if count < len(rows):
        following = rows[count - 1]["id"]
    if following is not None:
        response.headers[NEXT_HEADER] = str(following)
    return response


def found(request: ApiRequest, run_id: int, filters: RolloutFilters) -> tuple[QuerySet[Rollout], int | None]:
    """The next rollouts in the order of storing, and where to go on; None at the end."""
    run = visible_run(request, run_id)
    named: dict[str, Any] = {"step": filters.step, "split": filters.split}
    extra: list[Node] = [Comparison(FIELDS[name], "=", (value,)) for name, value in named.items() if value is not None]
    try:
        search = Search(Scope(None, run, filters.attempts == "all"), filters.filter, extra)
    except FilterError as error:
        raise HttpError(400, f"filter: at character {error.start + 1}: {error}") from None
    after = Place(filters.after, filters.after) if filters.after else None
    rows = search.find(OLDEST, after=after, limit=filters.limit)
    following = rows.places[-1].id if rows.has_more else rows.resume.id if rows.resume else None
    return Rollout.objects.filter(Among(F("pk"), rows.ids)).order_by("pk"), following
