"""What the API takes and gives."""

from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

from ninja import Field, Schema
from pydantic import WithJsonSchema, field_validator

from rlviewer.runs.models import RunState, StopReason

NOT_FINITE = ("NaN", "Infinity", "-Infinity")
NUMBER: dict[str, Any] = {"anyOf": [{"type": "number"}, {"enum": list(NOT_FINITE)}]}
# A float that may be NaN or infinite, which JSON writes as a string.
Number = Annotated[float, WithJsonSchema(NUMBER)]
Numbers = Annotated[list[Any], WithJsonSchema({"type": "array", "items": NUMBER})]
Id = Annotated[int, Field(ge=0, le=2**63 - 1)]
Step = Annotated[int, Field(ge=0, le=2**31 - 1)]
# No stored text holds a NUL, and Postgres refuses the question.
Sought = Annotated[str, Field(pattern=r"^[^\x00]*$")]

Item = TypeVar("Item")


def read_from(path: str, description: str | None = None) -> Any:
    """A field that is read from `path`, as Django spells a column of a related table."""
    return Field(validation_alias=path, description=description)


def columns(schema: type[Schema], *, without: Collection[str] = ()) -> dict[str, str]:
    """Where each field of `schema` is read from."""
    fields = {name: str(field.validation_alias or name) for name, field in schema.model_fields.items()}
    return {name: path for name, path in fields.items() if name not in without}


class Page(Schema, Generic[Item]):
    items: list[Item]
    next: int | None = Field(description="Pass it as `after` for what follows; null at the end.")


class PageFilters(Schema):
    after: Id = Field(0, description="`next` of the page before.")
    limit: int = Field(100, ge=1, le=1000)


class RunFilters(PageFilters):
    project: Id | None = None
    state: RunState | None = None
    algorithm: Sought | None = Field(None, max_length=60)


class StepFilters(PageFilters):
    split: Sought | None = Field(None, max_length=40, description='"train", or the name of an evaluation set.')
    attempts: Literal["current", "all"] = Field(
        "current", description="`all` adds steps that a later attempt repeated."
    )


class RolloutFilters(StepFilters):
    step: Step | None = Field(None, description="Index of the training step, or the checkpoint step of an evaluation.")
    filter: Sought = Field(
        "", max_length=1000, description="As in the rollout browser, for example `reward<0.5 carry`."
    )


class MetricFilters(PageFilters):
    names: Sought | None = Field(None, max_length=4000, description="Comma between names; all metrics without it.")


class PersonOut(Schema):
    username: str
    is_superuser: bool


class ProjectOut(Schema):
    id: int
    name: str
    description: str
    created_at: datetime


class RunOut(Schema):
    """One training, with where it stands."""

    id: int
    uid: UUID
    project: int = read_from("project_id")
    name: str
    state: str
    state_reason: str
    algorithm: str
    task: str
    model: str
    dataset: str
    seed: int
    source: str
    tags: list[str]
    archived: bool
    steps_planned: int
    last_step: int | None
    current_attempt: int
    rollout_count: int
    token_count: int
    latest_reward: Number | None
    base_pass: Number | None
    latest_pass: Number | None
    latest_dead_share: Number | None
    created_by: str | None = read_from("created_by__username")
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class AttemptOut(Schema):
    number: int
    state: str
    reason: str
    resumed_from_step: int | None
    exit_code: int | None
    signal: int | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class CheckpointOut(Schema):
    attempt: int = read_from("attempt__number")
    step: int
    size_bytes: int
    sha256: str
    is_deleted: bool
    saved_at: datetime


class RunDetail(RunOut):
    config: dict[str, Any]
    config_toml: str
    plugins: dict[str, Any]
    hardware: dict[str, Any]
    code_version: str
    attempts: list[AttemptOut]
    checkpoints: list[CheckpointOut]


class StepOut(Schema):
    """Statistics of one stored step."""

    id: int
    index: int
    split: str
    attempt: int = read_from("attempt__number")
    is_current: bool
    group_count: int
    rollout_count: int
    kept_count: int
    reward_mean: Number | None
    reward_std: Number | None
    pass_rate: Number | None
    dead_groups: int
    dead_right: int
    dead_wrong: int
    unscored_count: int
    length_mean: Number | None
    truncated_share: Number | None
    entropy_mean: Number | None
    tokens_sampled: int
    tokens_trained: int
    phase_seconds: dict[str, Any]
    events: list[Any]
    stored_at: datetime


class MetricPiece(Schema):
    """Up to 256 points of one metric of one attempt; pieces of a name follow each other."""

    name: str
    attempt: int = read_from("attempt__number")
    part: int
    steps: list[int]
    values: Numbers


class RolloutOut(Schema):
    """One completion with its reward, without its tokens."""

    id: int
    run: int = read_from("run_id")
    attempt: int = read_from("step__attempt__number")
    split: str = read_from("step__split")
    step: int = read_from("step__index")
    group: int = read_from("group__index", "Number of the group in its step.")
    number: int = Field(description="Number of the rollout in its group.")
    reward: Number | None
    advantage: Number | None
    correct: bool | None
    kept: bool
    drop_reason: str
    stop_reason: str
    length_tokens: int
    policy_version: int | None
    staleness_steps: int | None
    entropy_mean: Number | None
    logprob_mean: Number | None
    clip_share: Number | None
    parsed_answer: str | None
    answer_cluster: int | None

    @field_validator("stop_reason", mode="before")
    @classmethod
    def in_words(cls, value: int) -> str:
        return StopReason(value).label


class Text(Schema):
    text: str = Field(description="Invalid UTF-8 is shown as U+FFFD.")
    base64: str | None = Field(description="The exact bytes, when they are not valid UTF-8.")


class RewardPartOut(Schema):
    token_start: int
    token_end: int
    value: Number
    kind: str
    name: str
    version: str


class RolloutDetail(RolloutOut):
    prompt: Text
    prompt_ids: list[int] | None
    answer: Text | None
    generator: str
    parameters: dict[str, Any]
    difficulty: Number | None
    completion: Text
    columns: dict[str, Numbers] = Field(description="Per-token arrays by name; one the source lacks is absent.")
    details: dict[str, Any]
    reward_parts: list[RewardPartOut]
