"""What can sample, by the name a run's config uses."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from training.config import RunConfig, SamplingConfig
from training.engines.base import Engine, Truncation
from training.engines.torch_sampler import TorchSampler
from training.engines.vllm_engine import VllmEngine
from training.engines.vllm_server import VllmServer
from training.policy import Policy


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What an engine may need besides the policy."""

    config: SamplingConfig
    seed: int
    folder: Path  # of the attempt

    @property
    def truncation(self) -> Truncation:
        return Truncation(self.config.top_k, self.config.top_p, self.config.min_p)


# vLLM is imported when one of its engines is made.
ENGINES: dict[str, Callable[[Policy, EngineContext], Engine]] = {
    "torch": lambda policy, context: TorchSampler(policy, context.truncation),
    "vllm": lambda policy, context: VllmEngine(policy, context.config, context.truncation, seed=context.seed),
    "vllm_server": lambda policy, context: VllmServer(
        policy, context.config, context.truncation, folder=context.folder
    ),
}


def make_engine(policy: Policy, config: RunConfig, folder: Path) -> Engine:
    """The engine that `config` names, ready to sample.

    Raises:
        ConfigError: it cannot sample from this policy here.
    """
    return ENGINES[config.sampling.engine](policy, EngineContext(config.sampling, config.seed, folder))
