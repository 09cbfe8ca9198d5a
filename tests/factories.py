"""Builders of people, projects and runs for tests."""

import uuid
import zlib
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from django.contrib.auth.hashers import PBKDF2PasswordHasher

from rlviewer.accounts.models import Member, Project, Role, User
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Attempt, Run
from training.records import EXTRA_PREFIX, GROUPS, REWARD_SPANS, ROLLOUTS, BatchHeader, RolloutBatch, complete

PASSWORD = "correct horse battery"


@lru_cache
def password_hash() -> str:
    """One round, so that signing in is quick; a server with the real settings accepts it too."""
    return PBKDF2PasswordHasher().encode(PASSWORD, "salt", iterations=1)


def make_user(name: str, **extra: Any) -> User:
    return User.objects.create(username=name, password=password_hash(), **extra)


def make_project(name: str = "arithmetic", *, admin: User | None = None) -> Project:
    project = Project.objects.create(name=name)
    if admin is not None:
        Member.objects.create(project=project, user=admin, role=Role.ADMIN)
    return project


def make_run(project: Project, name: str = "run", **extra: Any) -> Run:
    """A queued run with its first attempt."""
    defaults: dict[str, Any] = {"algorithm": "grpo", "task": "addition", "model": "builtin:tiny", "steps_planned": 10}
    run = Run.objects.create(project=project, name=name, **{**defaults, **extra})
    Attempt.objects.create(run=run, number=1)
    return run


