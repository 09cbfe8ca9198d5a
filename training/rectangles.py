"""Rows of different lengths as rectangles of tokens. Imports no model."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tokens:
    """`P` prompts and their `B` completions as rectangles: prompts padded on the left, completions on the right."""

    prompt_ids: Tensor  # [P, S] int64
    prompt_mask: Tensor  # [P, S] bool
    owner: Tensor  # [B] int64, the completion's prompt; ascending
    completion_ids: Tensor  # [B, T] int64
    completion_mask: Tensor  # [B, T] bool

    def rows(self, rows: slice | Tensor) -> "Tokens":
        """Some completions with their prompts, without the columns that only the others needed."""
        prompts, owner = self.owner[rows].unique_consecutive(return_inverse=True)
        prompt_mask, completion_mask = self.prompt_mask[prompts], self.completion_mask[rows]
        start = self.prompt_ids.shape[1] - int(prompt_mask.sum(dim=1).max())
        end = max(int(completion_mask.sum(dim=1).max()), 1)
        return Tokens(
            self.prompt_ids[prompts, start:],
            prompt_mask[:, start:],
            owner,
            self.completion_ids[rows, :end],
            completion_mask[:, :end],
        )


def left_padded(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`[P, S]` token ids with padding on the left, and the mask that is True at the tokens."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return ids, torch.arange(width, device=device) >= width - lengths[:, None]
