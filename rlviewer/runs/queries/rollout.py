"""What the page of one rollout shows: its tokens with every stored number, its group, its reward."""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from django.http import Http404

from rlviewer.accounts.models import User
from rlviewer.lib.text import text_from_bytes
from rlviewer.lib.visible import visible_block, visible_start
from rlviewer.runs.models import Rollout, Run, Step, StopReason, TokenChunk, Vocabulary
from rlviewer.runs.queries.run import RolloutLine, rollout_lines
from rlviewer.runs.queries.step import TRAIN, GroupCard, group_card
from rlviewer.runs.templatetags.show import duration_words, significant
from rlviewer.runs.tokens import PackedRollout, unpack_chunk
from training import vocabulary
from training.recipes import named
from training.recipes.knobs import KNOBS, knobs_of
from training.records import CLIP_FLAGS, ORIGINS


@dataclass(frozen=True, slots=True)
class Field:
    """One number per token that can colour it. `scale` decides how: signed, ratio, sequential or named."""

    name: str
    title: str
    unit: str
    scale: str
    meaning: str
    names: tuple[str, ...] = ()


FIELDS: tuple[Field, ...] = (
    Field("token_advantages", "advantage", "", "signed", "How hard the update pushed this token, and which way."),
    Field("sampler_logprobs", "sampler log-probability", "nats", "sequential", "Under the weights that sampled it."),
    Field(
        "policy_logprobs",
        "policy log-probability",
        "nats",
        "sequential",
        "Under the weights after the step's last update.",
    ),
    Field("entropy", "entropy", "nats", "sequential", "Of the distribution this token was sampled from."),
    Field(
        "importance_ratio",
        "importance ratio",
        "",
        "ratio",
        "exp(policy - sampling log-probability): 1 where the update did not move the token.",
    ),
    Field("loss_mask", "loss mask", "", "named", "Whether the token counts in the loss.", ("left out", "counted")),
    Field("clip_flag", "clip", "", "named", "What the clipping rule did to the token.", CLIP_FLAGS),
    Field("origin", "origin", "", "named", "Who wrote the token.", ORIGINS),
    Field(
        "recomputed_logprobs",
        "recomputed log-probability",
        "nats",
        "sequential",
        "Sampling weights, trainer's numbers.",
    ),
    Field("ref_logprobs", "reference log-probability", "nats", "sequential", "Under the frozen reference."),
    Field("token_weights", "token weight", "", "signed", "Weight of the token in the loss."),
    Field(
        "mismatch_ratio",
        "sampler mismatch",
        "",
        "ratio",
        "exp(recomputed - sampler log-probability): 1 where engine and trainer agree on the same weights.",
    ),
    Field(
        "probability_change", "change of probability", "", "sequential", "|policy - sampler probability| of the token."
    ),
    Field("segment_reward", "segment reward", "", "signed", "Sum of the reward parts whose span holds the token."),
    Field(
        "token_policy_version", "policy version", "steps", "sequential", "Steps trained when this token was sampled."
    ),
)
# Further columns that trainers write often; any other is shown by its own name.
EXTRA_FIELDS: dict[str, Field] = {
    field.name: field
    for field in (
        Field("x_value", "value", "", "signed", "Reward that the critic foresaw before this token."),
        Field(
            "x_teacher_divergence", "teacher divergence", "nats", "sequential", "KL between policy and teacher here."
        ),
        Field("x_influence", "influence", "", "signed", "Influence score of the token."),
        Field("x_planning", "planning", "", "sequential", "Whether the token plans: 1 yes, 0 no."),
        Field(
            "x_prompt_dependence", "prompt dependence", "nats", "signed", "How much the prompt made the token likelier."
        ),
    )
}
# What looks like a special token, as in static/js/rollout.js: decoders leave them out of the text.
SPECIAL = re.compile(rb"<\|[^|]*\|>|</?[A-Za-z_]{1,24}>|\[[A-Z]{2,12}\]")
# Of per-token numbers that the page itself carries; those of longer rollouts follow its text.
INLINE_BYTES = 200_000
# Characters of a prompt that the page itself carries.
PROMPT_LIMIT = 20_000


@dataclass(frozen=True, slots=True)
class RolloutView:
    """Everything of the page but the token arrays, which travel as `tokens` for static/js/rollout.js."""

    rollout: Rollout
    run: Run
    step: Step
    card: GroupCard
    line: RolloutLine
    parts: Sequence[Any]
    prompt: str
    prompt_is_cut: bool
    tokens: dict[str, Any]
    details: Mapping[str, Any]
    missing_fields: Sequence[Field]
    previous_id: int | None
    next_id: int | None
    previous_step: int | None
    next_step: int | None

    @property
    def stop_reason(self) -> str:
        return StopReason(self.rollout.stop_reason).label


