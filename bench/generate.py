"""Rollouts as a language model of some billion parameters would write them: one seeded step after another.

Words follow Zipf's law and are spelled from syllables, so that text compresses like English; about 512 tokens of 4
characters make the 2 KB of a rollout. Log-probabilities are near zero for most tokens and reach far down for a few. The
policy's differ from the sampler's the more, the less sure the model was, as after one optimiser update.
"""

import json
import uuid
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from training.records import GROUPS, METRICS, REWARD_SPANS, ROLLOUTS, BatchHeader, RolloutBatch, complete

VOCABULARY = 32_000
WORDS = 12_000
CONSONANTS = ["b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "th", "w", "st", "ch", "k", "v"]
VOWELS = ["a", "e", "i", "o", "u", "ea", "ou", "y"]
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
    run_uid: uuid.UUID | str, *, steps: int, groups: int = 32, group_size: int = 8, tokens: int = 512, seed: int = 0
) -> Iterator[RolloutBatch]:
    """Training batches of `groups * group_size` rollouts; each about `tokens` tokens and four bytes a token."""
    rng = np.random.default_rng(seed)
    words = vocabulary(rng)
    # A word's own token id; ids of frequent words are small, as byte-pair merges make them.
    first_ids = np.sort(rng.choice(np.arange(256, VOCABULARY), WORDS, replace=False)).astype(np.int32)
    weights = 1 / (np.arange(WORDS) + 2.7)
    weights /= weights.sum()
    for step in range(steps):
        yield _batch(rng, words, first_ids, weights, run_uid, step, groups, group_size, tokens)


def _batch(
    rng: np.random.Generator,
    words: list[bytes],
    first_ids: np.ndarray,
    weights: np.ndarray,
    run_uid: uuid.UUID | str,
    step: int,
    groups: int,
    group_size: int,
    tokens: int,
) -> RolloutBatch:
    count = groups * group_size
    picks = rng.choice(WORDS, (count, tokens), p=weights)
    texts = [b"".join(words[i] for i in row)[: tokens * 4].lstrip() for row in picks]
    ids = first_ids[picks]
    sure = rng.random((count, tokens)) < 0.6
    sampler = np.where(sure, -rng.gamma(0.4, 0.02, (count, tokens)), -rng.gamma(1.1, 1.3, (count, tokens)))
    policy = np.minimum(sampler + rng.normal(0, 0.02, sampler.shape) * (1 - np.exp(sampler)), 0)
    right = rng.random((groups, group_size)) < rng.beta(0.6, 0.6, (groups, 1))
    reward = right.astype(np.float64)
    spread = reward.std(axis=1, ddof=1, keepdims=True)
    advantage = ((reward - reward.mean(axis=1, keepdims=True)) / (spread + 1e-6)).reshape(-1)
    offsets = np.arange(0, count * tokens + 1, tokens, dtype=np.int32)

    def per_token(values: np.ndarray, kind: type) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1).astype(kind)))

    rollouts = pa.table(
        {
            "group": pa.array(np.repeat(np.arange(groups, dtype=np.int32), group_size)),
            "number": pa.array(np.tile(np.arange(group_size, dtype=np.int16), groups)),
            "completion": pa.array(texts, pa.large_binary()),
            "reward": pa.array(reward.reshape(-1)),
            "advantage": pa.array(advantage),
            "correct": pa.array(right.reshape(-1)),
            "kept": pa.array(np.ones(count, dtype=bool)),
            "stop_reason": pa.array(np.where(rng.random(count) < 0.1, "length", "stop").tolist()),
            "parsed_answer": pa.array([str(n).encode() for n in rng.integers(0, 200, count)], pa.large_binary()),
            "policy_version": pa.array(np.full(count, step, dtype=np.int32)),
            "staleness_steps": pa.array(np.zeros(count, dtype=np.int32)),
            "seed": pa.array(rng.integers(0, 2**31, count)),
            "token_ids": per_token(ids, np.int32),
            "sampler_logprobs": per_token(sampler, np.float32),
            "policy_logprobs": per_token(policy, np.float32),
            "token_advantages": per_token(np.repeat(advantage, tokens), np.float32),
        }
    )
    problems = rng.integers(10, 10_000, (groups, 2))
    prompts = [f"What is {a} plus {b}? Explain each step.".encode() for a, b in problems]
    group_table = pa.table(
        {
            "index": pa.array(np.arange(groups, dtype=np.int32)),
            "prompt": pa.array(prompts, pa.large_binary()),
            "prompt_ids": pa.array([rng.integers(256, VOCABULARY, 12).astype(np.int32) for _ in prompts]),
            "generator": pa.array(["addition"] * groups),
            "parameters": pa.array([json.dumps({"digits": 4})] * groups),
            "difficulty": pa.array(np.full(groups, 4.0)),
            "answer": pa.array([str(a + b).encode() for a, b in problems], pa.large_binary()),
            "size_asked": pa.array(np.full(groups, group_size, dtype=np.int32)),
            "size_got": pa.array(np.full(groups, group_size, dtype=np.int32)),
            "reward_mean": pa.array(reward.mean(axis=1)),
            "reward_std": pa.array(spread.reshape(-1)),
            "success_share": pa.array(right.mean(axis=1)),
            "kept": pa.array(np.ones(groups, dtype=bool)),
            "sampling": pa.array([json.dumps({"temperature": 1.0, "max_new_tokens": tokens})] * groups),
        }
    )
    spans = pa.table(
        {
            "rollout": pa.array(np.arange(count, dtype=np.int32)),
            "token_start": pa.array(np.full(count, tokens - 1, dtype=np.int32)),
            "token_end": pa.array(np.full(count, tokens, dtype=np.int32)),
            "value": pa.array(reward.reshape(-1)),
            "kind": pa.array(["outcome"] * count),
            "name": pa.array(["exact"] * count),
            "version": pa.array(["1"] * count),
        }
    )
    metrics = pa.table({"name": METRIC_NAMES, "value": rng.normal(0, 1, len(METRIC_NAMES))})
    header = BatchHeader(
        batch_id=str(uuid.uuid5(uuid.UUID(str(run_uid)), str(step))), run_uid=str(run_uid), attempt=1, step=step
    )
    return RolloutBatch(
        header,
        complete(rollouts, ROLLOUTS),
        complete(group_table, GROUPS),
        complete(metrics, METRICS),
        complete(spans, REWARD_SPANS),
    )
