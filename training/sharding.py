"""The policy over several processes: weights, gradients and moments in shards (FSDP2), sampling in shares."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.utils._pytree import register_dataclass

from training.adapters import is_of_adapter
from training.config import RunConfig
from training.distributed import from_leader, gathered, is_leader, own_part, processes
from training.engines import make_engine
from training.engines.base import Engine, PromptRequest, Samples, Truncation, check_room
from training.engines.torch_sampler import TorchSampler, joined, uniform_draws
from training.policy import Policy, TokenScores, layers_of
from training.rectangles import Tokens

# FSDP looks for the tensors in what a forward pass gives.
register_dataclass(TokenScores)


class ShardedPolicy(Policy):
    """A policy of which each process keeps a part of every weight. Adapters are small and stay whole everywhere."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.model, policy.tokenizer, policy.device, chat=policy.chat, recomputes=policy.recomputes)
        model: Any = policy.model
        mesh = init_device_mesh(policy.device.type, (processes(),))
        adapters = {parameter for name, parameter in model.named_parameters() if is_of_adapter(name)}
        for layer in (*layers_of(model), model):
            fully_shard(layer, mesh=mesh, ignored_params=adapters)
        # A score is more than one pass through the model, and reads the output layer's weights itself.
        model.whole_pass = MethodType(_run, model)
        register_fsdp_forward_method(model, "whole_pass")

    def score(self, tokens: Tokens, **options: Any) -> TokenScores:
        model: Any = self.model
        scores: TokenScores = model.whole_pass(super().score, tokens, **options)
        return scores

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Every process has all weights during the block, and may use them without the others."""
        parts = [module for module in self.model.modules() if isinstance(module, FSDPModule)]
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                part.reshard()
                part.set_reshard_after_forward(part is not parts[0], recurse=False)


def _run(module: Any, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return function(*arguments, **options)


class SharedSampler:
    """The torch sampler with the prompts parted among the processes; every row is as one process would draw it."""

    def __init__(self, policy: ShardedPolicy, truncation: Truncation) -> None:
        self._policy = policy
        self._sampler = TorchSampler(policy, truncation)

    def sample(
        self, requests: Sequence[PromptRequest], *, temperature: float, max_new_tokens: int, seed: int
    ) -> Samples:
        check_room(requests, max_new_tokens, self._policy.context_tokens)
        part = own_part(len(requests))
        draws = uniform_draws(requests, max_new_tokens, seed, self._policy.device)
        first, rows = (sum(one.count for one in some) for some in (requests[: part.start], requests[part]))
        own = None
        with self._policy.whole():
            if rows:
                own = self._sampler.sample_rows(requests[part], draws[first : first + rows], temperature=temperature)
        parts = gathered(own and _moved(own, torch.device("cpu")))
        return _moved(joined([one for one in parts if one is not None]), self._policy.device)

    def weights_changed(self) -> None:
        """Nothing to do: the weights are the policy's own."""

    def close(self) -> None:
        """Nothing to let go of."""


class LeadersEngine:
    """An engine of the process that leads, which samples for all."""

    def __init__(self, policy: ShardedPolicy, make: Callable[[], Engine]) -> None:
        self._policy = policy
        with policy.whole():
            self._engine = make() if is_leader() else None

    def sample(
        self, requests: Sequence[PromptRequest], *, temperature: float, max_new_tokens: int, seed: int
    ) -> Samples:
        def sampled() -> Samples:
            assert self._engine is not None
            found = self._engine.sample(requests, temperature=temperature, max_new_tokens=max_new_tokens, seed=seed)
            return _moved(found, torch.device("cpu"))

        with self._policy.whole():
            return _moved(from_leader(sampled), self._policy.device)

    def weights_changed(self) -> None:
        if self._engine is not None:
            self._engine.weights_changed()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def sharded(policy: Policy) -> Policy:
    """The policy as several processes hold it; alone, as it is."""
    return policy if processes() == 1 else ShardedPolicy(policy)


def shared_engine(policy: Policy, config: RunConfig, folder: Path) -> Engine:
    """What samples for all processes.

    Raises:
        ConfigError: it cannot sample from this policy here.
    """
    if not isinstance(policy, ShardedPolicy):
        return make_engine(policy, config, folder)
    if config.sampling.engine == "torch":
        sampling = config.sampling
        return SharedSampler(policy, Truncation(sampling.top_k, sampling.top_p, sampling.min_p))
    return LeadersEngine(policy, lambda: make_engine(policy, config, folder))


def _moved(samples: Samples, device: torch.device) -> Samples:
    names = ("token_ids", "sampler_logprobs", "entropy", "lengths", "is_finished")
    return replace(samples, **{name: getattr(samples, name).to(device) for name in names})
