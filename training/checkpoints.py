"""Checkpoints: everything that a step depends on, written to a folder under another name, fsynced, then renamed.

A checkpoint folder is a Hugging Face model folder, or one of PEFT's adapters, with three more files: `optimizer.pt` (tensors
only), `state.json`, and `manifest.json`, which holds the SHA-256 of each file and is what makes the folder whole. It is the
same whether one process wrote it or several, and either can go on from it.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training.distributed import is_leader, whole_tree
from training.optimizers import Optimizer, WeightAverage
from training.policy import Policy, load_weights, save_model, stored_weights
from training.spool import fsync_folder, write_bytes_durably

NAME = re.compile(r"step-(\d{8})")
PART_SUFFIX = ".part"
MANIFEST = "manifest.json"
# A failed write with less than this left has filled the disk.
FULL_DISK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Restored:
    """What a checkpoint holds beside weights, optimiser and torch's random state."""

    state: dict[str, Any]
    side_state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    path: Path
    step: int  # steps trained
    size_bytes: int
    sha256: str  # of the manifest, so of everything

    def summary(self) -> dict[str, Any]:
        return {"step": self.step, "size_bytes": self.size_bytes, "sha256": self.sha256}


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
    """Write the checkpoint of `step` and drop all but the newest `keep`. A crash leaves all of it or nothing.

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
    path = folder / f"step-{step:08d}"
    part = path.with_name(path.name + PART_SUFFIX)
    discard(part)
    try:
        part.mkdir(parents=True)
        save_model(policy, part, weights)
        torch.save(tensors, part / "optimizer.pt")
        (part / "state.json").write_text(json.dumps({**state, "step": step}, allow_nan=False), encoding="utf-8")
        manifest = json.dumps({file.name: _digest(file) for file in sorted(part.iterdir())}, indent=1)
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
    for old in listed(folder)[:-keep]:
        discard(old.path)
    return _described(path)


def listed(folder: Path) -> list[Checkpoint]:
    """Checkpoints that have a manifest, oldest first. Their files are checked when one is loaded."""
    if not folder.is_dir():
        return []
    names = sorted(entry.name for entry in folder.iterdir() if NAME.fullmatch(entry.name))
    return [_described(folder / name) for name in names if (folder / name / MANIFEST).is_file()]


def newest_intact(folder: Path) -> Checkpoint | None:
    """The newest checkpoint whose files all have the digests of its manifest; None if there is none."""
    return next((one for one in reversed(listed(folder)) if is_intact(one.path)), None)


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


def discard(path: Path) -> None:
    """Remove a checkpoint; its manifest goes first, so that half of one is never taken for a whole."""
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def discard_unfinished(folder: Path) -> None:
    """Remove what a killed trainer left behind."""
    for part in folder.glob(f"step-*{PART_SUFFIX}"):
        discard(part)


def _described(path: Path) -> Checkpoint:
    match = NAME.fullmatch(path.name)
    assert match is not None
    return Checkpoint(
        path=path,
        step=int(match[1]),
        size_bytes=sum(file.stat().st_size for file in path.iterdir()),
        sha256=_digest(path / MANIFEST),
    )


def is_intact(path: Path) -> bool:
    """Whether all files have the digests of the manifest."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest) and all(_digest(path / name) == digest for name, digest in manifest.items())
    except (OSError, ValueError, AttributeError):
        return False


def _digest(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


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
