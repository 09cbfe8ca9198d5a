"""What the page of one rollout asks for later: its turns, its group's columns, and what is stored, as JSON and CSV."""

import base64
import csv
import io
import json
from dataclasses import asdict
from typing import Any

import numpy as np
from django.db.models import QuerySet

from rlviewer.lib.text import text_from_bytes
from rlviewer.lib.visible import visible
from rlviewer.runs.conversation import conversation
from rlviewer.runs.models import Rollout, StopReason, TokenChunk
from rlviewer.runs.queries.rollout import (
    base64_of,
    fields_of,
    finite,
    joined_pieces,
    packed_rollout,
    vocabulary_pieces,
    with_derived,
)
from rlviewer.runs.tokens import PackedRollout, unpack_chunk

# What the what-if reads of every rollout of the group or the step, and how many tokens that may be.
WHAT_IF_COLUMNS = (
    "policy_logprobs", "sampler_logprobs", "recomputed_logprobs", "token_advantages", "token_weights", "loss_mask", "clip_flag",
)  # fmt: skip
WHAT_IF_TOKENS = 400_000


def conversation_of(rollout: Rollout) -> dict[str, Any]:
    """Turns of the rollout for the page that renders them. Two queries, one more for a vocabulary not yet known."""
    packed, _ = packed_rollout(rollout)
    ids, vocabulary_id = packed.columns.get("token_ids"), rollout.step.run.vocabulary_id
    pieces = None
    if ids is not None and vocabulary_id is not None:
        pieces = joined_pieces(ids, packed.completion, vocabulary_pieces(vocabulary_id))
    turns = conversation(
        bytes(rollout.group.prompt.text),
        packed.completion,
        packed.details.get("turns"),
        pieces,
        packed.columns.get("origin"),
    )
    return {"turns": [asdict(turn) for turn in turns]}


def group_columns(rollout: Rollout) -> dict[str, Any]:
    """What the what-if reads of every rollout of the group. Two queries."""
    return _columns_of(Rollout.objects.filter(group=rollout.group_id).order_by("number"))


def step_columns(rollout: Rollout) -> dict[str, Any]:
    """What the what-if reads of every rollout of the step. Two queries."""
    return _columns_of(Rollout.objects.filter(step=rollout.step_id, group__step=rollout.step_id).order_by("pk"))


def _columns_of(rows: QuerySet[Rollout]) -> dict[str, Any]:
    """Base64 like the page's own. Beyond WHAT_IF_TOKENS only the number of tokens is told: they are not counted then."""
    places = list(rows)
    tokens = sum(place.length_tokens for place in places)
    if tokens > WHAT_IF_TOKENS:
        return {"tokens": tokens, "limit": WHAT_IF_TOKENS, "rollouts": None}
    payloads = TokenChunk.objects.filter(pk__in={place.chunk_id for place in places}).values_list("pk", "payload")
    wanted = frozenset(WHAT_IF_COLUMNS)
    chunks = {pk: unpack_chunk(payload, columns=wanted) for pk, payload in payloads}
    return {
        "tokens": tokens,
        "limit": WHAT_IF_TOKENS,
        "rollouts": [
            {
                "id": place.pk,
                "number": place.number,
                "advantage": finite(place.advantage),
                "fields": [
                    {
                        "name": name,
                        "type": values.dtype.kind + str(values.dtype.itemsize),
                        "data": base64_of(values, None),
                    }
                    for name, values in chunks[place.chunk_id].rollouts[place.position].columns.items()
                ],
            }
            for place in places
        ],
    }


def numbers_of(rollout: Rollout) -> bytes:
    """The arrays of the page's fields, the widest types first, else in the page's order, little-endian. Two queries."""
    packed, _ = packed_rollout(rollout)
    columns = with_derived(packed.columns, list(rollout.reward_parts.values_list("token_start", "token_end", "value")))
    arrays = [columns[field.name] for field in fields_of(columns)]
    # The widest first: a typed array begins at a multiple of its width.
    arrays.sort(key=lambda values: -values.dtype.itemsize)
    return b"".join(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes() for values in arrays)


def tokens_csv(rollout: Rollout) -> bytes:
    """Every token with all its numbers: the table behind the page's charts."""
    packed, _ = packed_rollout(rollout)
    spans = rollout.reward_parts.values_list("token_start", "token_end", "value")
    columns = with_derived(packed.columns, list(spans))
    ids, vocabulary_id = columns.pop("token_ids", None), rollout.step.run.vocabulary_id
    table = [] if vocabulary_id is None else vocabulary_pieces(vocabulary_id)
    length = max(map(len, packed.columns.values()), default=0)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["position", "token_id", "text", *columns])
    numbers = [values.tolist() for values in columns.values()]
    for place in range(length):
        token = None if ids is None else int(ids[place])
        text = visible(table[token]) if token is not None and 0 <= token < len(table) else ""
        writer.writerow([place, token, text, *(values[place] for values in numbers)])
    return out.getvalue().encode()


def stored_json(rollout: Rollout) -> dict[str, Any]:
    """All that is stored of one rollout, as data for strict JSON. Two queries."""
    packed, prompt_ids = packed_rollout(rollout)
    names = [field.name for field in Rollout._meta.concrete_fields]
    row = {name: getattr(rollout, name) for name in names if name not in {"chunk", "position"}}
    row = {name: getattr(value, "pk", value) for name, value in row.items()}
    return {
        "rollout": row | {"stop_reason": StopReason(rollout.stop_reason).label},
        "prompt": text_from_bytes(bytes(rollout.group.prompt.text)),
        "prompt_ids": None if prompt_ids is None else prompt_ids.tolist(),
        "completion": text_from_bytes(packed.completion),
        "completion_base64": base64.b64encode(packed.completion).decode(),
        "columns": {name: values.tolist() for name, values in packed.columns.items()},
        "details": {name: _json_value(value) for name, value in packed.details.items()},
        "reward_parts": list(
            rollout.reward_parts.order_by("part").values("token_start", "token_end", "value", "kind", "name", "version")
        ),
    }


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return text_from_bytes(value)
    return value.tolist() if isinstance(value, np.ndarray) else value


def ids_text(packed: PackedRollout) -> bytes:
    """The completion's token ids as a JSON list."""
    ids = packed.columns.get("token_ids")
    return json.dumps([] if ids is None else ids.tolist()).encode()
