"""What both vLLM engines refuse before the first sample; runs without vLLM."""

import importlib.util
from pathlib import Path

import pytest

from training.config import ConfigError, RunConfig
from training.engines import make_engine, vllm_common
from training.engines.base import ALL_TOKENS, PromptRequest, Truncation
from training.engines.vllm_server import checked_address
from training.policy import Policy

SEED = {"temperature": 0.7, "max_new_tokens": 5, "seed": 3}


@pytest.mark.parametrize("engine", ["vllm", "vllm_server"])
def test_without_vllm_the_way_to_install_it_is_named(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vllm" else found(name))
    config = RunConfig.from_dict({"sampling": {"engine": engine}})
    with pytest.raises(ConfigError, match=r"^sampling.engine: .*`make vllm`"):
        make_engine(policy, config, tmp_path)


def test_an_engine_with_another_vocabulary_is_refused(policy: Policy) -> None:
    size = policy.model.config.vocab_size
    vllm_common.check_vocabulary(policy, size, "sampling.engine")
    with pytest.raises(ConfigError, match=rf"^sampling.server_url: .*{size + 1} tokens and the policy's {size}"):
        vllm_common.check_vocabulary(policy, size + 1, "sampling.server_url")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "https://h:1", "http://h", "http://h:1/v1", "http://h:99999", "x"])
def test_only_a_plain_address_is_a_server(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^sampling.server_url: must be like http://127.0.0.1:8000"):
        checked_address(url)
    assert checked_address("http://127.0.0.1:8000/") == "127.0.0.1:8000"


def test_a_server_on_another_host_has_to_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^sampling.server_url: gpu7 is not this host; .*RLVIEWER_VLLM_HOSTS"):
        checked_address("http://gpu7:8000")
    monkeypatch.setenv("RLVIEWER_VLLM_HOSTS", "gpu6,gpu7")
    assert checked_address("http://gpu7:8000") == "gpu7:8000"


def test_a_server_that_does_not_answer_is_refused(policy: Policy, tmp_path: Path) -> None:
    # Nothing listens on the port of discard.
    config = RunConfig.from_dict({"sampling": {"engine": "vllm_server", "server_url": "http://127.0.0.1:9"}})
    with pytest.raises(ConfigError, match=r"^sampling.server_url: no answer .*127.0.0.1:9.*--worker-extension-cls"):
        make_engine(policy, config, tmp_path)


def test_the_engine_makes_room_for_what_the_run_needs(policy: Policy) -> None:
    def room(**sampling: int) -> int:
        config = RunConfig.from_dict({"sampling": sampling}).sampling
        return int(vllm_common.engine_options(policy, config)["max_model_len"])

    assert policy.context_tokens == 128
    assert room(max_new_tokens=8) == 128
    assert room(max_new_tokens=8, max_prompt_tokens=24) == 32
    assert room(max_new_tokens=64, max_prompt_tokens=100) == 128


def test_each_request_and_each_call_draws_from_seeds_of_its_own() -> None:
    request = PromptRequest([5, 6], 4)
    one, other = (vllm_common.sampling_options(number, request, ALL_TOKENS, [1], **SEED) for number in (0, 1))
    assert one["n"] == 4 and one["temperature"] == 0.7 and one["max_tokens"] == 5 and one["stop_token_ids"] == [1]
    assert abs(one["seed"] - other["seed"]) > 1000
    assert one["seed"] == vllm_common.sampling_options(0, request, ALL_TOKENS, [1], **SEED)["seed"]
    assert one["seed"] != vllm_common.sampling_options(0, request, ALL_TOKENS, [1], **SEED | {"seed": 4})["seed"]


def test_a_greedy_request_is_sampled_from_the_likeliest_token_alone() -> None:
    truncation = Truncation(top_k=5, top_p=0.9, min_p=0.1)
    drawn = vllm_common.sampling_options(0, PromptRequest([5], 1), truncation, [1], **SEED)
    greedy = vllm_common.sampling_options(0, PromptRequest([5], 1, is_greedy=True), truncation, [1], **SEED)
    assert [drawn[name] for name in ("top_k", "top_p", "min_p", "temperature")] == [5, 0.9, 0.1, 0.7]
    # At temperature 0 vLLM would score under another temperature than the policy.
    assert [greedy[name] for name in ("top_k", "top_p", "min_p", "temperature")] == [1, 1.0, 0.0, 0.7]


def test_a_tied_head_travels_once(policy: Policy) -> None:
    weights = vllm_common.checkpoint_weights(policy)
    assert "model.embed_tokens.weight" in weights and "lm_head.weight" not in weights
    assert len(weights) == len(list(policy.model.parameters()))
