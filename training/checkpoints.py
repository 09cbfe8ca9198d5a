"""Checkpoints: everything that a step depends on, written to a folder under another name, fsynced, then renamed.

A checkpoint folder is a Hugging Face model folder, or one of PEFT's adapters, with three more files: `optimizer.pt` (tensors
only), `state.json`, and `manifest.json`, which holds the SHA-256 of each file and is what makes the folder whole. It is the
same whether one process wrote it or several, and either can go on from it.
"""

import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training.checkpoint_files import MANIFEST, PART_SUFFIX, Checkpoint, clean_up, described, digest, discard, path_of
from training.distributed import is_leader, whole_tree
from training.optimizers import Optimizer, WeightAverage
from training.policy import Policy, load_weights, save_model, stored_weights
from training.spool import fsync_folder, write_bytes_durably

# A failed write with less than this left has filled the disk.
FULL_DISK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Restored:
    """What a checkpoint holds beside weights, optimiser and torch's random state."""

    state: dict[str, Any]
    side_state: dict[str, Any]


def save(
    folder: Path,
    policy: Policy,
    optimizer: Optimizer,
    state: Mapping[str, Any],
    *,
    side_state: Mapping[str, Any],
    average: WeightAverage | None = None,
    step: int,
    keep: int,
) -> Checkpoint | None:
    """Write the checkpoint of `step` and clean up all but the newest `keep`. A crash leaves all of it or nothing.

    Args:
        state: JSON-ready; NaN and infinities are refused.
        side_state: what a side model keeps: tensors, numbers, texts and containers of them.
    Returns:
        The checkpoint, in the process that leads; the others only give what they hold.
    """
    weights = stored_weights(policy)
    tensors = whole_tree(
        {
            "optimizer": optimizer.state_dict(),
            "rng": _torch_rng(policy.device),
            "side": dict(side_state),
            "average": average.state_dict() if average else [],
        }
    )
    if not is_leader():
        return None
    path = path_of(folder, step)
    part = path.with_name(path.name + PART_SUFFIX)
    discard(part)
    try:
        part.mkdir(parents=True)
        save_model(policy, part, weights)
        torch.save(tensors, part / "optimizer.pt")
        (part / "state.json").write_text(json.dumps({**state, "step": step}, allow_nan=False), encoding="utf-8")
        manifest = json.dumps({file.name: digest(file) for file in sorted(part.iterdir())}, indent=1)
        for file in part.iterdir():
            _fsync_file(file)
        write_bytes_durably(part / MANIFEST, manifest.encode())
        discard(path)
        os.replace(part, path)
    except Exception as error:
        # What was written must not keep the space. The libraries that write for us hide the system's error number.
        is_full = os.strerror(errno.ENOSPC) in str(error) or shutil.disk_usage(folder).free < FULL_DISK_BYTES
        discard(part)
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(part)) from error
        raise
    fsync_folder(folder)
    clean_up(folder, newest=keep)
    return described(path)


def load(
    checkpoint: Checkpoint, policy: Policy, optimizer: Optimizer, average: WeightAverage | None = None
) -> Restored:
    """Put weights, optimiser and torch's random state back; returns the rest of the state.

    Raises:
        ValueError: it holds another model, or the run had another optimiser.
    """
    try:
        load_weights(policy, checkpoint.path)
        saved = torch.load(checkpoint.path / "optimizer.pt", map_location=policy.device, weights_only=True)
        optimizer.load_state_dict(saved["optimizer"])
        if average is not None:
            average.load_state_dict(saved["average"])
    except ValueError as error:
        raise ValueError(f"{checkpoint.path}: {error}") from error
    torch.set_rng_state(saved["rng"]["cpu"].cpu())
    if "cuda" in saved["rng"] and policy.device.type == "cuda":
        torch.cuda.set_rng_state(saved["rng"]["cuda"].cpu(), policy.device)
    state = json.loads((checkpoint.path / "state.json").read_text(encoding="utf-8"))
    return Restored(state, saved["side"])


def _fsync_file(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _torch_rng(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state