def visible_rollout(user: User, rollout_id: int) -> Rollout:
    """The rollout with its step, run, group and prompt, or 404 when this person may not see it. One query."""
    rows = Rollout.objects.filter(step__run__in=Run.objects.visible_to(user))
    rollout = rows.select_related("step__run__project", "step__attempt", "group__prompt").filter(pk=rollout_id).first()
    if rollout is None:
        raise Http404(f"no rollout {rollout_id}")
    return rollout


def packed_rollout(rollout: Rollout) -> tuple[PackedRollout, np.ndarray | None]:
    """The stored text and arrays, with the prompt's token ids. One query."""
    payload = TokenChunk.objects.values_list("payload", flat=True).get(pk=rollout.chunk_id)
    chunk = unpack_chunk(payload)
    return chunk.rollouts[rollout.position], chunk.prompt_ids


def rollout_view(rollout: Rollout) -> RolloutView:
    """Seven queries, one less when the vocabulary is known to this process."""
    packed, _ = packed_rollout(rollout)
    step = rollout.step
    lines = rollout_lines(list(Rollout.objects.filter(group=rollout.group_id).order_by("number")), limit=48)
    places = [line.rollout.pk for line in lines]
    here = places.index(rollout.pk)
    parts = list(rollout.reward_parts.order_by("part"))
    columns = with_derived(packed.columns, [(part.token_start, part.token_end, part.value) for part in parts])
    neighbours = Step.objects.filter(run=step.run_id, split=step.split, is_current=True)
    card = group_card(rollout.group, lines, teaches=step.split == TRAIN)
    prompt, prompt_is_cut = visible_block(bytes(rollout.group.prompt.text), PROMPT_LIMIT)
    return RolloutView(
        rollout=rollout,
        run=step.run,
        step=step,
        card=card,
        line=lines[here],
        parts=parts,
        prompt=prompt,
        prompt_is_cut=prompt_is_cut,
        tokens=token_data(packed, columns, step.run.vocabulary_id)
        | {
            "rule": loss_rule(step.run),
            "number": rollout.number,
            "advantage": finite(rollout.advantage),
        },
        details=shown_details(packed.details),
        missing_fields=[field for field in FIELDS if field.name not in columns],
        previous_id=places[here - 1] if here > 0 else None,
        next_id=places[here + 1] if here + 1 < len(places) else None,
        previous_step=neighbours.filter(index__lt=step.index)
        .order_by("-index")
        .values_list("index", flat=True)
        .first(),
        next_step=neighbours.filter(index__gt=step.index).order_by("index").values_list("index", flat=True).first(),
    )


def with_derived(
    columns: Mapping[str, np.ndarray], spans: Sequence[tuple[int, int, float]] = ()
) -> dict[str, np.ndarray]:
    """The columns and those that follow from them; `spans` are first token, one past the last and value."""
    found = dict(columns)
    sampler, recomputed, policy = (columns.get(f"{who}_logprobs") for who in ("sampler", "recomputed", "policy"))
    sampled = sampler if recomputed is None else recomputed
    with np.errstate(all="ignore"):
        if policy is not None and sampled is not None:
            found["importance_ratio"] = np.exp(policy.astype(np.float64) - sampled).astype(np.float32)
        if recomputed is not None and sampler is not None:
            found["mismatch_ratio"] = np.exp(recomputed.astype(np.float64) - sampler).astype(np.float32)
        if policy is not None and sampler is not None:
            change = np.exp(policy.astype(np.float64)) - np.exp(sampler.astype(np.float64))
            found["probability_change"] = np.abs(change).astype(np.float32)
    length = max(map(len, columns.values()), default=0)
    if spans and length:
        rewards = np.zeros(length)
        for start, end, value in spans:
            rewards[start : max(end, start + 1)] += value
        found["segment_reward"] = rewards.astype(np.float32)
    return found


def finite(value: float | None) -> float | None:
    """The value, None where JSON has no word for it."""
    return value if value is not None and np.isfinite(value) else None


