"""Whether the trainer learned from what its people think it does: checks of every rollout, each with the token at fault."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlviewer.runs.models import Run, StopReason
from rlviewer.runs.queries.rollout import SPECIAL
from rlviewer.signal.material import Integers, Mask, Material
from rlviewer.signal.measures.tokens import (
    ENVIRONMENT,
    FEEDBACK,
    PREFIX,
    PROMPT,
    Tokens,
    column,
    counted_in,
    summed,
)
from training.hooks import ADVANTAGE_TRAITS
from training.recipes import named

# Trainer and sampler with the same weights differ by rounding, far below this; with other weights, far above.
STALE_GAP_NATS = 0.1
# A token that ends this share of the completions which stopped by themselves is their end token.
END_TOKEN_SHARE = 0.9
FEWEST_ENDS = 4
ROUNDING = 1e-6  # of an advantage that is meant to be 0


@dataclass(frozen=True, slots=True)
class Step:
    """What the checks read."""

    of: Material
    tokens: Tokens
    pieces: Sequence[bytes] | None  # of the vocabulary
    dead_is_meant: bool

    @property
    def counted(self) -> Integers:
        return counted_in(self.tokens.rollout, self.tokens.counts, self.of.count)

    def first(self, mask: Mask) -> Integers:
        """Per rollout the position of its first token in the mask, -1 for none."""
        found = np.full(self.of.count, -1)
        places = np.flatnonzero(mask)
        rows, first = np.unique(self.tokens.rollout[places], return_index=True)
        found[rows] = places[first] - self.of.starts[rows]
        return found


# Per rollout the token at fault (-1: it passes), and which rollouts could be checked; None: a column is lacking.
Verdicts = tuple[Integers, Mask]
Judge = Callable[[Step], Verdicts | None]


@dataclass(frozen=True, slots=True)
class Check:
    """`key` never changes: stored columns carry it. `severity` is that of a failing rollout."""

    key: str
    title: str
    meaning: str
    severity: str  # "broken" or "watch"
    needs: str  # what the source has to record
    judge: Judge


def _environment(step: Step) -> Verdicts | None:
    if (origin := step.tokens.origin) is None or not _has(step.of, "loss_mask"):
        return None
    return _all(step, step.first(step.tokens.counts & ((origin == ENVIRONMENT) | (origin == FEEDBACK))))


def _prompt(step: Step) -> Verdicts | None:
    if (origin := step.tokens.origin) is None or not _has(step.of, "loss_mask"):
        return None
    return _all(step, step.first(step.tokens.counts & ((origin == PROMPT) | (origin == PREFIX))))


def _end_masked(step: Step) -> Verdicts | None:
    of = step.of
    if not _has(of, "loss_mask"):
        return None
    can = (_stops(of) == StopReason.STOP) & (step.counted > 0)
    last = np.maximum(of.starts[1:] - 1, 0)
    is_masked = np.zeros(of.count, np.bool_)
    is_masked[can] = ~step.tokens.counts[last[can]] & step.tokens.generated[last[can]]
    return np.where(is_masked, of.lengths - 1, -1), can


def _text(step: Step) -> Verdicts | None:
    ids = column(step.of, "token_ids", -1)
    if step.pieces is None or ids is None:
        return None
    found = np.full(step.of.count, -1)
    for row, one in enumerate(step.of.packed):
        low, high = step.of.starts[row], step.of.starts[row + 1]
        own = ids[low:high].tolist()
        found[row] = text_differs(own, one.completion, step.pieces, step.tokens.generated[low:high].tolist())
    return found, step.of.lengths > 0


def text_differs(ids: Sequence[int], completion: bytes, pieces: Sequence[bytes], generated: Sequence[bool]) -> int:
    """First token whose text is not the completion's; -1 when they are the same.

    Special tokens, tokens that others wrote and a space at the very start may be missing from the text: decoders leave them
    out.
    """
    texts = [pieces[token] if 0 <= token < len(pieces) else b"" for token in ids]
    if b"".join(texts) == completion:
        return -1
    place = 0
    for position, (text, is_own) in enumerate(zip(texts, generated, strict=True)):
        if completion.startswith(text, place):
            place += len(text)
        elif place == 0 and completion.startswith(text.lstrip(b" ")):
            place = len(text.lstrip(b" "))
        elif is_own and not SPECIAL.fullmatch(text):
            return position
    return -1 if place == len(completion) else max(0, len(ids) - 1)


def _boundary(step: Step) -> Verdicts | None:
    ids = column(step.of, "token_ids", -1)
    if ids is None or not len(ids):
        return None
    ends = _end_tokens(step, ids)
    special = np.zeros(len(ids), np.bool_) if step.pieces is None else _is_special(step.pieces, ids)
    if not len(ends) and step.pieces is None:
        return None
    starts, generated = step.of.starts, step.tokens.generated
    follows = np.zeros(len(ids), np.bool_)
    same_rollout = step.tokens.rollout[1:] == step.tokens.rollout[:-1]
    # The end is passed, or a marker stands twice.
    follows[1:] = same_rollout & generated[1:] & generated[:-1] & np.isin(ids[:-1], ends)
    follows[1:] |= same_rollout & special[1:] & (ids[1:] == ids[:-1])
    found = step.first(follows)
    for row in np.flatnonzero(step.of.lengths > 0).tolist():
        prompt = step.of.prompt_ids[row]
        if prompt is not None and len(prompt) and special[starts[row]] and prompt[-1] == ids[starts[row]]:
            found[row] = 0
    return found, step.of.lengths > 0


def _end_tokens(step: Step, ids: Integers) -> Integers:
    """The id that ends nearly all completions which stopped by themselves, if there is one."""
    stopped = (_stops(step.of) == StopReason.STOP) & (step.of.lengths > 0)
    last = ids[step.of.starts[1:][stopped] - 1]
    if len(last) < FEWEST_ENDS:
        return np.zeros(0, np.int64)
    values, counts = np.unique(last, return_counts=True)
    return values[counts >= END_TOKEN_SHARE * len(last)]


def _is_special(pieces: Sequence[bytes], ids: Integers) -> Mask:
    used = np.unique(ids)
    marks = [bool(0 <= token < len(pieces) and SPECIAL.fullmatch(pieces[token])) for token in used.tolist()]
    return np.array(marks, np.bool_)[np.searchsorted(used, ids)]


def _truncated(step: Step) -> Verdicts | None:
    is_cut = _stops(step.of) == StopReason.LENGTH
    trained = is_cut & (step.counted > 0)
    return np.where(trained, step.of.lengths - 1, -1), np.ones(step.of.count, np.bool_)


def _empty_mask(step: Step) -> Verdicts | None:
    if not _has(step.of, "loss_mask"):
        return None
    kept = np.array(step.of.narrow["kept"], dtype=np.bool_)
    return np.where(kept & (step.counted == 0), 0, -1), kept


def _dead_advantage(step: Step) -> Verdicts | None:
    if step.dead_is_meant:
        return None
    of, advantage = step.of, step.of.floats("advantage")
    if not np.isfinite(advantage).any():
        return None
    is_dead = np.array([group.dead_cause not in {"", "unscored"} for group in of.groups], dtype=np.bool_)
    can = is_dead[of.group_of] & np.isfinite(advantage)
    return np.where(can & (np.abs(advantage) > ROUNDING), 0, -1), can


def _stale(step: Step) -> Verdicts | None:
    tokens, of = step.tokens, step.of
    if tokens.recomputed is None or tokens.sampler is None:
        return None
    gap = np.abs(tokens.recomputed.astype(np.float64) - tokens.sampler)
    gap = np.where(tokens.counts & np.isfinite(gap), gap, 0)
    age = np.array([value or 0 for value in of.narrow["staleness_steps"]])
    can = (age == 0) & (step.counted > 0)
    is_far = can & (summed(tokens.rollout, gap, of.count) > STALE_GAP_NATS * step.counted)
    found = np.full(of.count, -1)
    for row in np.flatnonzero(is_far).tolist():
        found[row] = int(gap[of.starts[row] : of.starts[row + 1]].argmax())
    return found, can


def _twice(step: Step) -> Verdicts | None:
    of, seen = step.of, set()
    found, can = np.full(of.count, -1), np.zeros(of.count, np.bool_)
    seeds = [one.details.get("seed") for one in of.packed]
    # Where a group is sampled from one seed, equal rollouts of it are no copies: then the same place in another group tells.
    is_own = any(len({seeds[row] for row in rows.tolist()}) > 1 for rows in of.members())
    prompts: dict[object, set[int]] = {}
    for row, seed in enumerate(seeds):
        prompts.setdefault(seed, set()).add(of.groups[of.group_of[row]].prompt_id)
    for row, one in enumerate(of.packed):
        ids = one.columns.get("token_ids")
        # A seed that serves a whole batch of prompts does not tell one draw from another.
        if seeds[row] is None or ids is None or (not is_own and len(prompts[seeds[row]]) > 1):
            continue
        can[row] = True
        place = None if is_own else of.narrow["number"][row]
        key = (of.groups[of.group_of[row]].prompt_id, seeds[row], place, ids.tobytes())
        found[row] = 0 if key in seen else -1
        seen.add(key)
    return (found, can) if can.any() else None


def _not_finite(step: Step) -> Verdicts | None:
    tokens = step.tokens
    columns = [each for each in (tokens.sampler, tokens.policy, tokens.advantage) if each is not None]
    if not columns:
        return None
    bad = np.logical_or.reduce([~np.isfinite(each) for each in columns])
    return step.first(tokens.counts & bad), step.counted > 0


CHECKS: dict[str, Check] = {
    check.key: check
    for check in (
        Check("environment", "environment output counts in the loss", "A token that the environment or a checker wrote is trained on, as if the policy had chosen it.", "broken", "origin and loss mask", _environment),
        Check("prompt", "prompt or prefix counts in the loss", "A token that was given to the policy is trained on.", "broken", "origin and loss mask", _prompt),
        Check("end", "end token is masked", "The completion stopped by itself, and its last token does not count: the policy cannot learn to stop.", "broken", "loss mask", _end_masked),
        Check("text", "token ids and text differ", "The text of the stored token ids is not the stored completion: what was judged is not what was trained on.", "broken", "token ids and vocabulary", _text),
        Check("boundary", "template boundary is doubled or passed", "A marker of the chat template stands twice in a row, or tokens follow the end of the completion.", "broken", "token ids", _boundary),
        Check("truncated", "truncated completion trains as complete", "Cut at the token limit, and its tokens count: it is judged by an answer that it could not give.", "watch", "", _truncated),
        Check("empty", "loss mask is empty", "The rollout entered the update, and none of its tokens counts.", "watch", "loss mask", _empty_mask),
        Check("dead", "advantage in a group of equal rewards", "There was nothing to compare, yet the update was given a direction.", "broken", "advantage", _dead_advantage),
        Check("stale", "sampler and trainer disagree on the same weights", f"Recomputed and sampler log-probabilities differ by more than {STALE_GAP_NATS} nats a token although no step lies between: the sampler may hold old weights.", "broken", "recomputed log-probabilities", _stale),
        Check("twice", "same rollout twice", "Same prompt, seed and tokens as an earlier rollout of the step: it counts double.", "broken", "token ids, and a seed for each rollout or group", _twice),
        Check("finite", "number is not finite", "A counted token has a log-probability or an advantage that is NaN or infinite.", "broken", "log-probabilities or advantages", _not_finite),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Audit:
    """`failed_at` by check: per rollout the token at fault, -1 for none; only checks that some rollout fails."""

    checked: list[int]  # rollouts, in the order of `CHECKS`; 0 where the check did not run
    failed: list[int]
    failed_at: dict[str, Integers]


def audit(of: Material, tokens: Tokens, pieces: Sequence[bytes] | None, *, dead_is_meant: bool) -> Audit:
    step = Step(of, tokens, pieces, dead_is_meant)
    verdicts = {key: check.judge(step) for key, check in CHECKS.items()}
    failed = {key: found[0] for key, found in verdicts.items() if found is not None and (found[0] >= 0).any()}
    return Audit(
        checked=[0 if found is None else int(found[1].sum()) for found in verdicts.values()],
        failed=[int((failed[key] >= 0).sum()) if key in failed else 0 for key in CHECKS],
        failed_at=failed,
    )


def means_dead(run: Run) -> bool:
    """The run's recipe gives groups of equal rewards an advantage on purpose, or its parts are not known to be of another kind."""
    recipe = named(run.algorithm)
    plugins = run.plugins if isinstance(run.plugins, Mapping) else {}
    parts = {
        hook: _names(plugins[hook]) if plugins.get(hook) else () if recipe is None else recipe.parts[hook]
        for hook in ("H4", "H5", "H6")
    }
    compares = [ADVANTAGE_TRAITS[name].in_group for name in parts["H5"] if name in ADVANTAGE_TRAITS]
    if recipe is None and not compares:
        return False
    return (
        not all(compares)
        or bool({"dead_entropy", "return_to_go", "gae", "whitened", "process"} & set(parts["H6"]))
        or "soft_labels" in parts["H4"]
        or "shorter_is_better" in parts["H4"]
        or "signed" in parts["H5"]
    )


def _names(part: Any) -> tuple[str, ...]:
    return tuple(map(str, part)) if isinstance(part, list | tuple) else (str(part),)


def _has(of: Material, name: str) -> bool:
    return name in of.columns or name in of.partial


def _stops(of: Material) -> Integers:
    return np.array(of.narrow["stop_reason"], dtype=np.int64)


def _all(step: Step, found: Integers) -> Verdicts:
    return found, np.ones(step.of.count, np.bool_)
