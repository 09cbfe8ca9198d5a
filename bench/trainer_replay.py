"""Takes TRL's steps with its own completions and says how far ours end from its: `python -m bench.trainer_replay SPEC.json`."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.peers.trl_steps import Spec, say
from bench.trainer_steps import prepared
from training.engines.base import PromptRequest, Samples
from training.engines.torch_sampler import left_padded
from training.policy import Policy, Tokens
from training.progress import Progress
from training.run import train_step


class Repeating:
    """In place of a sampler: what another sampled, step after step."""

    def __init__(self, policy: Policy, steps: Iterator[Sequence[Sequence[int]]]) -> None:
        self.policy, self.steps = policy, steps

    @torch.no_grad()
    def sample(
        self, requests: Sequence[PromptRequest], *, temperature: float, max_new_tokens: int, seed: int
    ) -> Samples:
        rows = next(self.steps)
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
        prompts = left_padded([one.prompt_ids for one in requests], self.policy.pad_id, ids.device)
        owner = torch.arange(len(requests)).repeat_interleave(torch.tensor([one.count for one in requests]))
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        scores = self.policy.score(Tokens(*prompts, owner, ids, mask), temperature=temperature, with_entropy=True)
        assert scores.entropy is not None
        is_finished = torch.tensor([row[-1] in self.policy.eos_ids for row in rows])
        return Samples(ids, scores.logprobs, scores.entropy, lengths, is_finished)

    def weights_changed(self) -> None:
        """Nothing to do: the weights are the policy's own."""

    def close(self) -> None:
        """Nothing to let go of."""


class Rewards(Progress):
    """The mean reward of every step."""

    def __init__(self) -> None:
        super().__init__(10**6, draws_bar=False)
        self.means: list[float] = []

    def step(self, done: int, metrics: Mapping[str, float]) -> None:
        self.means.append(metrics["reward_mean"])


def furthest(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    return max((ours[name] - one).abs().max().item() for name, one in theirs.items())


def replay(spec: Spec) -> dict[str, Any]:
    steps, run, rewards = torch.load(spec.witness), prepared(spec), Rewards()
    run.engine = Repeating(run.policy, iter([one["completions"] for one in steps]))
    gradients, largest, weights = [], [], []
    for number, theirs in enumerate(steps):
        train_step(run, number, rewards)
        parameters = dict(run.policy.model.named_parameters())
        own = {name: one.grad for name, one in parameters.items() if one.grad is not None}
        gradients.append(furthest(own, theirs["gradients"]))
        largest.append(max(one.abs().max().item() for one in theirs["gradients"].values()))
        weights.append(furthest({name: one.detach() for name, one in parameters.items()}, theirs["weights"]))
    assert run.recorder is not None
    run.recorder.close()
    return {
        "steps": len(steps),
        "rewards_differ": sum(a != b["reward"] for a, b in zip(rewards.means, steps, strict=True)),
        "gradient": max(gradients),
        "largest_gradient": min(largest),
        "weights": max(weights),
    }


if __name__ == "__main__":
    say(replay(Spec(**json.loads(Path(sys.argv[1]).read_text()))))
