"""Rollouts side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix

from rlviewer.accounts.models import User
from rlviewer.lib.visible import visible_block
from rlviewer.runs.models import Rollout, Run, StopReason, TokenChunk
from rlviewer.runs.queries.run import shown_answer
from rlviewer.runs.tokens import unpack_chunk
from rlviewer.search.lines import TEXT_ONLY

SHOWN_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Side:
    """One rollout; `same` is how its text begins like that of all others shown, `rest` what follows."""

    rollout: Rollout
    prompt: str
    answer: str | None
    same: str
    rest: str
    is_cut: bool

    @property
    def stop_reason(self) -> str:
        return StopReason(self.rollout.stop_reason).label


def side_by_side(user: User, ids: Sequence[int]) -> list[Side]:
    """Those of `ids` that the person may see, in this order. Two queries."""
    seen = Rollout.objects.filter(pk__in=ids, step__run__in=Run.objects.visible_to(user))
    stored = {row.pk: row for row in seen.select_related("step__run__project", "group__prompt")}
    rollouts = [stored[pk] for pk in ids if pk in stored]
    payloads = TokenChunk.objects.filter(pk__in={r.chunk_id for r in rollouts}).values_list("pk", "payload")
    chunks = {pk: unpack_chunk(payload, columns=TEXT_ONLY) for pk, payload in payloads}
    texts = [visible_block(chunks[r.chunk_id].rollouts[r.position].completion, SHOWN_CHARS) for r in rollouts]
    # Character by character is meant.
    begin = len(commonprefix([text for text, _ in texts])) if len(texts) > 1 else 0  # noqa: RUF071
    return [
        Side(
            rollout,
            visible_block(bytes(rollout.group.prompt.text), 2000)[0],
            None if rollout.parsed_answer is None else shown_answer(rollout.parsed_answer),
            text[:begin],
            text[begin:],
            is_cut,
        )
        for rollout, (text, is_cut) in zip(rollouts, texts, strict=True)
    ]
