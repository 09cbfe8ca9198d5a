"""A stored step as the trainer's own types: the other way round from `recording`. What its source lacks is None, never 0."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from training.plans import SampleRequest
from training.records import EXTRA_PREFIX, TOKEN_COLUMNS, RolloutBatch
from training.rectangles import Tokens, left_padded
from training.rollouts import GENERATED, Rollouts, ScoredRollouts
from training.selection import ChosenPrompt
from training.spans import RewardSpan, Scored
from training.steps import token_rewards
from training.tasks.base import Task
from training.transforms import TransformedPrompt

# What was taken from the reward after it was judged (`reward_shaping`).
KL_SPAN = "ref_kl"
SPAN_FIELDS = ("token_start", "token_end", "value", "kind", "name", "version")


@dataclass(frozen=True, slots=True)
class StoredStep:
    """Rollouts of one step with what was recorded of their training."""

    step: int
    rollouts: Rollouts
    scores: ScoredRollouts  # as judged: a KL in the reward is not in them
    was_scored: Tensor  # [B] bool
    advantage: Tensor  # [B] float64; NaN: not recorded
    kept: Tensor  # [B] bool
    columns: dict[str, Tensor]  # [B, T] the per-token columns that every rollout has
    metrics: dict[str, float]

    @property
    def values(self) -> Tensor | None:
        """`[B, T + 1]` of the critic; NaN after the last token, where none is stored."""
        found = self.columns.get("x_value")
        return None if found is None else torch.nn.functional.pad(found, (0, 1), value=torch.nan)

    @property
    def top(self) -> tuple[Tensor, Tensor] | None:
        """Ids and nats `[B, T, K]` of the likeliest tokens under the weights that sampled."""
        numbers = list(itertools.takewhile(lambda n: f"x_top{n}_logprob" in self.columns, itertools.count(1)))
        if not numbers:
            return None
        ids, logprobs = (torch.stack([self.columns[f"x_top{n}_{of}"] for n in numbers], -1) for of in ("id", "logprob"))
        return ids.long(), logprobs


def stored_step(batch: RolloutBatch) -> StoredStep:
    """A batch, its rollouts ordered by group and number, as a step.

    Raises:
        ValueError: it holds no rollout.
    """
    table, count = batch.rollouts, batch.rollouts.num_rows
    if not count:
        raise ValueError("the step holds no rollout")
    columns = _rectangles(table)
    width = next(iter(columns.values())).shape[1] if columns else 1
    lengths = torch.tensor(_lengths(table))
    owner = torch.tensor(table.column("group").to_numpy().astype(np.int64))
    groups = batch.groups.to_pylist()
    scored = _scored(batch, lengths.tolist())
    prompt_ids = [group["prompt_ids"] or [0] for group in groups]
    padded, padded_mask = left_padded(prompt_ids, 0, owner.device)
    missing = torch.full((count, width), torch.nan)
    rollouts = Rollouts(
        chosen=[_chosen(number, group) for number, group in enumerate(groups)],
        prompts=[TransformedPrompt(prompt=()) for _ in groups],
        prompt_ids=prompt_ids,
        requests=[
            SampleRequest(prompt, 1, is_greedy=reason == "baseline")
            for prompt, reason in zip(owner.tolist(), table.column("drop_reason").to_pylist(), strict=True)
        ],
        numbers=torch.tensor(table.column("number").to_numpy().astype(np.int64)),
        tokens=Tokens(
            padded,
            padded_mask,
            owner,
            columns["token_ids"].long() if "token_ids" in columns else torch.zeros((count, width), dtype=torch.int64),
            torch.arange(width) < lengths[:, None],
        ),
        sampler_logprobs=columns.get("sampler_logprobs", missing),
        entropy=columns.get("entropy", missing),
        origin=columns.get("origin", torch.full((count, width), GENERATED, dtype=torch.uint8)),
        lengths=lengths,
        is_finished=torch.tensor([reason == "stop" for reason in table.column("stop_reason").to_pylist()]),
        completions=[text or b"" for text in table.column("completion").to_pylist()],
        seeds=[0] * count,
    )
    was_scored = torch.tensor([bool(one.spans) for one in scored])
    return StoredStep(
        step=batch.header.step,
        rollouts=rollouts,
        scores=scores_of(_without_kl(scored)),
        was_scored=was_scored,
        advantage=torch.tensor([math.nan if one is None else one for one in table.column("advantage").to_pylist()]).double(),
        kept=torch.tensor([bool(one) for one in table.column("kept").to_pylist()]),
        columns=columns,
        metrics=dict(zip(*batch.metrics.to_pydict().values(), strict=True)),
    )  # fmt: skip


def scores_of(scored: list[Scored]) -> ScoredRollouts:
    return ScoredRollouts(
        scored,
        torch.tensor([one.reward for one in scored], dtype=torch.float64),
        torch.tensor([one.correct for one in scored]),
    )


def earned_by_token(step: StoredStep, scored: Sequence[Scored]) -> Tensor:
    """`[B, T]` float64 what every token is credited with."""
    return token_rewards(scored, step.rollouts.origin.shape[1], step.rollouts.lengths.device)


def _lengths(table: pa.Table) -> list[int]:
    for name in TOKEN_COLUMNS:
        if not table.column(name).null_count:
            return list(np.diff(table.column(name).combine_chunks().offsets.to_numpy()).tolist())
    return [0] * table.num_rows


def _rectangles(table: pa.Table) -> dict[str, Tensor]:
    """Per-token columns that every rollout has, as wide as the longest."""
    lengths = torch.tensor(_lengths(table))
    width = max(int(lengths.max()), 1)
    is_there = torch.arange(width) < lengths[:, None]
    found = {}
    for name in (one for one in table.column_names if one in TOKEN_COLUMNS or one.startswith(EXTRA_PREFIX)):
        column = table.column(name).combine_chunks()
        if column.null_count:
            continue
        flat = torch.from_numpy(column.flatten().to_numpy(zero_copy_only=False).copy())
        fill = torch.nan if flat.is_floating_point() else 0
        rectangle = torch.full(is_there.shape, fill, dtype=flat.dtype)
        rectangle[is_there] = flat
        found[name] = rectangle
    return found


def _chosen(number: int, group: dict[str, Any]) -> ChosenPrompt:
    """The number of the group stands in the task's payload: the stand-in for its checker finds it by that."""
    text = (group["prompt"] or b"").decode("utf-8", "surrogateescape")
    task = Task(
        family=group["generator"] or "",
        params=json.loads(group["parameters"] or "{}"),
        difficulty=math.nan if group["difficulty"] is None else group["difficulty"],
        prompt=text,
        answer=(group["answer"] or b"").decode("utf-8", "surrogateescape"),
        seed=group["task_seed"] or 0,
        payload={"group": number},
    )
    return ChosenPrompt(
        task,
        sampling_weight=1.0 if group["sampling_weight"] is None else group["sampling_weight"],
        position=number,
        tracker_value=group["tracker_value"],
        tracker_count=group["tracker_count"],
        tracker_last_seen=group["tracker_last_seen"],
        base_pass_rate=group["base_pass_rate"],
        base_samples=group["base_samples"],
    )


