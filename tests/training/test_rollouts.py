import math

import torch

from training.engines.torch_sampler import TorchSampler
from training.plans import SampleRequest
from training.policy import Policy
from training.rewards import REWARDS
from training.rollouts import Rollouts, sample_rollouts, score_rollouts, shuffle_rewards
from training.selection import ChosenPrompt
from training.tasks.catalog import FAMILIES, make_params
from training.tasks.stream import make_task
from training.transforms import Segment, TransformedPrompt, identity

ADDITION = FAMILIES["addition"]


def sampled(policy: Policy, prompts: list[TransformedPrompt] | None = None) -> Rollouts:
    tasks = [make_task(ADDITION, make_params(ADDITION, {}), seed) for seed in range(2)]
    prompts = prompts or [identity(task) for task in tasks]
    return sample_rollouts(
        policy,
        TorchSampler(policy),
        [ChosenPrompt(task) for task in tasks],
        prompts,
        [SampleRequest(1, 2), SampleRequest(0, 1), SampleRequest(0, 3)],
        temperature=1.0,
        max_new_tokens=5,
        seed=1,
    )


def test_rollouts_of_a_prompt_stand_together_however_they_were_asked_for(policy: Policy) -> None:
    rollouts = sampled(policy)
    assert rollouts.group_index.tolist() == [0, 0, 0, 0, 1, 1]
    assert rollouts.numbers.tolist() == [0, 1, 2, 3, 0, 1]
    wide = rollouts.by_group(torch.arange(6.0), math.nan)
    assert wide[0].tolist() == [0, 1, 2, 3]
    assert wide[1, :2].tolist() == [4, 5]
    assert wide[1, 2:].isnan().all()


def test_a_prefix_starts_the_completion_outside_the_loss(policy: Policy) -> None:
    prompts = [
        TransformedPrompt(prompt=(Segment("12+34="),), prefix=(Segment("4", "prefix"),), name="start"),
        TransformedPrompt(prompt=(Segment("50+60="),)),
    ]
    rollouts = sampled(policy, prompts)
    four = policy.encode("4")[0]
    assert rollouts.tokens.completion_ids[:4, 0].tolist() == [four] * 4
    assert rollouts.origin[:, 0].tolist() == [1, 1, 1, 1, 2, 2]
    assert rollouts.generated[:, 0].tolist() == [False] * 4 + [True] * 2
    assert rollouts.sampler_logprobs[:4, 0].isnan().all()
    assert all(completion.startswith(b"4") for completion in rollouts.completions[:4])
    scores = policy.score(rollouts.tokens, temperature=1.0).logprobs
    mask = rollouts.generated
    torch.testing.assert_close(scores[mask], rollouts.sampler_logprobs[mask], atol=2e-5, rtol=0)


def test_shuffling_moves_rewards_and_nothing_else(policy: Policy) -> None:
    rollouts = sampled(policy)
    scores = score_rollouts(rollouts, ADDITION, [REWARDS["task"]], truncated="keep")
    for row, one in enumerate(scores.scored):
        object.__setattr__(one.spans[0], "value", float(row))
    shuffled = shuffle_rewards(rollouts, scores, seed=3)
    assert sorted(shuffled.rewards.tolist()) == [0, 1, 2, 3, 4, 5]
    assert shuffled.rewards.tolist() != [0, 1, 2, 3, 4, 5]
    assert shuffled.rewards.tolist() == shuffle_rewards(rollouts, scores, seed=3).rewards.tolist()
    for row, one in enumerate(shuffled.scored):
        length = int(rollouts.lengths[row])
        assert (one.spans[0].token_start, one.spans[0].token_end) == (length - 1, length)
        assert one.parsed_answer == scores.scored[row].parsed_answer
        assert one.correct == scores.scored[row].correct


def test_completions_are_the_bytes_of_their_tokens(policy: Policy) -> None:
    rollouts = sampled(policy)
    for row, completion in enumerate(rollouts.completions):
        ids = rollouts.tokens.completion_ids[row, : rollouts.lengths[row]].tolist()
        assert completion == b"".join(policy.pieces[token] for token in ids if token not in policy.eos_ids)
