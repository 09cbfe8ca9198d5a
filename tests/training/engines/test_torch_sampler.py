from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, MistralConfig, PreTrainedConfig

from training.config import ModelConfig
from training.engines import torch_sampler
from training.engines.base import (
    PromptRequest,
    SampledRow,
    Samples,
    SamplingError,
    Truncation,
    samples_from_rows,
)
from training.engines.torch_sampler import ENDED_SHARE, TorchSampler, left_padded, truncated
from training.policy import Policy, Tokens, load_policy

PROMPTS = ["12+34=", "7*8=", "reverse abc="]


@pytest.fixture
def policy(model_folder: Path) -> Policy:
    return load_policy(ModelConfig(path=str(model_folder)))


def requests(policy: Policy, *counts: int) -> list[PromptRequest]:
    return [PromptRequest(policy.encode(text), count) for text, count in zip(PROMPTS, counts, strict=True)]


def assert_equals_full_forward(policy: Policy, samples: Samples, asked: list[PromptRequest]) -> None:
    prompts = [request.prompt_ids for request in asked for _ in range(request.count)]
    for row, prompt in enumerate(prompts):
        length = int(samples.lengths[row])
        completion = samples.token_ids[row, :length].tolist()
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0]
        plain = (logits[len(prompt) - 1 : -1] / 0.8).log_softmax(-1)
        taken = plain[range(length), completion]
        torch.testing.assert_close(samples.sampler_logprobs[row, :length], taken, atol=2e-5, rtol=0)
        entropy = -(plain.exp() * plain).sum(-1)
        torch.testing.assert_close(samples.entropy[row, :length], entropy, atol=2e-5, rtol=0)


def test_logprobs_and_entropy_are_those_of_a_full_forward(policy: Policy) -> None:
    asked = requests(policy, 4, 2, 3)
    samples = TorchSampler(policy).sample(asked, temperature=0.8, max_new_tokens=7, seed=3)
    assert_equals_full_forward(policy, samples, asked)


SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "initializer_range": 0.3}


@pytest.mark.parametrize(
    "config",
    [
        # Learned positions, no rotation: a padded prompt must not shift them.
        GPT2Config(vocab_size=258, **SMALL, eos_token_id=1, bos_token_id=1),
        # A window shorter than the prompts: the cache forgets.
        MistralConfig(vocab_size=258, **SMALL, num_key_value_heads=2, sliding_window=4, eos_token_id=1, bos_token_id=1),
    ],
    ids=["gpt2", "mistral"],
)
def test_other_architectures_sample_and_learn_alike(policy: Policy, tmp_path: Path, config: PreTrainedConfig) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    other = load_policy(ModelConfig(path=str(tmp_path)))
    asked = requests(other, 3, 3, 3)
    samples = TorchSampler(other).sample(asked, temperature=0.8, max_new_tokens=7, seed=3)
    assert_equals_full_forward(other, samples, asked)
    prompt_ids, prompt_mask = left_padded([request.prompt_ids for request in asked], 0, other.device)
    mask = torch.arange(samples.token_ids.shape[1]) < samples.lengths[:, None]
    owner = torch.arange(3).repeat_interleave(3)
    scores = other.score(Tokens(prompt_ids, prompt_mask, owner, samples.token_ids, mask), temperature=0.8)
    torch.testing.assert_close(scores.logprobs[mask], samples.sampler_logprobs[mask], atol=2e-5, rtol=0)


def test_rows_end_with_the_end_token_or_at_the_limit(policy: Policy) -> None:
    samples = TorchSampler(policy).sample(requests(policy, 40, 40, 40), temperature=3.0, max_new_tokens=12, seed=0)
    assert 0 < int(samples.is_finished.sum()) < 120
    for ids, length, is_finished in zip(samples.token_ids, samples.lengths, samples.is_finished, strict=True):
        kept = ids[:length].tolist()
        assert (kept[-1] in policy.eos_ids) == bool(is_finished)
        assert not policy.eos_ids & set(kept[:-1])
        assert bool(is_finished) or length == 12
        assert not ids[length:].any()


