import resource

import torch

from training.machine import keep_freed_memory


def faults_of_tensors() -> int:
    """Pages that the system hands out for ten times sixteen tensors of 1 MiB, all of which are gone before the next."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        tensors = [torch.ones(1 << 18) for _ in range(16)]
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_memory_of_tensors_that_are_gone_serves_the_next() -> None:
    keep_freed_memory()
    faults_of_tensors()
    # 256 pages each, were every one of the 160 new.
    assert faults_of_tensors() < 16 * 256