def make_batch(
    run: Run,
    *,
    attempt: int = 1,
    step: int = 0,
    groups: int = 4,
    group_size: int = 4,
    tokens: int = 24,
    split: str = "train",
    seed: int = 0,
    **overrides: Any,
) -> RolloutBatch:
    """Rollouts of an addition task as a half-trained model writes them.

    Group 0 is all right, group 1 all wrong (both dead), the others mixed. The last rollout is cut at the limit, its reward
    and one of its log-probabilities are NaN. `overrides` replace columns of the rollouts by name (a list with one value
    per rollout). The same arguments for the same run give the same batch id.
    """
    rng = np.random.default_rng([seed, step, attempt, zlib.crc32(split.encode())])
    count = groups * group_size
    operands = rng.integers(10, 100, (groups, 2))
    right = rng.random((groups, group_size)) < 0.5
    right[0], right[1:2] = True, False
    lengths = rng.integers(max(1, tokens // 2), tokens + 1, count)
    lengths[-1] = tokens
    rows: dict[str, list[Any]] = {field.name: [None] * count for field in ROLLOUTS}
    spans: dict[str, list[Any]] = {field.name: [] for field in REWARD_SPANS}
    for row in range(count):
        group, number = divmod(row, group_size)
        first, second = (int(n) for n in operands[group])
        is_right, length = bool(right[group, number]), int(lengths[row])
        answer = first + second + (0 if is_right else int(rng.integers(1, 9)))
        reward = float("nan") if row == count - 1 else float(is_right)
        text = f"{first}+{second}: carry {(first % 10 + second % 10) // 10}, so = {answer}\n"
        sampler = -rng.gamma(0.6, 0.7, length).astype(np.float32)
        if reward != reward:
            sampler[0] = np.nan
        policy = (sampler + rng.normal(0, 0.05, length)).astype(np.float32)
        advantage = reward - float(right[group].mean())
        values = {
            "group": group, "number": number, "completion": text.encode()[: 4 * length], "reward": reward,
            "advantage": advantage, "correct": is_right, "kept": 0 < right[group].mean() < 1 or split != "train",
            "drop_reason": None if 0 < right[group].mean() < 1 else "dead group",
            "stop_reason": "length" if row == count - 1 else "stop", "parsed_answer": str(answer).encode(),
            "answer_cluster": 0 if is_right else number + 1, "policy_version": step, "staleness_steps": 0,
            "seed": int(rng.integers(2**31)), "cost_seconds": 0.01 * length,
            "feedback": b"right" if is_right else f"expected {first + second}".encode(),
            "step_boundaries": [0, length // 2],
            "token_ids": rng.integers(3, 120, length).astype(np.int32), "sampler_logprobs": sampler,
            "policy_logprobs": policy, "ref_logprobs": (sampler - 0.01).astype(np.float32),
            "entropy": rng.gamma(1.0, 0.5, length).astype(np.float32),
            "token_advantages": np.full(length, advantage, np.float32), "token_weights": np.ones(length, np.float32),
            "loss_mask": np.ones(length, np.uint8), "clip_flag": rng.choice(4, length, p=[0.9, 0.05, 0.03, 0.02]).astype(np.uint8),
            "origin": np.full(length, 2, np.uint8), "token_policy_version": np.full(length, step, np.int32),
        }  # fmt: skip
        for name, value in values.items():
            rows[name][row] = value
        for value, kind, name in ((reward, "outcome", "exact answer"), (0.1, "format", "has an equals sign")):
            span = {"rollout": row, "token_start": length - 1, "token_end": length, "value": value, "kind": kind,
                    "name": name, "version": "1"}  # fmt: skip
            for column, item in span.items():
                spans[column].append(item)
    rows.update(overrides)
    group_rows = [
        {
            "index": group,
            "prompt": f"{a}+{b}=".encode(),
            "prompt_ids": [int(a) % 50, 7, int(b) % 50, 8],
            "generator": "addition",
            "parameters": '{"digits": 2}',
            "difficulty": 2.0,
            "task_seed": int(a) * 1000 + int(b),
            "answer": str(a + b).encode(),
            "oracle_trace": b'[{"text": "add the ones", "start": 0, "end": 12}]',
            "size_asked": group_size,
            "size_got": group_size,
            "kept": bool(0 < right[group].mean() < 1),
            "sampling": f'{{"temperature": 1.0, "max_new_tokens": {tokens}}}',
            "base_pass_rate": 0.25 if group == 0 else None,
            "base_samples": 4 if group == 0 else None,
        }
        for group, (a, b) in enumerate(operands.tolist())
    ]
    is_train = split == "train"
    metrics = {
        "loss": 0.1 / (step + 1), "grad_norm": 1.0 + 0.1 * (step % 3), "learning_rate": 1e-4, "reward_mean": float(right.mean()),
        "pass_rate": float(right.mean()), "entropy": 0.5 / (step + 1), "kl_k1": 0.001 * step, "kl_k3": 0.001 * step,
        "clip_fraction": 0.02, "length_mean": float(lengths.mean()), "dead_share": 2 / groups, "seconds_step": 0.5,
    } if is_train else {"eval_pass_at_1": float(right.mean()), f"eval_pass_at_{group_size}": float(right.any(axis=1).mean())}  # fmt: skip
    header = BatchHeader(
        batch_id=str(uuid.uuid5(run.uid, f"{attempt} {split} {step} {seed}")),
        run_uid=str(run.uid),
        attempt=attempt,
        step=step,
        split=split,
        phase_seconds={"sample": 0.3, "score": 0.01, "learn": 0.15, "record": 0.01},
        written_at="2026-01-02T03:04:05+00:00",
    )
    return RolloutBatch(
        header,
        pa.table({field.name: pa.array(rows.pop(field.name), field.type) for field in ROLLOUTS} | {
            name: pa.array(values, pa.list_(pa.float32())) for name, values in rows.items() if name.startswith(EXTRA_PREFIX)
        }),
        complete(pa.Table.from_pylist(group_rows, pa.schema([f for f in GROUPS if f.name in group_rows[0]])), GROUPS),
        pa.table({"name": list(metrics), "value": pa.array(metrics.values(), pa.float64())}),
        pa.table({field.name: pa.array(spans[field.name], field.type) for field in REWARD_SPANS}),
    )  # fmt: skip


def fill_run(run: Run, steps: int = 5, **shape: Any) -> None:
    """Store an evaluation of the base, `steps` training steps and an evaluation at the end; `shape` as in make_batch."""
    store_batch(make_batch(run, split="heldout", step=0, **shape), source="test")
    for step in range(steps):
        store_batch(make_batch(run, step=step, **shape), source="test")
    store_batch(make_batch(run, split="heldout", step=steps, **shape), source="test")
    run.refresh_from_db()
