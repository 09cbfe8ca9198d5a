"""What can sample, by the name a run's config uses."""

from collections.abc import Callable

from training.engines.base import Engine
from training.engines.torch_sampler import TorchSampler
from training.policy import Policy

ENGINES: dict[str, Callable[[Policy], Engine]] = {
    "torch": TorchSampler,
}
