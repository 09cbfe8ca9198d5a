"""What the pages of similar rollouts show: coverage of a filter, its clusters, and what lies near a text or a rollout."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from django.db.models.functions import Left

from rlviewer.analysis import jobs, vectors
from rlviewer.analysis.clusters import Cluster, Word, clusters, telling_words
from rlviewer.analysis.models import EmbeddingJob, RolloutEmbedding
from rlviewer.analysis.selection import Selection, select
from rlviewer.analysis.texts import completions_of
from rlviewer.lib.visible import visible_block
from rlviewer.runs.models import Rollout, Run
from rlviewer.runs.queries.run import RolloutLine, rollout_lines, with_prompts
from rlviewer.search.browse import Scope, Search
from rlviewer.search.language import MAX_CHARS
from rlviewer.search.models import RolloutText
from training.sentences import DIMENSIONS, MODEL_KEY

NEAREST, NEAREST_TO_TEXT = 10, 25
CANDIDATES = 300  # looked at for them, since many may say the same
# Of a text, for its words: about what the model reads.
WORDS_CHARS, EXAMPLE_CHARS = 2000, 600
# Before any job has told: two busy cores. Loading the model comes before.
GUESSED_RATE, LOADING_SECONDS = 10.0, 10.0


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many of a filter's rollouts are embedded, and how long the rest would take."""

    selection: Selection
    embedded: int
    total: int | None  # rollouts that the filter finds; None when it was not counted
    is_guess: bool
    rate: float

    @property
    def missing(self) -> int:
        return len(self.selection.ids) - self.embedded

    @property
    def seconds(self) -> int:
        return math.ceil(self.missing / self.rate + LOADING_SECONDS)


def coverage(search: Search) -> Coverage:
    """Rollouts are counted only where the sample leaves some out. Up to seven queries."""
    selection = select(search)
    rate = jobs.rate()
    return Coverage(
        selection,
        embedded=len(vectors.embedded_ids(selection.ids)),
        total=search.total() if selection.is_sample and not search.scans else None,
        is_guess=rate is None,
        rate=rate or GUESSED_RATE,
    )


def seconds_left(job: EmbeddingJob) -> int | None:
    """Of a job at work, by its own pace so far; None before it has one."""
    if not job.total or not job.done or not job.seconds:
        return None
    return math.ceil((job.total - job.done) * job.seconds / job.done)


@dataclass(frozen=True, slots=True)
class ClusterCard:
    number: int  # from 1, the largest first
    size: int
    tightness: float
    reward_mean: float | None  # of the scored ones
    scored: int
    steps: tuple[int, int]  # the first and the last that sampled one
    words: Sequence[Word]
    example: Rollout
    example_text: str
    example_is_cut: bool
    filter: str  # finds its rollouts, as many as a filter holds
    filtered: int


@dataclass(frozen=True, slots=True)
class Clusters:
    cards: Sequence[ClusterCard]
    embedded: int
    cut: int  # of them, those of which only the beginning fitted the model
    without_words: int  # of them, those whose words are not indexed yet


def found_clusters(ids: Sequence[int], count: int) -> Clusters:
    """The embedded ones among `ids` in at most `count` clusters. Seven queries."""
    known = vectors.vectors_of(ids)
    rows = list(known)
    matrix = np.frombuffer(b"".join(known.values()), np.float32).reshape(-1, DIMENSIONS)
    found = clusters(matrix, count)
    columns = ("pk", "reward", "step__index")
    facts = {pk: (reward, step) for pk, reward, step in Rollout.objects.filter(pk__in=rows).values_list(*columns)}
    begins = RolloutText.objects.filter(pk__in=rows).values_list("pk", Left("completion", WORDS_CHARS))
    texts = dict(begins)
    words = telling_words([{n: texts[rows[n]] for n in one.members if rows[n] in texts} for one in found])
    nearest = [rows[one.members[0]] for one in found]
    examples = Rollout.objects.select_related("step", "group").in_bulk(nearest)
    completions = completions_of(nearest)
    cards = [
        _card(number, one, [rows[row] for row in one.members], facts, told, examples[pk], completions[pk])
        for number, (pk, one, told) in enumerate(zip(nearest, found, words, strict=True), start=1)
        if pk in completions
    ]
    cut = RolloutEmbedding.objects.filter(pk__in=rows, is_cut=True).count()
    return Clusters(cards, len(rows), cut, len(rows) - len(texts))


