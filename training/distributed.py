"""Several processes that train one model: who does which part, and how the parts come together.

Alone, every function here gives what one process needs and talks to nobody. The rules for several: all of them hold the
same rollouts, advantages and denominators of a step, each works on its share of the micro-batches, and every process makes
the same calls in the same order.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from training.attempt import Attempt
from training.batching import micro_batches

Made = TypeVar("Made")
# A process may wait that long for the others: one that samples, judges or writes.
PATIENCE = timedelta(hours=6)
WORD_SECONDS = 2.0


def processes() -> int:
    """So many as this one was started among, by torchrun or by `training.processes`."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Number among the processes of this host, which is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def own_threads() -> int:
    """CPU threads for one of the processes of a host."""
    return max(len(os.sched_getaffinity(0)) // processes(), 1)


def is_leader() -> bool:
    """The leader judges, records and writes checkpoints."""
    return rank() == 0


@contextlib.contextmanager
def together() -> Iterator[None]:
    """The processes of a run meet, and part at the end of the block."""
    if processes() == 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank())
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=PATIENCE)
    yield
    # Not after an error: the others may wait for what this process will not do, and must see it go.
    dist.destroy_process_group()


class SharedAttempt(Attempt):
    """An attempt as all processes see it: the leader reports, and what is asked of it is asked of all at once."""

    def report(self, **changes: Any) -> None:
        if is_leader():
            super().report(**changes)
        else:
            self.status |= changes

    @property
    def wanted(self) -> str:
        return from_leader(lambda: super(SharedAttempt, self).wanted)

    def stop_on_signals(self) -> None:
        if is_leader():
            super().stop_on_signals()
        else:
            # A signal to all of them is the leader's to answer.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)


def leave_word(folder: Path, reason: str) -> None:
    """Why this process fails, for the leader, who will only see that it is gone."""
    (folder / f"process-{rank()}-failed.txt").write_text(reason, encoding="utf-8")


def word_of_others(folder: Path) -> str | None:
    """What another process of the run failed with, if one did; while there are others they have a moment to say so."""
    deadline = time.monotonic() + WORD_SECONDS
    while True:
        for word in sorted(folder.glob("process-*-failed.txt")):
            return word.read_text(encoding="utf-8")
        if processes() == 1 or time.monotonic() > deadline:
            return None
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Share:
    """A micro-batch of this process."""

    rows: Tensor
    counts: bool  # False: another process' rows, gone through only because collectives need everybody


def own_micro_batches(lengths: Tensor, size: int) -> list[Share]:
    """This process' micro-batches, as many in each process and of similar lengths; alone: all of them."""
    together = processes()
    if together == 1:
        return [Share(rows, True) for rows in micro_batches(lengths, size)]
    batches = micro_batches(lengths, min(size, max(-(-len(lengths) // together), 1)))
    own = [Share(rows, True) for rows in batches[rank() :: together]]
    if len(own) < -(-len(batches) // together):
        own.append(Share(batches[0][:1], False))
    return own


def own_part(count: int) -> slice:
    """This process' share of `count` things, next to each other."""
    return slice(count * rank() // processes(), count * (rank() + 1) // processes())


def add_up(*tensors: Tensor) -> None:
    """Replace each tensor by its sum over all processes."""
    if processes() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def filled_in(rectangle: Tensor, own: Tensor) -> Tensor:
    """`rectangle` with what other processes worked out. `own` is True where this one did; no place is of two processes."""
    if processes() == 1:
        return rectangle
    values, done = torch.where(own, rectangle, 0), own.to(torch.uint8)
    add_up(values, done)
    return torch.where(done.bool(), values, rectangle)


def add_up_numbers(numbers: Sequence[float]) -> list[float]:
    if processes() == 1:
        return list(numbers)
    summed = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(summed)
    return summed.tolist()


def add_up_gradients(parameters: Iterable[Tensor]) -> None:
    """Gradients of weights that every process holds whole, as the mean over processes; those of shards are one already."""
    for parameter in parameters if processes() > 1 else ():
        if parameter.requires_grad and not isinstance(parameter, DTensor):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= processes()


def gathered(thing: Any) -> list[Any]:
    """The thing of every process, in the order of their ranks. Pickled: for what we made ourselves."""
    if processes() == 1:
        return [thing]
    things: list[Any] = [None] * processes()
    dist.all_gather_object(things, thing)
    return things


def first_problem(problem: str | None) -> str | None:
    """The problem of the first process that has one."""
    return next((one for one in gathered(problem) if one is not None), None)


def from_leader(make: Callable[[], Made]) -> Made:
    """What the leader makes, in every process."""
    if processes() == 1:
        return make()
    box = [make() if is_leader() else None]
    dist.broadcast_object_list(box)
    return box[0]  # type: ignore[return-value]


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may lie in shards, as one."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_tree(tree: Any) -> Any:
    """Every tensor in dicts and lists, whole; in processes that do not lead it is let go of at once."""
    if isinstance(tree, dict):
        return {key: whole_tree(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [whole_tree(value) for value in tree]
    if isinstance(tree, DTensor):
        found = tree.full_tensor()
        return found.cpu() if is_leader() else None
    return tree


def laid_out_like(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor` in shards as `like` is."""
    if isinstance(like, DTensor) and not isinstance(tensor, DTensor):
        return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
    return tensor
