"""A trainer without a model: speaks the real one's protocol in milliseconds, and dies in every way on command.

The run's name is its script, `key=value` words: `step_seconds=0.1 at=3 times=1 by=SIGKILL`. `by` is a signal's name, `exit:N`,
`exception`, `freeze` (stops itself), `deadlock` (sleeps without a word), or `long_step` (30 s that hear nothing); it happens
at step `at` of the first `times` attempts.
"""

import argparse
import json
import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa

from training import spool
from training.attempt import die_with_parent, take_folder
from training.config import RunConfig
from training.records import GROUPS, METRICS, REWARD_SPANS, ROLLOUTS, BatchHeader, RolloutBatch, complete

GROUP_SIZE = 2


class Attempt:
    """The status and control files, with nothing between the protocol and the test."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder = folder
        self.status: dict[str, Any] = {"state": "starting", "step": 0, "steps": steps, "pid": os.getpid()}
        self.is_signalled = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.on_signal)

    def on_signal(self, *_: Any) -> None:
        self.is_signalled = True

    def report(self, **changes: Any) -> None:
        self.status |= changes
        part = self.folder / "status.json.part"
        part.write_text(json.dumps(self.status))
        part.replace(self.folder / "status.json")

    @property
    def wanted(self) -> str:
        control = self.folder / "control"
        return "stop" if self.is_signalled else control.read_text() if control.exists() else "run"

    def is_stop_wanted(self) -> bool:
        if self.wanted == "pause":
            self.report(state="paused")
            while self.wanted == "pause":
                time.sleep(0.2)
        return self.wanted == "stop"


def batch(uid: str, attempt: int, step: int) -> RolloutBatch:
    """One group of two rollouts; the same step of the same attempt gives the same content and another id."""
    rollouts = [
        {
            "group": 0, "number": number, "completion": f"{step}:{number}".encode(), "reward": float(number),
            "advantage": number - 0.5, "correct": bool(number), "kept": True, "stop_reason": "stop",
            "token_ids": [step, number, 1], "sampler_logprobs": [-0.5, -0.25, -0.125], "policy_version": step,
        }
        for number in range(GROUP_SIZE)
    ]  # fmt: skip
    group = {
        "index": 0, "prompt": f"prompt {step}".encode(), "prompt_ids": [1, step], "generator": "script", "parameters": "{}",
        "answer": b"1", "size_asked": GROUP_SIZE, "size_got": GROUP_SIZE, "kept": True,
    }  # fmt: skip
    return RolloutBatch(
        BatchHeader(str(uuid.uuid4()), uid, attempt, step),
        complete(pa.Table.from_pylist(rollouts, schema=narrow(ROLLOUTS, rollouts[0])), ROLLOUTS),
        complete(pa.Table.from_pylist([group], schema=narrow(GROUPS, group)), GROUPS),
        pa.table({"name": ["loss"], "value": [1 / (step + 1)]}, schema=METRICS),
        REWARD_SPANS.empty_table(),
    )


def narrow(schema: pa.Schema, row: dict[str, Any]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name in row])


def checkpoints(folder: Path) -> list[dict[str, Any]]:
    steps = sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-????????"))
    return [{"step": step, "size_bytes": 2, "sha256": "00"} for step in steps]


def misbehave(by: str, attempt: Attempt) -> None:
    if by == "exception":
        error = {"type": "ValueError", "message": "loss is NaN", "where": "scripted_trainer.py:1"}
        attempt.report(state="failed", error=error)
        raise SystemExit(1)
    if by.startswith("exit:"):
        os._exit(int(by.removeprefix("exit:")))
    if by == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif by == "deadlock":
        signal.pause()
    elif by == "long_step":
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            time.sleep(0.1)
    else:
        if by in {"SIGTERM", "SIGINT"}:
            signal.signal(signal.Signals[by], signal.SIG_DFL)
        os.kill(os.getpid(), signal.Signals[by])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--run-uid")
    parser.add_argument("--attempt", type=int)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--parent-fd", type=int)
    args = parser.parse_args()
    die_with_parent(args.parent_fd)
    held = take_folder(args.run_dir)
    config = RunConfig.from_file(args.run_dir / "config.toml")
    script = dict(word.split("=", 1) for word in config.name.split() if "=" in word)
    attempt = Attempt(args.run_dir / "attempts" / str(args.attempt), config.steps)
    saved = checkpoints(args.run_dir / "checkpoints") if args.resume else []
    first = saved[-1]["step"] if saved else 0
    attempt.report(resumed_from_step=first or None, environment=sorted(os.environ), state="starting")
    with open(args.run_dir / "starts.jsonl", "a") as file:
        file.write(json.dumps({"attempt": args.attempt, "pid": os.getpid(), "at": time.time()}) + "\n")
    attempt.report(state="running", step=first)
    state, code = "finished", 0
    for step in range(first, config.steps):
        if attempt.is_stop_wanted():
            state, code = "stopped", 3
            break
        if step == int(script.get("at", -1)) and args.attempt <= int(script.get("times", 1)):
            misbehave(script["by"], attempt)
        time.sleep(float(script.get("step_seconds", 0.05)))
        spool.put(args.run_dir / "spool", batch(args.run_uid, args.attempt, step))
        if (step + 1) % config.checkpoint.every_steps == 0:
            (args.run_dir / "checkpoints" / f"step-{step + 1:08d}").mkdir(exist_ok=True)
        saved = checkpoints(args.run_dir / "checkpoints")
        last = saved[-1]["step"] if saved else None
        attempt.report(
            state="running", phase="training", step=step + 1, rollouts=GROUP_SIZE * (step + 1),
            checkpoints=saved, last_checkpoint=last,
        )  # fmt: skip
    attempt.report(state=state)
    held.close()
    raise SystemExit(code)


if __name__ == "__main__":
    main()
