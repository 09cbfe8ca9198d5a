"""vLLM samples what the policy would, here for real. Without vLLM these tests say so."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: `make vllm` installs it, and these tests run")

from training import spool
from training.alarms import GAP_LIMITS
from training.attempt import Attempt
from training.config import ModelConfig, SamplingConfig
from training.engines.base import ALL_TOKENS, Engine, PromptRequest, Samples, SamplingError, Truncation
from training.engines.torch_sampler import TorchSampler, left_padded
from training.engines.vllm_engine import VllmEngine
from training.engines.vllm_server import VllmServer
from training.policy import Policy, Tokens, load_policy
from training.records import RolloutBatch
from training.run import FINISHED, run_attempt

PROMPTS = ["12+34=", "7*8=", "reverse abc="]
TEMPERATURE = 0.8
CONFIG = SamplingConfig(group_size=4, prompts_per_step=3)
MakeRun = Callable[..., Path]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelConfig())


@pytest.fixture(scope="module", params=["vllm", "vllm_server"])
def engine(
    request: pytest.FixtureRequest, policy: Policy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    made: VllmEngine | VllmServer
    if request.param == "vllm":
        made = VllmEngine(policy, CONFIG, ALL_TOKENS, seed=1)
    else:
        made = VllmServer(policy, CONFIG, ALL_TOKENS, folder=tmp_path_factory.mktemp("attempt"))
    yield made
    made.close()


def requests(policy: Policy, count: int, *, greedy: bool = False) -> list[PromptRequest]:
    return [PromptRequest(policy.encode(text), count, greedy) for text in PROMPTS]


def sample(engine: Engine, asked: list[PromptRequest], seed: int = 3) -> Samples:
    return engine.sample(asked, temperature=TEMPERATURE, max_new_tokens=12, seed=seed)


def gap(policy: Policy, asked: list[PromptRequest], samples: Samples) -> float:
    """Largest difference of log-probability or entropy from a plain forward pass of the policy."""
    largest, rows = 0.0, [request.prompt_ids for request in asked for _ in range(request.count)]
    assert len(rows) == samples.token_ids.shape[0]
    for row, prompt in enumerate(rows):
        length = int(samples.lengths[row])
        completion = samples.token_ids[row, :length].tolist()
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0]
        plain = (logits[len(prompt) - 1 : -1] / TEMPERATURE).log_softmax(-1)
        taken = samples.sampler_logprobs[row, :length] - plain[range(length), completion]
        entropy = samples.entropy[row, :length] + (plain.exp() * plain).sum(-1)
        largest = max(largest, taken.abs().max().item(), entropy.abs().max().item())
    return largest


def test_log_probabilities_and_entropy_are_the_policys(engine: Engine, policy: Policy) -> None:
    asked = requests(policy, 6)
    samples = sample(engine, asked)
    assert gap(policy, asked, samples) < 1e-4
    assert len({tuple(row) for row in samples.token_ids.tolist()}) > 1
    for ids, length, is_finished in zip(samples.token_ids, samples.lengths, samples.is_finished, strict=True):
        kept = ids[:length].tolist()
        assert (kept[-1] in policy.eos_ids) == bool(is_finished)
        assert not policy.eos_ids & set(kept[:-1])
        assert bool(is_finished) or length == 12


def test_the_same_seed_gives_the_same_tokens(engine: Engine, policy: Policy) -> None:
    asked = requests(policy, 8)
    first, again, other = (sample(engine, asked, seed) for seed in (5, 5, 6))
    assert first.token_ids.tolist() == again.token_ids.tolist()
    assert first.token_ids.tolist() != other.token_ids.tolist()


def test_truncation_and_greed_change_what_is_drawn_and_not_how_it_is_scored(engine: Engine, policy: Policy) -> None:
    greedy = requests(policy, 1, greedy=True)
    likeliest = sample(engine, greedy)
    assert gap(policy, greedy, likeliest) < 1e-4
    assert likeliest.token_ids.tolist() == sample(TorchSampler(policy), greedy).token_ids.tolist()
    asked = requests(policy, 30)
    engine.truncation = Truncation(top_k=2)  # type: ignore[attr-defined]
    try:
        samples = sample(engine, asked)
    finally:
        engine.truncation = ALL_TOKENS  # type: ignore[attr-defined]
    assert gap(policy, asked, samples) < 1e-4
    assert 1 < len(samples.token_ids[:30, 0].unique()) <= 2 < len(sample(engine, asked).token_ids[:30, 0].unique())


def test_an_update_reaches_the_engine_and_its_memory_of_prompts(engine: Engine, policy: Policy) -> None:
    asked = requests(policy, 4)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for value in policy.model.parameters():
                value.add_(torch.randn(value.shape, generator=generator) * 0.02)
        assert gap(policy, asked, sample(engine, asked)) > 0.1
        engine.weights_changed()
        assert gap(policy, asked, sample(engine, asked)) < 1e-4
    finally:
        policy.model.load_state_dict(before)
        engine.weights_changed()


def test_a_prompt_that_does_not_fit_is_refused(engine: Engine, policy: Policy) -> None:
    with pytest.raises(SamplingError, match="2040 tokens and 12 new ones do not fit"):
        sample(engine, [PromptRequest([5] * 2040, 1)])


def test_weights_in_half_precision_reach_the_engine_too() -> None:
    policy = load_policy(ModelConfig(dtype="bfloat16"))
    asked = requests(policy, 8)
    made = VllmEngine(policy, CONFIG, ALL_TOKENS, seed=1)
    try:
        samples = sample(made, asked)
    finally:
        made.close()
    ids, padding = left_padded([request.prompt_ids for request in asked], policy.pad_id, policy.device)
    mask = torch.arange(samples.token_ids.shape[1]) < samples.lengths[:, None]
    tokens = Tokens(ids, padding, torch.arange(3).repeat_interleave(8), samples.token_ids, mask)
    with torch.no_grad():
        scores = policy.score(tokens, temperature=TEMPERATURE)
    assert (scores.logprobs - samples.sampler_logprobs)[mask].abs().mean() < GAP_LIMITS["bfloat16"]


def trained(make_run: MakeRun, engine: str) -> dict[int, RolloutBatch]:
    """The training batches of a short run, by step."""
    folder = make_run(engine, steps=3, top="algorithm = 'reinforce'")
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("[sampling]\n", f"[sampling]\nengine = '{engine}'\n"))
    attempt = Attempt(folder, 1)
    assert run_attempt(attempt, "5f0c2d4e-8a51-4c2e-9d57-3b1f0a6c7e21", is_resume=False, draws_bar=False) == FINISHED
    assert not list(attempt.folder.glob("vllm_weights"))
    batches = [RolloutBatch.from_bytes(path.read_bytes(), where=path.name) for path in spool.waiting(folder / "spool")]
    return {batch.header.step: batch for batch in batches if batch.header.split == "train"}


def gap_of(batch: RolloutBatch) -> float:
    names = batch.metrics["name"].to_pylist()
    return float(batch.metrics["value"].to_pylist()[names.index("sampler_policy_gap")])


def kinds(batch: RolloutBatch) -> list[str]:
    return [event["kind"] for event in batch.header.events]


@pytest.mark.parametrize("engine_name", ["vllm", "vllm_server"])
def test_a_run_samples_every_step_from_the_weights_it_trains(make_run: MakeRun, engine_name: str) -> None:
    batches = trained(make_run, engine_name)
    assert sorted(batches) == [0, 1, 2]
    assert all(gap_of(batch) < 1e-4 and not kinds(batch) for batch in batches.values())


def test_a_forgotten_update_raises_an_alarm_within_one_step(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VllmEngine, "weights_changed", lambda self: None)
    batches = trained(make_run, "vllm")
    assert kinds(batches[0]) == []
    assert kinds(batches[1]) == kinds(batches[2]) == ["sampler-policy-gap"]
    event = batches[1].header.events[0]
    assert event["gap"] == pytest.approx(gap_of(batches[1])) and event["limit"] == 1e-3


def test_an_output_head_that_vllm_keeps_a_packed_copy_of_raises_an_alarm_at_once(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import _custom_ops

    from training.engines import vllm_worker  # noqa: F401 - has switched it off

    # The build for CPUs then packs the tied head when it loads the model, and says nothing when no weights reach it later.
    monkeypatch.setattr(_custom_ops, "_supports_onednn", True)
    batches = trained(make_run, "vllm")
    assert [kinds(batch) for batch in batches.values()] == [["sampler-policy-gap"]] * 3
    assert gap_of(batches[0]) > 0.1