def test_each_prompt_is_prefilled_once_and_finished_rows_leave(policy: Policy) -> None:
    # Half of the vocabulary ends a completion.
    policy.eos_ids = frozenset(range(0, 258, 2))
    shapes: list[tuple[int, ...]] = []
    policy.model.get_input_embeddings().register_forward_hook(lambda _m, args, _o: shapes.append(tuple(args[0].shape)))
    samples = TorchSampler(policy).sample(requests(policy, 40, 40, 40), temperature=3.0, max_new_tokens=6, seed=0)
    assert shapes[0] == (3, len(PROMPTS[2]))
    alive = [int((samples.lengths > column).sum()) for column in range(1, 6)]
    assert alive[0] < 90
    # Never more than an eighth of the rows that are worked on has ended.
    ran = [shape[0] for shape in shapes[1:]]
    assert all(going <= rows and going > (1 - ENDED_SHARE) * rows for rows, going in zip(ran, alive, strict=False))


def test_a_shared_prefill_samples_what_a_prefill_of_each_does(policy: Policy) -> None:
    ids = policy.encode("12+34=")
    sampler = TorchSampler(policy)
    shared = sampler.sample([PromptRequest(ids, 6)], temperature=1.0, max_new_tokens=8, seed=5)
    apart = sampler.sample([PromptRequest(ids, 1)] * 6, temperature=1.0, max_new_tokens=8, seed=5)
    assert torch.equal(shared.token_ids, apart.token_ids)
    torch.testing.assert_close(shared.sampler_logprobs, apart.sampler_logprobs, atol=1e-5, rtol=0)


def test_the_seed_decides(policy: Policy) -> None:
    sampler = TorchSampler(policy)
    torch.manual_seed(1)
    first = sampler.sample(requests(policy, 4, 4, 4), temperature=1.0, max_new_tokens=8, seed=5)
    torch.manual_seed(2)
    again = sampler.sample(requests(policy, 4, 4, 4), temperature=1.0, max_new_tokens=8, seed=5)
    other = sampler.sample(requests(policy, 4, 4, 4), temperature=1.0, max_new_tokens=8, seed=6)
    assert torch.equal(first.token_ids, again.token_ids)
    assert torch.equal(first.sampler_logprobs, again.sampler_logprobs)
    assert not torch.equal(first.token_ids, other.token_ids)


def test_tokens_come_as_often_as_their_probability_says(policy: Policy) -> None:
    draws = 4000
    ids = policy.encode("12+34=")
    samples = TorchSampler(policy).sample([PromptRequest(ids, draws)], temperature=2.0, max_new_tokens=1, seed=0)
    with torch.no_grad():
        expected = (policy.model(input_ids=torch.tensor([ids])).logits[0, -1] / 2.0).softmax(-1)
    found = torch.bincount(samples.token_ids[:, 0], minlength=len(expected)) / draws
    # Four standard deviations of each token's share, and a little for the rare ones.
    assert bool(((found - expected).abs() < 4 * (expected / draws).sqrt() + 1 / draws).all())


def test_logits_that_are_not_finite_are_refused(policy: Policy) -> None:
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[5] = torch.nan
    with pytest.raises(SamplingError, match="not finite at token 0"):
        TorchSampler(policy).sample(requests(policy, 1, 1, 1), temperature=1.0, max_new_tokens=2, seed=0)


def test_a_prompt_that_leaves_no_room_is_refused(policy: Policy) -> None:
    with pytest.raises(SamplingError, match="of 130 tokens and 6 new ones do not fit the model's context of 128"):
        TorchSampler(policy).sample([PromptRequest([5] * 130, 1)], temperature=1.0, max_new_tokens=6, seed=0)


