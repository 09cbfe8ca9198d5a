"""Rollouts as a language model of some billion parameters would write them: one seeded step after another.

Words follow Zipf's law and are spelled from syllables, so that text compresses like English; about 512 tokens of 4
characters make the 2 KB of a rollout. Log-probabilities are near zero for most tokens and reach far down for a few. The
policy's differ from the sampler's the more, the less sure the model was, as after one optimiser update.
"""

import itertools
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from training.records import GROUPS, METRICS, REWARD_SPANS, ROLLOUTS, BatchHeader, RolloutBatch, complete

VOCABULARY = 32_000
WORDS = 12_000
CONSONANTS = ["b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "th", "w", "st", "ch", "k", "v"]
VOWELS = ["a", "e", "i", "o", "u", "ea", "ou", "y"]
# Tasks of varied rollouts, the frequent ones first: name, share, difficulty.
TASKS = [
    ("addition", 0.35, 2.0),
    ("multiplication", 0.25, 4.0),
    ("sorting", 0.15, 3.0),
    ("counting", 0.12, 1.0),
    ("chain", 0.08, 6.0),
    ("knights", 0.05, 8.0),
]
PROBLEMS = 5000  # of varied rollouts, so that prompts come back
METRIC_NAMES = [
    "loss",
    "grad_norm",
    "learning_rate",
    "reward_mean",
    "reward_std",
    "pass_rate",
    "entropy",
    "kl_k1",
    "kl_k3",
]


def vocabulary(rng: np.random.Generator) -> list[bytes]:
    """`WORDS` distinct words, the short ones first since they are the frequent ones."""
    words: dict[str, None] = {}
    while len(words) < WORDS:
        syllables = 1 + min(3, len(words) // 400 + int(rng.integers(2)))
        word = "".join(str(rng.choice(CONSONANTS)) + str(rng.choice(VOWELS)) for _ in range(syllables))
        words.setdefault(word + str(rng.choice(["", "n", "s", "r", "d"])))
    return [f" {word}".encode() for word in words]


def steps(
    run_uid: uuid.UUID | str,
    *,
    steps: int,
    groups: int = 32,
    group_size: int = 8,
    tokens: int = 512,
    seed: int = 0,
    varied: bool = False,
    first_step: int = 0,
) -> Iterator[RolloutBatch]:
    """Training batches of `groups * group_size` rollouts; each about `tokens` tokens and four bytes a token.

    `varied`: lengths differ, from an eighth of `tokens` to twice as many; several tasks, prompts that come back, two parts of the
    reward; else all is as long and of one task.
    """
    rng = np.random.default_rng([seed, first_step] if first_step else seed)
    # The same words in every part of a run.
    words = vocabulary(np.random.default_rng(0)) if varied else vocabulary(rng)
    # A word's own token id; ids of frequent words are small, as byte-pair merges make them.
    first_ids = np.sort(rng.choice(np.arange(256, VOCABULARY), WORDS, replace=False)).astype(np.int32)
    weights = 1 / (np.arange(WORDS) + 2.7)
    shape = _Shape(groups, group_size, tokens, varied)
    for step in range(first_step, first_step + steps):
        yield _batch(rng, words, first_ids, weights / weights.sum(), run_uid, step, shape)


@dataclass(frozen=True, slots=True)
class _Shape:
    groups: int
    group_size: int
    tokens: int
    varied: bool

    def lengths(self, rng: np.random.Generator) -> np.ndarray:
        count = self.groups * self.group_size
        if not self.varied:
            return np.full(count, self.tokens)
        drawn = rng.lognormal(np.log(self.tokens * 0.92), 0.4, count)
        return np.clip(drawn, self.tokens // 8, self.tokens * 2).astype(int)


def _batch(
    rng: np.random.Generator,
    words: list[bytes],
    first_ids: np.ndarray,
    weights: np.ndarray,
    run_uid: uuid.UUID | str,
    step: int,
    shape: _Shape,
) -> RolloutBatch:
    groups, group_size = shape.groups, shape.group_size
    count, lengths = groups * group_size, shape.lengths(rng)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    total = int(offsets[-1])
    picks = rng.choice(WORDS, total, p=weights)
    texts = [
        b"".join([words[i] for i in picks[start:end].tolist()])[: (end - start) * 4].lstrip()
        for start, end in itertools.pairwise(offsets.tolist())
    ]
    ids = first_ids[picks]
    sure = rng.random(total) < 0.6
    sampler = np.where(sure, -rng.gamma(0.4, 0.02, total), -rng.gamma(1.1, 1.3, total))
    policy = np.minimum(sampler + rng.normal(0, 0.02, total) * (1 - np.exp(sampler)), 0)
    right = rng.random((groups, group_size)) < rng.beta(0.6, 0.6, (groups, 1))
    parts = {"exact": right.astype(np.float64)}
    if shape.varied:
        parts["format"] = np.round(rng.beta(2, 1, (groups, group_size)), 2) / 5
    reward = sum(parts.values(), np.zeros((groups, group_size)))
    spread = reward.std(axis=1, ddof=1, keepdims=True)
    advantage = ((reward - reward.mean(axis=1, keepdims=True)) / (spread + 1e-6)).reshape(-1)
    is_cut = lengths == shape.tokens * 2 if shape.varied else rng.random(count) < 0.1

    def per_token(values: np.ndarray, kind: type) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, pa.array(values.astype(kind)))

    rollouts = pa.table(
        {
            "group": pa.array(np.repeat(np.arange(groups, dtype=np.int32), group_size)),
            "number": pa.array(np.tile(np.arange(group_size, dtype=np.int16), groups)),
            "completion": pa.array(texts, pa.large_binary()),
            "reward": pa.array(reward.reshape(-1)),
            "advantage": pa.array(advantage),
            "correct": pa.array(right.reshape(-1)),
            "kept": pa.array(np.ones(count, dtype=bool)),
            "stop_reason": pa.array(np.where(is_cut, "length", "stop").tolist()),
            "parsed_answer": pa.array([str(n).encode() for n in rng.integers(0, 200, count)], pa.large_binary()),
            "policy_version": pa.array(np.full(count, step, dtype=np.int32)),
            "staleness_steps": pa.array(np.zeros(count, dtype=np.int32)),
            "seed": pa.array(rng.integers(0, 2**31, count)),
            "token_ids": per_token(ids, np.int32),
            "sampler_logprobs": per_token(sampler, np.float32),
            "policy_logprobs": per_token(policy, np.float32),
            "token_advantages": per_token(np.repeat(advantage, lengths), np.float32),
        }
    )
    header = BatchHeader(
        batch_id=str(uuid.uuid5(uuid.UUID(str(run_uid)), str(step))), run_uid=str(run_uid), attempt=1, step=step
    )
    metrics = pa.table({"name": METRIC_NAMES, "value": rng.normal(0, 1, len(METRIC_NAMES))})
    return RolloutBatch(
        header,
        complete(rollouts, ROLLOUTS),
        complete(_groups(rng, shape, reward, right), GROUPS),
        complete(metrics, METRICS),
        complete(_spans(parts, lengths), REWARD_SPANS),
    )


def _groups(rng: np.random.Generator, shape: _Shape, reward: np.ndarray, right: np.ndarray) -> pa.Table:
    groups = shape.groups
    problems = rng.integers(10, 10_000, (groups, 2))
    tasks = [TASKS[0]] * groups
    if shape.varied:
        # The first number says which problem it is, and with it which task.
        problems = np.stack([number := rng.integers(0, PROBLEMS, groups), number * 7919 % 9973], axis=1)
        edges = np.cumsum([share for _, share, _ in TASKS])
        tasks = [TASKS[i] for i in np.searchsorted(edges, number / PROBLEMS, side="right").clip(0, len(TASKS) - 1)]
    prompts = [
        f"What is {a} plus {b}? Explain each step.".encode()
        if task == "addition"
        else f"{task.capitalize()} with {a} and {b}: show every step.".encode()
        for (task, _, _), (a, b) in zip(tasks, problems, strict=True)
    ]
    return pa.table(
        {
            "index": pa.array(np.arange(groups, dtype=np.int32)),
            "prompt": pa.array(prompts, pa.large_binary()),
            "prompt_ids": pa.array([rng.integers(256, VOCABULARY, 12).astype(np.int32) for _ in prompts]),
            "generator": pa.array([name for name, _, _ in tasks]),
            "parameters": pa.array([json.dumps({"digits": 4})] * groups),
            "difficulty": pa.array([difficulty for _, _, difficulty in tasks]),
            "answer": pa.array([str(a + b).encode() for a, b in problems], pa.large_binary()),
            "size_asked": pa.array(np.full(groups, shape.group_size, dtype=np.int32)),
            "size_got": pa.array(np.full(groups, shape.group_size, dtype=np.int32)),
            "reward_mean": pa.array(reward.mean(axis=1)),
            "reward_std": pa.array(reward.std(axis=1, ddof=1)),
            "success_share": pa.array(right.mean(axis=1)),
            "kept": pa.array(np.ones(groups, dtype=bool)),
            "sampling": pa.array([json.dumps({"temperature": 1.0, "max_new_tokens": shape.tokens})] * groups),
        }
    )


def _spans(parts: dict[str, np.ndarray], lengths: np.ndarray) -> pa.Table:
    """One span at the last token for each part of the reward, a rollout's together."""
    count, names = len(lengths), list(parts)
    ends = np.repeat(lengths, len(parts)).astype(np.int32)
    return pa.table(
        {
            "rollout": pa.array(np.repeat(np.arange(count, dtype=np.int32), len(parts))),
            "token_start": pa.array(ends - 1),
            "token_end": pa.array(ends),
            "value": pa.array(np.stack([values.reshape(-1) for values in parts.values()], axis=1).reshape(-1)),
            "kind": pa.array([{"exact": "outcome"}.get(name, name) for name in names] * count),
            "name": pa.array(names * count),
            "version": pa.array(["1"] * count * len(parts)),
        }
    )