def loss_rule(run: Run) -> dict[str, Any]:
    """The run's policy loss and its numbers, as far as they are known; where the what-if starts."""
    names = [str(name) for name in _listed(run.plugins.get("H7")) if not isinstance(name, dict)]
    recipe = named(run.algorithm)
    parts = {"H7": tuple(names)} if names else {} if recipe is None else {"H7": recipe.parts.get("H7", ())}
    knobs = knobs_of(parts, {} if recipe is None else recipe.defaults)
    given = run.config.get("algorithm_params", {})
    own = {name for hook, name in KNOBS if hook == "H7" and name in parts.get("H7", ())}
    wanted = [knob for name in own for knob in KNOBS["H7", name]]
    return {"loss": next(iter(parts.get("H7", ())), None)} | {
        knob: given.get(knob, knobs[knob].default) for knob in wanted
    }


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def token_data(packed: PackedRollout, columns: Mapping[str, np.ndarray], vocabulary_id: int | None) -> dict[str, Any]:
    """What the page's script needs to draw every token. Arrays travel as base64 of their little-endian bytes: exact and short.

    Those of a long rollout it asks for once its text is there (`rollout_parts.numbers_of`).
    """
    ids = columns.get("token_ids")
    fields = fields_of(columns)
    is_long = ids is not None and sum(columns[field.name].nbytes for field in fields) > INLINE_BYTES
    return {
        "count": 0 if ids is None else len(ids),
        "ids": None if ids is None else base64_of(ids, "<i4"),
        "pieces": None if ids is None else pieces_of(ids, packed.completion, vocabulary_id),
        "fields": [
            {
                "name": field.name,
                "title": field.title,
                "unit": field.unit,
                "scale": field.scale,
                "meaning": field.meaning,
                "names": field.names,
                "type": columns[field.name].dtype.kind + str(columns[field.name].dtype.itemsize),
                "data": None if is_long else base64_of(columns[field.name], None),
            }
            for field in fields
        ],
        "boundaries": [int(n) for n in packed.details.get("step_boundaries", [])],
    }


def fields_of(columns: Mapping[str, np.ndarray]) -> list[Field]:
    """The fields that a rollout with these columns has, in the page's order."""
    known = [field for field in FIELDS if field.name in columns]
    return known + [
        EXTRA_FIELDS.get(name, Field(name, name.removeprefix("x_"), "", "signed", "Further column of the source."))
        for name in columns
        if name.startswith("x_")
    ]


def base64_of(values: np.ndarray, dtype: str | None) -> str:
    wanted = values.dtype.newbyteorder("<") if dtype is None else np.dtype(dtype)
    return base64.b64encode(np.ascontiguousarray(values, wanted).tobytes()).decode()


def pieces_of(ids: np.ndarray, completion: bytes, vocabulary_id: int | None) -> dict[str, Any]:
    """Text of each token that occurs, escaped by lib.text, and where the text comes from.

    `source` is "vocabulary", "characters" (a guess: as many characters as tokens) or "none"; `joins` says whether the pieces
    joined are the stored completion, with or without special tokens.
    """
    if vocabulary_id is not None:
        table = vocabulary_pieces(vocabulary_id)
        used = [int(n) for n in np.unique(ids)]
        texts = {str(n): text_from_bytes(table[n]) for n in used if 0 <= n < len(table)}
        joins = joined_pieces(ids, completion, table) is not None
        return {"source": "vocabulary", "by_id": texts, "joins": joins}
    characters = completion.decode("utf-8", "surrogateescape")
    if 0 <= len(ids) - len(characters) <= 1:
        listed = [text_from_bytes(char.encode("utf-8", "surrogateescape")) for char in characters]
        return {"source": "characters", "by_place": listed, "joins": True}
    return {"source": "none", "joins": False}


def joined_pieces(ids: np.ndarray, completion: bytes, table: Sequence[bytes]) -> list[bytes] | None:
    """Text of every token, special ones included, where they make up the completion; None where a decoder changed it."""
    pieces = [table[n] if 0 <= n < len(table) else b"" for n in ids.tolist()]
    plain = (piece for piece in pieces if not SPECIAL.fullmatch(piece))
    return pieces if completion in (b"".join(pieces), b"".join(plain)) else None


@lru_cache(maxsize=8)
def vocabulary_pieces(vocabulary_id: int) -> list[bytes]:
    """Pieces of a stored vocabulary, which never changes. One query the first time."""
    payload = Vocabulary.objects.values_list("payload", flat=True).get(pk=vocabulary_id)
    return vocabulary.unpack(bytes(payload))


def shown_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """What the source told beside numbers, as text for the page."""
    shown: dict[str, Any] = {}
    for name, value in details.items():
        if name in {"sketch", "step_boundaries", "parsed_answer", "turns"}:
            continue
        if isinstance(value, bytes):
            value = visible_start(value, 2000)
        elif isinstance(value, float):
            is_time = name.endswith("_seconds")
            name, value = name.removesuffix("_seconds"), duration_words(value) if is_time else significant(value)
        shown[name.replace("_", " ")] = value
    return shown