def test_what_does_not_fit_together_is_sampled_in_passes(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    policy.model.get_input_embeddings().register_forward_hook(lambda _m, args, _o: shapes.append(tuple(args[0].shape)))
    # 2 layers x 2 heads x 8 wide, keys and values in float32: 256 bytes a token; room for 7 rows of 12 + 5 tokens.
    monkeypatch.setattr(torch_sampler, "CACHE_BYTES", 7 * 17 * 256)
    samples = TorchSampler(policy).sample(requests(policy, 4, 3, 20), temperature=1.0, max_new_tokens=5, seed=0)
    prefills = [shape for shape in shapes if shape[1] > 1]
    assert prefills == [(2, 6), (1, 12)]
    assert samples.token_ids.shape[0] == len(samples.lengths) == 27


# Falling 0.4, 0.3, 0.2, 0.1, out of order.
FOUR = torch.tensor([[0.2, 0.4, 0.1, 0.3]])


@pytest.mark.parametrize(
    ("truncation", "kept"),
    [
        (Truncation(), [0.2, 0.4, 0.1, 0.3]),
        (Truncation(top_k=1), [0, 0.4, 0, 0]),
        (Truncation(top_k=3), [0.2, 0.4, 0, 0.3]),
        (Truncation(top_k=9), [0.2, 0.4, 0.1, 0.3]),
        # 0.4 alone does not reach the half, with 0.3 it does.
        (Truncation(top_p=0.5), [0, 0.4, 0, 0.3]),
        (Truncation(top_p=0.01), [0, 0.4, 0, 0]),
        # Half of the likeliest one's probability: 0.2 is enough.
        (Truncation(min_p=0.5), [0.2, 0.4, 0, 0.3]),
        (Truncation(min_p=1.0), [0, 0.4, 0, 0]),
        # top_p counts what top_k left: 0.4 is 57 % of 0.7.
        (Truncation(top_k=2, top_p=0.57), [0, 0.4, 0, 0]),
    ],
)
def test_truncation_leaves_the_tokens_it_names(truncation: Truncation, kept: list[float]) -> None:
    torch.testing.assert_close(truncated(FOUR, truncation), torch.tensor([kept]))


def test_truncated_sampling_draws_from_what_is_left_and_scores_all_tokens(policy: Policy) -> None:
    asked = requests(policy, 30, 30, 30)
    truncation = Truncation(top_k=3)
    samples = TorchSampler(policy, truncation).sample(asked, temperature=0.8, max_new_tokens=5, seed=1)
    assert_equals_full_forward(policy, samples, asked)
    assert 1 < len(samples.token_ids[:30, 0].unique()) <= 3


def test_a_greedy_request_takes_the_likeliest_token_each_time_among_sampled_ones(policy: Policy) -> None:
    prompt = policy.encode(PROMPTS[0])
    asked = [PromptRequest(prompt, 5), PromptRequest(prompt, 1, is_greedy=True)]
    samples = TorchSampler(policy).sample(asked, temperature=0.8, max_new_tokens=6, seed=2)
    assert_equals_full_forward(policy, samples, asked)
    ids = list(prompt)
    for token in samples.token_ids[5, : int(samples.lengths[5])].tolist():
        with torch.no_grad():
            assert token == int(policy.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)
    assert len({tuple(row) for row in samples.token_ids.tolist()}) > 1


def test_rows_from_elsewhere_become_rectangles() -> None:
    rows = [SampledRow([7, 1], [-0.5, -0.25], [1.0, 0.5]), SampledRow([9], [-2.0], [float("nan")])]
    samples = samples_from_rows(rows, {1}, torch.device("cpu"))
    assert samples.token_ids.tolist() == [[7, 1], [9, 0]]
    assert samples.sampler_logprobs.tolist() == [[-0.5, -0.25], [-2.0, 0.0]]
    assert samples.lengths.tolist() == [2, 1]
    assert samples.is_finished.tolist() == [True, False]
    assert samples.entropy[0].tolist() == [1.0, 0.5] and samples.entropy[1].isnan().tolist() == [True, False]


def test_a_log_probability_that_is_not_finite_is_refused_with_its_place() -> None:
    rows = [SampledRow([7], [-1.0], [0.1]), SampledRow([7, 8], [-1.0, float("nan")], [0.1, 0.1])]
    with pytest.raises(SamplingError, match="nan at token 1 of row 1"):
        samples_from_rows(rows, {1}, torch.device("cpu"))
