"""The rollouts of a step: groups of completions sampled from the policy, and what the reward functions say of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from training.learner import logprobs_under
from training.plans import SampleRequest
from training.records import ORIGINS
from training.rectangles import Tokens, left_padded
from training.rewards import NO_PARAMS, Completion, RewardFunction, RewardSpan, Scored, score_group
from training.selection import ChosenPrompt, Response, SeenGroup
from training.tasks.base import TaskFamily
from training.transforms import TransformedPrompt

if TYPE_CHECKING:
    from training.engines.base import Engine, Samples
    from training.policy import Policy

PREFIX, GENERATED = ORIGINS.index("prefix"), ORIGINS.index("generated")


@dataclass(frozen=True, slots=True)
class Rollouts:
    """`P` prompts with their `B` rollouts; the rollouts of a prompt stand together, in the order of the prompts.

    Rectangles are `[B, T]`; a row is meaningful up to its length, which counts a prefix and the end of sequence.
    """

    chosen: list[ChosenPrompt]  # P
    prompts: list[TransformedPrompt]  # P
    prompt_ids: list[list[int]]  # P
    requests: list[SampleRequest]
    numbers: Tensor  # [B] int64, number in the group
    tokens: Tokens
    sampler_logprobs: Tensor  # nats; NaN at prefix tokens, which nobody sampled
    entropy: Tensor  # nats; NaN likewise
    origin: Tensor  # uint8, index into ORIGINS
    lengths: Tensor  # [B] int64
    is_finished: Tensor  # [B] bool
    completions: list[bytes]  # B
    seeds: list[int]  # B, of the sampler
    pieces: Sequence[bytes] = ()  # of the vocabulary

    @property
    def group_index(self) -> Tensor:
        """[B] int64, number of the prompt."""
        return self.tokens.owner

    @property
    def generated(self) -> Tensor:
        """[B, T] bool: tokens that the policy sampled."""
        return self.tokens.completion_mask & (self.origin == GENERATED)

    @property
    def is_greedy(self) -> Tensor:
        """[B] bool: sampled as a baseline, not to learn from."""
        flags = [request.is_greedy for request in self.requests for _ in range(request.count)]
        return torch.tensor(flags, device=self.lengths.device)

    @property
    def group_sizes(self) -> list[int]:
        return torch.bincount(self.group_index, minlength=len(self.prompts)).tolist()

    def by_group(self, values: Tensor, fill: float) -> Tensor:
        """`[B]` as `[P, G]`, a row per prompt; groups that are smaller than the largest are filled up."""
        wide = values.new_full((len(self.prompts), int(self.numbers.max()) + 1), fill)
        wide[self.group_index, self.numbers] = values
        return wide


@dataclass(frozen=True, slots=True)
class ScoredRollouts:
    """What the reward functions said, a row each."""

    scored: list[Scored]  # B
    rewards: Tensor  # [B] float64, NaN: not scored
    correct: Tensor  # [B] bool


def sample_rollouts(
    policy: "Policy",
    engine: "Engine",
    chosen: list[ChosenPrompt],
    prompts: list[TransformedPrompt],
    requests: list[SampleRequest],
    *,
    temperature: float,
    max_new_tokens: int,
    seed: int,
) -> Rollouts:
    """Sample every request of a plan."""
    # Brings the engines along with the models they sample from, which nobody needs for stored rollouts.
    from training.engines.base import PromptRequest

    prompt_ids = [policy.encode(prompt.text) for prompt in prompts]
    prefix_ids = [
        policy.encode("".join(segment.text for segment in prompt.prefix), is_start=False) if prompt.prefix else []
        for prompt in prompts
    ]
    # A prompt that is asked for twice still has its rollouts together.
    requests = sorted(requests, key=lambda request: request.prompt)
    samples = engine.sample(
        [PromptRequest(prompt_ids[ask.prompt] + prefix_ids[ask.prompt], ask.count, ask.is_greedy) for ask in requests],
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        seed=seed,
    )
    owner = torch.tensor([ask.prompt for ask in requests for _ in range(ask.count)], device=samples.lengths.device)
    origin = torch.full_like(samples.token_ids, GENERATED, dtype=torch.uint8)
    if any(prefix_ids):
        samples, origin = _with_prefixes(samples, [prefix_ids[prompt] for prompt in owner.tolist()])
    sizes = torch.bincount(owner, minlength=len(prompts))
    padded, padded_mask = left_padded(prompt_ids, policy.pad_id, owner.device)
    width = samples.token_ids.shape[1]
    mask = torch.arange(width, device=owner.device) < samples.lengths[:, None]
    rows = samples.token_ids.tolist()
    return Rollouts(
        chosen=chosen,
        prompts=prompts,
        prompt_ids=prompt_ids,
        requests=requests,
        numbers=torch.arange(len(owner), device=owner.device) - (sizes.cumsum(0) - sizes)[owner],
        tokens=Tokens(padded, padded_mask, owner, samples.token_ids, mask),
        sampler_logprobs=samples.sampler_logprobs,
        entropy=samples.entropy,
        origin=origin,
        lengths=samples.lengths,
        is_finished=samples.is_finished,
        completions=[policy.decode(row[:end]) for row, end in zip(rows, samples.lengths.tolist(), strict=True)],
        seeds=[seed] * len(rows),
        pieces=policy.pieces,
    )


def join_rollouts(parts: Sequence[Rollouts], pad_id: int) -> Rollouts:
    """The rollouts of several rounds of one step as one, prompt after prompt."""
    if len(parts) == 1:
        return parts[0]
    prompt_ids = [ids for part in parts for ids in part.prompt_ids]
    starts = [sum(len(part.prompts) for part in parts[:number]) for number in range(len(parts))]
    padded, padded_mask = left_padded(prompt_ids, pad_id, parts[0].lengths.device)
    tokens = Tokens(
        padded,
        padded_mask,
        torch.cat([part.group_index + start for part, start in zip(parts, starts, strict=True)]),
        _stacked([part.tokens.completion_ids for part in parts], pad_id),
        _stacked([part.tokens.completion_mask for part in parts], False),
    )
    return Rollouts(
        chosen=[one for part in parts for one in part.chosen],
        prompts=[one for part in parts for one in part.prompts],
        prompt_ids=prompt_ids,
        requests=[
            replace(request, prompt=request.prompt + start)
            for part, start in zip(parts, starts, strict=True)
            for request in part.requests
        ],
        numbers=torch.cat([part.numbers for part in parts]),
        tokens=tokens,
        sampler_logprobs=_stacked([part.sampler_logprobs for part in parts], np.nan),
        entropy=_stacked([part.entropy for part in parts], np.nan),
        origin=_stacked([part.origin for part in parts], GENERATED),
        lengths=torch.cat([part.lengths for part in parts]),
        is_finished=torch.cat([part.is_finished for part in parts]),
        completions=[one for part in parts for one in part.completions],
        seeds=[one for part in parts for one in part.seeds],
        pieces=parts[0].pieces,
    )


def _stacked(rectangles: Sequence[Tensor], fill: float) -> Tensor:
    width = max(one.shape[1] for one in rectangles)
    return torch.cat([torch.nn.functional.pad(one, (0, width - one.shape[1]), value=fill) for one in rectangles])


def join_scores(parts: Sequence[ScoredRollouts]) -> ScoredRollouts:
    return ScoredRollouts(
        scored=[one for part in parts for one in part.scored],
        rewards=torch.cat([part.rewards for part in parts]),
        correct=torch.cat([part.correct for part in parts]),
    )


def outcomes_by_group(rollouts: Rollouts, scores: ScoredRollouts) -> list[list[float]]:
    """Reward of every rollout before penalties and shaping, NaN where not scored."""
    outcomes, first = [], 0
    for size in rollouts.group_sizes:
        outcomes.append([one.outcome for one in scores.scored[first : first + size]])
        first += size
    return outcomes


def seen_groups(rollouts: Rollouts, scores: ScoredRollouts) -> list[SeenGroup]:
    """What a supply and a selection are told of each group."""
    correct, is_finished = scores.correct.tolist(), rollouts.is_finished.tolist()
    seen, first = [], 0
    for choice, prompt_ids, outcomes in zip(
        rollouts.chosen, rollouts.prompt_ids, outcomes_by_group(rollouts, scores), strict=True
    ):
        end, rows = int(rollouts.lengths[first]), slice(first, first + len(outcomes))
        response = Response(
            prompt_ids,
            rollouts.tokens.completion_ids[first, :end].tolist(),
            rollouts.sampler_logprobs[first, :end].tolist(),
        )
        answers = [one.parsed_answer for one in scores.scored[rows]]
        seen.append(SeenGroup(choice, outcomes, correct[rows], is_finished[rows], answers, response))
        first += len(outcomes)
    return seen


def tracked_values(rollouts: Rollouts) -> Tensor | None:
    """`[B, T]` the running value that each prompt was chosen by, in reward units; None: nobody keeps one."""
    values = [choice.tracker_value for choice in rollouts.chosen]
    if None in values:
        return None
    of_prompt = torch.tensor(values, dtype=torch.float32, device=rollouts.lengths.device)
    return of_prompt[rollouts.group_index, None].expand(rollouts.origin.shape)


def rescored(
    policy: "Policy", responses: Sequence[Response], *, temperature: float, micro_batch: int
) -> list[list[float]]:
    """Log-probability of every token of `responses` under the policy as it is, in nats."""
    if not responses:
        return []
    device = policy.device
    prompts, prompt_mask = left_padded([list(one.prompt_ids) for one in responses], policy.pad_id, device)
    lengths = torch.tensor([len(one.completion_ids) for one in responses], device=device)
    completions = torch.full((len(responses), int(lengths.max())), policy.pad_id, device=device)
    for row, one in enumerate(responses):
        completions[row, : len(one.completion_ids)] = torch.tensor(one.completion_ids, device=device)
    mask = torch.arange(completions.shape[1], device=device) < lengths[:, None]
    tokens = Tokens(prompts, prompt_mask, torch.arange(len(responses), device=device), completions, mask)
    logprobs = logprobs_under(policy, tokens, temperature=temperature, micro_batch=micro_batch)
    return [row[:end] for row, end in zip(logprobs.tolist(), lengths.tolist(), strict=True)]


def score_rollouts(
    rollouts: Rollouts,
    family: TaskFamily,
    functions: Sequence[RewardFunction],
    *,
    truncated: str,
    params: Mapping[str, Any] = NO_PARAMS,
) -> ScoredRollouts:
    """Every group under the reward functions of the run."""
    generated = rollouts.generated
    entropy = torch.where(generated, rollouts.entropy, 0).double().sum(dim=1) / generated.sum(dim=1)
    completions = [
        Completion(
            completion.decode("utf-8", "replace"),
            length,
            "stop" if is_finished else "length",
            mean_entropy,
            raw=completion,
            token_ids=row[:length],
            pieces=rollouts.pieces,
        )
        for completion, row, length, is_finished, mean_entropy in zip(
            rollouts.completions,
            rollouts.tokens.completion_ids.tolist(),
            rollouts.lengths.tolist(),
            rollouts.is_finished.tolist(),
            entropy.tolist(),
            strict=True,
        )
    ]
    scored: list[Scored] = []
    for choice, size in zip(rollouts.chosen, rollouts.group_sizes, strict=True):
        group = completions[len(scored) : len(scored) + size]
        scored += score_group(family, choice.task, group, functions, truncated=truncated, params=params)
    return _scored(scored, rollouts.lengths.device)


def shuffle_rewards(rollouts: Rollouts, scores: ScoredRollouts, *, seed: int) -> ScoredRollouts:
    """The control: every rollout gets the reward of a random one of the batch, so that rewards teach nothing.

    What was answered and whether it was right stay true; the stored spans say that the reward was shuffled.
    """
    order = torch.randperm(len(scores.scored), generator=torch.Generator().manual_seed(seed)).tolist()
    shuffled = []
    for row, length in enumerate(rollouts.lengths.tolist()):
        mine, other = scores.scored[row], scores.scored[order[row]]
        span = RewardSpan(length - 1, length, other.reward, "outcome", "shuffled")
        shuffled.append(
            Scored(
                spans=(span,) if other.spans else (),
                correct=mine.correct,
                parsed_answer=mine.parsed_answer,
                answer_cluster=mine.answer_cluster,
                feedback=mine.feedback,
            )
        )
    return _scored(shuffled, rollouts.lengths.device)


def _scored(scored: list[Scored], device: torch.device) -> ScoredRollouts:
    return ScoredRollouts(
        scored=scored,
        rewards=torch.tensor([one.reward for one in scored], dtype=torch.float64, device=device),
        correct=torch.tensor([one.correct for one in scored], device=device),
    )


def _with_prefixes(samples: "Samples", prefixes: Sequence[Sequence[int]]) -> tuple["Samples", Tensor]:
    """The same rows, each behind the prefix it continued, and the origin of every token."""
    starts = torch.tensor([len(prefix) for prefix in prefixes], device=samples.lengths.device)
    lengths = starts + samples.lengths
    rows, width = len(prefixes), int(lengths.max())
    token_ids = samples.token_ids.new_zeros(rows, width)
    logprobs = samples.sampler_logprobs.new_full((rows, width), np.nan)
    entropy = samples.entropy.new_full((rows, width), np.nan)
    origin = torch.full((rows, width), GENERATED, dtype=torch.uint8, device=token_ids.device)
    for row, prefix in enumerate(prefixes):
        start, end = len(prefix), int(lengths[row])
        token_ids[row, :start] = torch.tensor(prefix, dtype=torch.int64)
        origin[row, :start] = PREFIX
        for wide, narrow in (
            (token_ids, samples.token_ids),
            (logprobs, samples.sampler_logprobs),
            (entropy, samples.entropy),
        ):
            wide[row, start:end] = narrow[row, : end - start]
    found = replace(samples, token_ids=token_ids, sampler_logprobs=logprobs, entropy=entropy, lengths=lengths)
    return found, origin
