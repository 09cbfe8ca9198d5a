"""Read runs, steps and rollouts with every token. For members of the run's project; others get 404."""

import base64
import difflib
from collections.abc import Sequence
from typing import Annotated, Any

from django.db.models import Q, QuerySet
from django.http import HttpResponse
from ninja import Path, Query, Router, Schema
from ninja.errors import HttpError

from rlviewer.accounts.api_auth import ApiRequest
from rlviewer.accounts.models import Project, User
from rlviewer.lib.json import encoded
from rlviewer.runs.api_schemas import (
    AttemptOut,
    CheckpointOut,
    MetricFilters,
    MetricPiece,
    Page,
    PageFilters,
    PersonOut,
    ProjectOut,
    RewardPartOut,
    RolloutDetail,
    RolloutOut,
    RunDetail,
    RunFilters,
    RunOut,
    StepFilters,
    StepOut,
    columns,
)
from rlviewer.runs.models import MetricChunk, RewardPart, Rollout, Run, Step, StopReason

router = Router(tags=["runs"])
PathId = Annotated[int, Path(ge=1, le=2**63 - 1)]


@router.get("/me", response=PersonOut)
def me(request: ApiRequest) -> User:
    """The person that this token or session speaks for."""
    return request.auth


@router.get("/projects", response=Page[ProjectOut])
def project_list(request: ApiRequest, filters: Query[PageFilters]) -> dict[str, Any]:
    """Projects you are a member of, oldest first."""
    refuse_unknown(request, filters)
    rows = Project.objects.visible_to(request.auth).filter(pk__gt=filters.after).order_by("pk")
    return page(read(rows, ProjectOut), filters.limit)


@router.get("/runs", response=Page[RunOut])
def run_list(request: ApiRequest, filters: Query[RunFilters]) -> dict[str, Any]:
    """Runs of your projects, newest first."""
    refuse_unknown(request, filters)
    rows = Run.objects.visible_to(request.auth).order_by("-pk")
    if filters.after:
        rows = rows.filter(pk__lt=filters.after)
    wanted = {"project": filters.project, "state": filters.state, "algorithm": filters.algorithm}
    rows = rows.filter(**{name: value for name, value in wanted.items() if value is not None})
    return page(read(rows, RunOut), filters.limit)


@router.get("/runs/{run_id}", response=RunDetail)
def run_detail(request: ApiRequest, run_id: PathId) -> dict[str, Any]:
    """One run with its configuration, attempts and checkpoints."""
    run = visible_run(request, run_id)
    own = columns(RunDetail, without={"attempts", "checkpoints"})
    return {
        **Run.objects.filter(pk=run.pk).values(*own.values()).get(),
        "attempts": list(read(run.attempts.order_by("number"), AttemptOut)),
        "checkpoints": list(read(run.checkpoints.order_by("pk"), CheckpointOut)),
    }


@router.get("/runs/{run_id}/steps", response=Page[StepOut])
def step_list(request: ApiRequest, run_id: PathId, filters: Query[StepFilters]) -> dict[str, Any]:
    """Statistics of each stored step, in the order they were stored."""
    refuse_unknown(request, filters)
    rows = Step.objects.filter(run=visible_run(request, run_id), pk__gt=filters.after).order_by("pk")
    if filters.attempts == "current":
        rows = rows.filter(is_current=True)
    if filters.split is not None:
        rows = rows.filter(split=filters.split)
    return page(read(rows, StepOut), filters.limit)


@router.get("/runs/{run_id}/metrics", response=Page[MetricPiece])
def metric_list(request: ApiRequest, run_id: PathId, filters: Query[MetricFilters]) -> dict[str, Any]:
    """Curves by name, attempt and step, in pieces of up to 256 points."""
    refuse_unknown(request, filters)
    rows = MetricChunk.objects.filter(run=visible_run(request, run_id)).order_by("name", "attempt_id", "part")
    if filters.names:
        rows = rows.filter(name__in=[name.strip() for name in filters.names.split(",")])
    if filters.after:
        last = rows.filter(pk=filters.after).first()
        if last is None:
            raise HttpError(400, f"after={filters.after} is no piece of these metrics; pass `next` of the page before.")
        behind = Q(name=last.name, attempt_id=last.attempt_id, part__gt=last.part)
        behind |= Q(name=last.name, attempt_id__gt=last.attempt_id) | Q(name__gt=last.name)
        # The first condition is implied; it lets the index start at the right name.
        rows = rows.filter(behind, name__gte=last.name)
    return page(read(rows, MetricPiece, "id"), filters.limit)


