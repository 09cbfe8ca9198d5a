"""Rewards of the steps inside completions, as rectangles. Imports no Django and no model."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.rewards import Scored

# Kinds of reward spans that are steps; penalties and shaping are of the whole completion.
STEP_KINDS = frozenset({"process", "outcome"})


@dataclass(frozen=True, slots=True)
class StepRewards:
    """Of `B` rollouts with at most `S` scored steps; rows with fewer are filled up with NaN."""

    values: Tensor  # [B, S] float64, in reward units; NaN: no step
    ends: Tensor  # [B, S] int64, position after the step's last token

    @property
    def exists(self) -> Tensor:
        """[B, S] bool"""
        return self.values.isfinite()


def step_rewards(scored: Sequence[Scored], lengths: Tensor) -> StepRewards:
    """The process spans of every rollout, and its outcome as the last step.

    A rollout without process spans counts as one step that earned its whole reward.

    Args:
        scored: B.
        lengths: `[B]` tokens; where such a step ends.
    """
    rows = []
    for one, length in zip(scored, lengths.tolist(), strict=True):
        has_steps = any(span.kind == "process" for span in one.spans)
        steps = [(span.value, span.token_end) for span in one.spans if has_steps and span.kind in STEP_KINDS]
        rows.append(steps or ([(one.reward, length)] if one.spans else []))
    width = max([len(row) for row in rows] + [1])
    values = torch.full((len(rows), width), torch.nan, dtype=torch.float64, device=lengths.device)
    ends = torch.zeros((len(rows), width), dtype=torch.int64, device=lengths.device)
    for number, row in enumerate(rows):
        for column, (value, end) in enumerate(row):
            values[number, column] = value
            ends[number, column] = end
    return StepRewards(values, ends)


def token_rewards(scored: Sequence[Scored], width: int, device: torch.device) -> Tensor:
    """`[B, width]` float64: every span's value at its last token, so that a row sums to the rollout's reward."""
    out = torch.zeros((len(scored), width), dtype=torch.float64, device=device)
    spans = [(row, span.token_end - 1, span.value) for row, one in enumerate(scored) for span in one.spans]
    if spans:
        rows, columns, values = zip(*spans, strict=True)
        index = (torch.tensor(rows, device=device), torch.tensor(columns, device=device))
        out.index_put_(index, torch.tensor(values, dtype=torch.float64, device=device), accumulate=True)
    return out