def _scored(batch: RolloutBatch, lengths: Sequence[int]) -> list[Scored]:
    """Spans where they add up to the reward; where a source tells the reward alone, one over the last token."""
    spans: list[list[RewardSpan]] = [[] for _ in lengths]
    for row in batch.reward_spans.to_pylist():
        said = {name: row[name] for name in SPAN_FIELDS} | {name: row[name] or "" for name in ("name", "version")}
        spans[row["rollout"]].append(RewardSpan(**said))
    table, out = batch.rollouts, []
    names = ("reward", "correct", "parsed_answer", "answer_cluster", "drop_reason")
    for own, length, (reward, correct, answer, cluster, reason) in zip(
        spans, lengths, zip(*(table.column(name).to_pylist() for name in names), strict=True), strict=True
    ):
        if reward is None or not math.isfinite(reward):
            own = []
        elif not own or not abs(math.fsum(span.value for span in own) - reward) <= 1e-9:
            own = [RewardSpan(max(length - 1, 0), max(length, 1), reward, "outcome", "reward")]
        readable = None if answer is None else answer.decode("utf-8", "surrogateescape")
        out.append(Scored(tuple(own), bool(correct), readable, cluster, drop_reason="" if own else reason or ""))
    return out


def _without_kl(scored: Sequence[Scored]) -> list[Scored]:
    return [
        Scored(
            tuple(span for span in one.spans if not (span.kind == "penalty" and span.name == KL_SPAN)),
            one.correct,
            one.parsed_answer,
            one.answer_cluster,
            one.feedback,
            one.drop_reason,
        )
        for one in scored
    ]