def _card(
    number: int,
    cluster: Cluster,
    members: Sequence[int],
    facts: Mapping[int, tuple[float | None, int]],
    words: Sequence[Word],
    example: Rollout,
    completion: bytes,
) -> ClusterCard:
    known = [facts[pk] for pk in members if pk in facts]
    rewards = [reward for reward, _ in known if reward is not None and math.isfinite(reward)]
    steps = [step for _, step in known]
    text, is_cut = visible_block(completion, EXAMPLE_CHARS)
    named = ids_filter(members)
    return ClusterCard(
        number=number,
        size=len(members),
        tightness=cluster.tightness,
        reward_mean=fmean(rewards) if rewards else None,
        scored=len(rewards),
        steps=(min(steps), max(steps)),
        words=words,
        example=example,
        example_text=text,
        example_is_cut=is_cut,
        filter=named,
        filtered=named.count(",") + 1,
    )


def ids_filter(ids: Sequence[int]) -> str:
    """A filter that finds these rollouts; the first ones where it would grow too long."""
    text = f"id:{ids[0]}"
    for pk in ids[1:]:
        longer = f"{text},{pk}"
        if len(longer) > MAX_CHARS:
            break
        text = longer
    return text


@dataclass(frozen=True, slots=True)
class NearLine:
    """A rollout that lies near, for all that say the same to the byte."""

    line: RolloutLine
    similarity: float
    run: Run
    repeats: int  # others that say the same, among those that were looked at
    filter: str  # finds it and them, as many as a filter holds


def near_text(search: Search, vector: bytes, selection: Selection) -> list[NearLine]:
    """The rollouts of a filter that mean about what a text says."""
    # Where texts must be read, only those that were found in time.
    rows = search.scope.rollouts().filter(pk__in=selection.ids) if search.scans else search.rows()
    return _lines(vectors.nearest(rows, vector, limit=CANDIDATES), NEAREST_TO_TEXT)


@dataclass(frozen=True, slots=True)
class Similar:
    """What lies near a rollout; `lines` is None while it has no vector itself."""

    lines: Sequence[NearLine] | None
    embedded: int  # others that were compared
    rollouts: int  # that there are


def similar_rollouts(rollout: Rollout, scope: Scope) -> Similar:
    """Ten queries."""
    rows = scope.rollouts().exclude(pk=rollout.pk)
    own = vectors.vectors_of([rollout.pk]).get(rollout.pk)
    lines = None if own is None else _lines(vectors.nearest(rows, own, limit=CANDIDATES), NEAREST)
    return Similar(lines, rows.filter(rolloutembedding__model=MODEL_KEY).count(), Search(scope).total())


def _lines(near: Sequence[vectors.Near], limit: int) -> list[NearLine]:
    """The nearest that differ, with prompt, text, run and step. Six queries."""
    texts = completions_of([one.id for one in near])
    same: dict[bytes, list[vectors.Near]] = {}
    for one in near:
        if one.id in texts:
            same.setdefault(texts[one.id], []).append(one)
    first = list(same.values())[:limit]
    stored = Rollout.objects.select_related("step__run", "group").in_bulk([ones[0].id for ones in first])
    lines = with_prompts(rollout_lines([stored[ones[0].id] for ones in first]))
    return [
        NearLine(
            line,
            ones[0].similarity,
            line.rollout.step.run,
            repeats=len(ones) - 1,
            filter=ids_filter([one.id for one in ones]),
        )
        for line, ones in zip(lines, first, strict=True)
    ]