@router.get("/rollouts/{rollout_id}", response=RolloutDetail)
def rollout_detail(request: ApiRequest, rollout_id: PathId) -> HttpResponse:
    """One rollout with its prompt, completion, every per-token array and the parts of its reward."""
    from rlviewer.runs.tokens import unpack_chunk

    visible = Rollout.objects.filter(step__run__in=Run.objects.visible_to(request.auth), pk=rollout_id)
    prompt = [f"group__prompt__{name}" for name in ("text", "answer", "generator", "parameters", "difficulty")]
    found = list(visible.values_list("chunk__payload", "position", *prompt, *columns(RolloutOut).values()))
    if not found:
        raise HttpError(404, f"There is no rollout {rollout_id} among those you may see.")
    payload, position, asked, answer, generator, parameters, difficulty, *own = found[0]
    chunk = unpack_chunk(payload)
    packed = chunk.rollouts[position]
    parts = RewardPart.objects.filter(rollout=rollout_id).order_by("part").values(*columns(RewardPartOut).values())
    return as_json({
        **rollout_out(own),
        "prompt": text(bytes(asked)),
        "prompt_ids": None if chunk.prompt_ids is None else chunk.prompt_ids.tolist(),
        "answer": None if answer is None else text(bytes(answer)),
        "generator": generator,
        "parameters": parameters,
        "difficulty": difficulty,
        "completion": text(packed.completion),
        "columns": {name: values.tolist() for name, values in packed.columns.items()},
        "details": {name: plain(value) for name, value in packed.details.items()},
        "reward_parts": list(parts),
    })  # fmt: skip


def visible_run(request: ApiRequest, run_id: int) -> Run:
    # Its configuration may be long.
    run = next(iter(Run.objects.visible_to(request.auth).filter(pk=run_id).only("pk")), None)
    if run is None:
        raise HttpError(404, f"There is no run {run_id} among those you may see; GET /api/v1/runs lists them.")
    return run


def refuse_unknown(request: ApiRequest, filters: PageFilters) -> None:
    """A misspelt filter would otherwise give everything."""
    known = list(type(filters).model_fields)
    for name in request.GET:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(known)}."
            raise HttpError(400, f"Unknown parameter {name[:60]!r}; {hint}")


def read(rows: QuerySet[Any, Any], schema: type[Schema], *more: str) -> QuerySet[Any, dict[str, Any]]:
    return rows.values(*columns(schema).values(), *more)


def rollout_out(row: Sequence[Any]) -> dict[str, Any]:
    """A row of `columns(RolloutOut)` as the answer has it."""
    made = dict(zip(RolloutOut.model_fields, row, strict=True))
    made["stop_reason"] = StopReason(made["stop_reason"]).label
    return made


def as_json(answer: dict[str, Any]) -> HttpResponse:
    """What is made of columns alone, so that checking each value against the schema would only cost time."""
    return HttpResponse(encoded(answer), content_type="application/json; charset=utf-8")


def page(rows: QuerySet[Any, dict[str, Any]], limit: int) -> dict[str, Any]:
    """The first `limit` rows, and the id of the last if more follow."""
    found = list(rows[: limit + 1])
    return {"items": found[:limit], "next": found[limit - 1]["id"] if len(found) > limit else None}


def text(data: bytes) -> dict[str, str | None]:
    try:
        return {"text": data.decode(), "base64": None}
    except UnicodeDecodeError:
        return {"text": data.decode("utf-8", "replace"), "base64": base64.b64encode(data).decode()}


def plain(value: Any) -> Any:
    """A detail of a packed rollout as JSON can hold it."""
    if isinstance(value, bytes):
        return text(value)
    return value.tolist() if hasattr(value, "tolist") else value
