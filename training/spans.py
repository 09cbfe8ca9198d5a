"""What a reward function sees and says: completions in, spans over their tokens out. Imports no torch."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.tasks.base import Task, TaskFamily

NO_PARAMS: Mapping[str, Any] = {}
KINDS = ("outcome", "process", "format", "penalty", "shaping")


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled, as a reward function sees it."""

    text: str
    token_count: int  # end of sequence included
    stop_reason: str  # "stop", "length" or "error"
    mean_entropy: float = math.nan  # of the sampler over its tokens, in nats; NaN: the sampler gave none
    raw: bytes = b""  # the text before it was decoded
    token_ids: Sequence[int] = ()
    pieces: Sequence[bytes] = ()  # of the vocabulary

    @property
    def token_ends(self) -> list[int]:
        """Bytes of `raw` up to the end of each token; the end of sequence adds none."""
        ends = itertools.accumulate(
            len(self.pieces[token]) if token < len(self.pieces) else 0 for token in self.token_ids
        )
        return [min(end, len(self.raw)) for end in ends]


@dataclass(frozen=True, slots=True)
class RewardSpan:
    """A part of the reward, earned by the tokens from `token_start` up to, not including, `token_end`."""

    token_start: int
    token_end: int
    value: float
    kind: str
    name: str
    version: str = "1"


@dataclass(frozen=True, slots=True)
class Scored:
    """What is known of one completion after scoring."""

    spans: tuple[RewardSpan, ...] = ()
    correct: bool = False
    parsed_answer: str | None = None
    answer_cluster: int | None = None  # equal inside a group for equal answers; None: no answer
    feedback: str = ""
    drop_reason: str = ""  # why it was not scored, where that was meant

    @property
    def outcome(self) -> float:
        """The reward without penalties and shaping; NaN if there is none."""
        earned = [span.value for span in self.spans if span.kind not in ("penalty", "shaping")]
        return math.fsum(earned) if earned else math.nan

    @property
    def reward(self) -> float:
        """Sum of the spans; NaN if there is none."""
        return math.fsum(span.value for span in self.spans) if self.spans else math.nan


RewardFunction = Callable[[TaskFamily, Task, Sequence[Completion], Mapping[str, Any]], list[Scored]]


def checked(family: TaskFamily, task: Task, completion: Completion) -> Scored:
    """The verdict of the task's checker on one completion."""
    if completion.stop_reason == "error" or completion.token_count == 0:
        return Scored(feedback="Not scored: sampling failed.")
    verdict = family.check(task, completion.text)
    last = completion.token_count - 1
    return Scored(
        spans=(RewardSpan(last, last + 1, verdict.reward, "outcome", "task"),),
        correct=verdict.correct,
        parsed_answer=verdict.parsed_answer,
        feedback=verdict.feedback,
    )
