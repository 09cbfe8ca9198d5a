"""Work over stored steps in a process of its own: requests on standard input, answers on standard output.

    python -m training.replay

It keeps the step it was last given, so that a further question about it is answered at once. It ends when its input ends, so
it never outlives whoever asks. The frames are described in `training.replay_frames`.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import torch

from training import vocabulary
from training.config import RunConfig
from training.counterfactual import Ask, outcome
from training.counterfactual_measures import columns_of, measures, reward_changes
from training.records import RolloutBatch
from training.replay_frames import pack_frame, read_frame
from training.rescoring import definitions, rescored
from training.stored import StoredStep, stored_step

NICENESS = 10
COMPRESSION = pa.ipc.IpcWriteOptions(compression="zstd")


class Replay:
    """Answers requests; the step of the one before stays in memory."""

    def __init__(self) -> None:
        self._key = ""
        self._step: StoredStep | None = None
        self._pieces: list[bytes] = []

    def answer(self, header: dict[str, Any], body: bytes) -> bytes:
        if body:
            batch, pieces = body[: header["batch_bytes"]], body[header["batch_bytes"] :]
            self._key, self._step = header["key"], stored_step(RolloutBatch.from_bytes(batch, where="the stored step"))
            self._pieces = vocabulary.unpack(pieces) if pieces else []
        if self._step is None or header["key"] != self._key:
            raise ValueError(f"the step {header['key']} was not sent")
        config = config_from(header["config"], self._step)
        ask = Ask(header["recipe"] or config.algorithm, header["constants"], tuple(header["rewards"]))
        judged = rescored(self._step, config, ask, self._pieces) if ask.rewards else None
        found = outcome(
            self._step,
            config,
            ask,
            earlier_rewards=header["earlier_rewards"],
            scores=None if judged is None else judged.scores,
        )
        labels = {name: [label.kind, label.why] for name, label in found.labels.items()}
        told: dict[str, Any] = {"labels": labels, "measures": measures(self._step, found)}
        columns = columns_of(self._step, found)
        if judged is not None:
            told |= {"errors": judged.errors, "definitions": definitions(ask.rewards)}
            told["measures"] |= reward_changes(self._step, judged.scores)
            columns["reward"] = judged.scores.rewards.numpy()
        return pack_frame(_finite(told), packed(columns))


def config_from(source: str, step: StoredStep) -> RunConfig:
    """What the run says, else what holds of any run of such groups."""
    if source:
        return RunConfig.from_toml(source)
    sizes = step.rollouts.group_sizes
    sampling = {
        "group_size": max(sizes),
        "prompts_per_step": len(sizes),
        "max_new_tokens": max(int(step.rollouts.lengths.max()), 1),
    }
    return RunConfig.from_dict({"sampling": sampling})


def packed(columns: dict[str, np.ndarray]) -> bytes:
    """Columns of equal length as `rlviewer.signal.sums` reads them."""
    table = pa.table({name: pa.array(np.ascontiguousarray(column)) for name, column in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=COMPRESSION) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _finite(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite is none."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    replay = Replay()
    while (frame := read_frame(requests)) is not None:
        try:
            answer = replay.answer(*frame)
        except Exception as error:  # what one step does not stand must not end the others
            answer = pack_frame({"error": f"{type(error).__name__}: {error}"[:500]})
        answers.write(answer)
        answers.flush()


def main() -> None:
    # Whoever trains on this machine goes first, also where memory runs out.
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    # What a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
