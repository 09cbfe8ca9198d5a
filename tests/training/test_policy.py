import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    MambaConfig,
    PhiConfig,
    PretrainedConfig,
)

from training.config import BUILTIN_MODEL, ConfigError, ModelConfig
from training.policy import PLAIN_VOCABULARY, Policy, Tokens, entropy_of, load_policy

PROMPTS = ["12+34=", "7*8=", "reverse abc="]


def padded_tokens(policy: Policy, completions: list[list[int]], owner: list[int]) -> Tokens:
    prompts = [policy.encode(text) for text in PROMPTS]
    width, longest = max(map(len, prompts)), max(map(len, completions))
    return Tokens(
        torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts]),
        torch.tensor([[False] * (width - len(ids)) + [True] * len(ids) for ids in prompts]),
        torch.tensor(owner),
        torch.tensor([ids + [0] * (longest - len(ids)) for ids in completions]),
        torch.tensor([[True] * len(ids) + [False] * (longest - len(ids)) for ids in completions]),
    )


def plain_logprobs(policy: Policy, prompt: list[int], completion: list[int], temperature: float) -> torch.Tensor:
    """Log-probabilities over the vocabulary from one unpadded sequence, without a cache."""
    logits = policy.model(input_ids=torch.tensor([prompt + completion])).logits[0]
    return (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1)


def test_score_equals_a_plain_forward_of_each_sequence(policy: Policy) -> None:
    completions = [[21, 33, 1], [40], [5, 6, 7, 8, 1], [9, 1]]
    owner = [0, 0, 1, 2]
    scores = policy.score(padded_tokens(policy, completions, owner), temperature=0.7, with_entropy=True)
    for row, (completion, prompt) in enumerate(zip(completions, owner, strict=True)):
        plain = plain_logprobs(policy, policy.encode(PROMPTS[prompt]), completion, 0.7)
        taken = plain[range(len(completion)), completion]
        torch.testing.assert_close(scores.logprobs[row, : len(completion)], taken, atol=2e-5, rtol=0)
        entropy = -(plain.exp() * plain).sum(-1)
        torch.testing.assert_close(scores.entropy[row, : len(completion)], entropy, atol=2e-5, rtol=0)


def test_score_has_the_gradient_of_plain_forwards(policy: Policy) -> None:
    completions, owner = [[21, 33, 1], [40, 2], [5, 6, 7, 8, 1], [9, 1]], [0, 0, 1, 2]
    tokens = padded_tokens(policy, completions, owner)
    policy.score(tokens, temperature=1.0).logprobs[tokens.completion_mask].sum().backward()
    shared = {name: parameter.grad.clone() for name, parameter in policy.model.named_parameters()}
    policy.model.zero_grad()
    for completion, prompt in zip(completions, owner, strict=True):
        plain = plain_logprobs(policy, policy.encode(PROMPTS[prompt]), completion, 1.0)
        plain[range(len(completion)), completion].sum().backward()
    for name, parameter in policy.model.named_parameters():
        torch.testing.assert_close(shared[name], parameter.grad, atol=1e-4, rtol=1e-3)


def wide_policy(policy: Policy, config: PretrainedConfig) -> Policy:
    """An untrained model of the vocabulary size at which logits are no longer held, with the built-in tokenizer."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    if model.get_output_embeddings().bias is not None:
        torch.nn.init.normal_(model.get_output_embeddings().bias)
    return Policy(model, policy.tokenizer, policy.device)


SMALL = {
    "vocab_size": PLAIN_VOCABULARY + 1,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "eos_token_id": 1,
}
WIDE = {
    "tied": LlamaConfig(**SMALL, tie_word_embeddings=True),
    "untied": LlamaConfig(**SMALL, tie_word_embeddings=False),
    "with a bias": PhiConfig(**{**SMALL, "num_key_value_heads": 4}),
}


@pytest.mark.parametrize("name", WIDE)
def test_a_large_vocabulary_is_scored_without_its_logits_and_equally(
    name: str, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, plain = wide_policy(policy, WIDE[name]), wide_policy(policy, WIDE[name])
    tokens = padded_tokens(policy, [[21, 1000, 1], [40], [5, 6, 7, 1024, 1], [9, 1]], [0, 0, 1, 2])
    ours.score(tokens, temperature=0.7)  # the first one looks at what follows the output layer
    widths = set()
    hook = ours.model.get_output_embeddings().register_forward_hook(lambda layer, args, out: widths.add(out.shape[-1]))
    scores = [ours.score(tokens, temperature=0.7, with_entropy=True)]
    hook.remove()
    assert widths == {32}, "the output layer let the hidden states through"
    monkeypatch.setattr("training.policy.PLAIN_VOCABULARY", 10**9)
    scores.append(plain.score(tokens, temperature=0.7, with_entropy=True))
    counts = tokens.completion_mask
    for one in scores:
        assert one.entropy is not None
        (one.logprobs + 0.3 * one.entropy)[counts].square().sum().backward()
    torch.testing.assert_close(scores[0].logprobs[counts], scores[1].logprobs[counts], atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(scores[0].entropy[counts], scores[1].entropy[counts], atol=1e-5, rtol=1e-6)
    for mine, other in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        Gemma2Config(**SMALL, final_logit_softcapping=30.0, query_pre_attn_scalar=8),
        GraniteConfig(**SMALL, logits_scaling=8.0),
        CohereConfig(**SMALL, logit_scale=0.0625),
    ],
    ids=lambda config: config.model_type,
)
def test_what_a_model_does_after_its_output_layer_is_kept(config: PretrainedConfig, policy: Policy) -> None:
    model = wide_policy(policy, config)
    completion = [21, 1000, 1]
    scores = model.score(padded_tokens(policy, [completion] * 3, [0, 1, 2]), temperature=0.7)
    for row, prompt in enumerate(PROMPTS):
        plain = plain_logprobs(model, policy.encode(prompt), completion, 0.7)
        torch.testing.assert_close(scores.logprobs[row], plain[range(3), completion], atol=5e-5, rtol=0)


def test_rows_keep_only_what_they_need(policy: Policy) -> None:
    tokens = padded_tokens(policy, [[21, 33, 1], [40], [5, 6, 7, 8, 1], [9, 1]], [0, 0, 1, 2])
    part = tokens.rows(slice(1, 3))
    assert part.owner.tolist() == [0, 1]
    assert part.prompt_ids.tolist() == [policy.encode(PROMPTS[0]), [0, 0, *policy.encode(PROMPTS[1])]]
    assert part.completion_mask.sum(dim=1).tolist() == [1, 5]


def test_entropy_of_a_certain_token_is_zero() -> None:
    assert entropy_of(torch.tensor([0.0, -torch.inf])).item() == 0
    assert entropy_of(torch.tensor([0.5, 0.5]).log()).item() == pytest.approx(0.693147, abs=1e-6)


@pytest.mark.parametrize("text", ["12+34=46", "a b\n~", "héllo ✓", "\x00\x7f", "<0x41>"])
def test_every_text_survives_the_builtin_tokenizer(policy: Policy, text: str) -> None:
    assert policy.decode(policy.encode(text)) == text.encode()


def test_half_a_character_stays_bytes(policy: Policy) -> None:
    assert policy.decode(policy.encode("é")[:1]) == b"\xc3"


def test_decode_leaves_the_end_out(policy: Policy) -> None:
    assert policy.decode([*policy.encode("46"), 1]) == b"46"
    assert policy.decode([1]) == b""


def test_the_builtin_model_is_about_a_million_parameters_in_at_most_4_megabytes() -> None:
    builtin = load_policy(ModelConfig(path=BUILTIN_MODEL))
    assert 0.8e6 < builtin.model.num_parameters() < 1.1e6
    folder = Path(builtin.model.config.name_or_path)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 4_000_000


def broken(model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder, tmp_path / "broken"))


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no model.safetensors or model.safetensors.index.json"),
        ("tokenizer.json", "no tokenizer.json"),
    ],
)
def test_a_folder_that_is_not_a_model_is_refused(model_folder: Path, tmp_path: Path, missing: str, said: str) -> None:
    folder = broken(model_folder, tmp_path)
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=said) as refused:
        load_policy(ModelConfig(path=str(folder)))
    assert refused.value.key == "model.path"


@pytest.mark.parametrize("path", ["", "/no/such/folder", "gpt2", "a\x00b", "x" * 5000])
def test_a_path_that_is_no_folder_is_refused(path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_policy(ModelConfig(path=path))
    assert refused.value.key == "model.path"


def test_cut_weights_are_refused(model_folder: Path, tmp_path: Path) -> None:
    folder = broken(model_folder, tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_policy(ModelConfig(path=str(folder)))


def test_weights_that_lack_a_layer_are_refused(model_folder: Path, tmp_path: Path) -> None:
    folder = broken(model_folder, tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack model\.layers\.1\.mlp\.up_proj\.weight"):
        load_policy(ModelConfig(path=str(folder)))


def test_code_in_a_model_folder_is_never_run(model_folder: Path, tmp_path: Path) -> None:
    folder = broken(model_folder, tmp_path)
    described = json.loads((folder / "config.json").read_text())
    described |= {"model_type": "mine", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ConfigError, match=r"needs code of its own \(auto_map\), which is never run"):
        load_policy(ModelConfig(path=str(folder)))
    assert not (tmp_path / "ran").exists()


def test_a_gpu_that_is_not_there_is_refused(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError) as refused:
        load_policy(ModelConfig(path=str(model_folder), device="cuda"))
    assert refused.value.key == "model.device"


def test_a_model_without_attention_is_refused(policy: Policy, tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=258, hidden_size=16, num_hidden_layers=1, eos_token_id=1)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="mamba has no attention"):
        load_policy(ModelConfig(path=str(tmp_path)))


def test_working_layers_out_again_changes_neither_scores_nor_gradients(model_folder: Path, policy: Policy) -> None:
    saving = load_policy(ModelConfig(path=str(model_folder), gradient_checkpointing=True))
    for completions, owner in (([[21, 33, 1], [40], [5, 6, 7, 8, 1], [9, 1]], [0, 0, 1, 2]), ([[7]], [1])):
        tokens = padded_tokens(policy, completions, owner)
        found = [one.score(tokens, temperature=0.7, with_entropy=True) for one in (policy, saving)]
        for plain, again in zip(*((one.logprobs, one.entropy) for one in found), strict=True):
            torch.testing.assert_close(plain[tokens.completion_mask], again[tokens.completion_mask], atol=2e-5, rtol=0)
        for one in found:
            one.logprobs[tokens.completion_mask].sum().backward()
    for plain, again in zip(policy.model.parameters(), saving.model.parameters(), strict=True):
        torch.testing.assert_close(plain.grad, again.grad, atol=1e-4, rtol=1e-3)


def test_layers_are_worked_out_twice_and_keep_only_their_input(model_folder: Path, policy: Policy) -> None:
    saving = load_policy(ModelConfig(path=str(model_folder), gradient_checkpointing=True))
    kept = {}
    for name, one in (("plain", policy), ("saving", saving)):
        calls: list[int] = []
        one.model.model.layers[0].self_attn.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        sizes: list[int] = []
        tokens = padded_tokens(one, [[5, 6, 7, 8, 1]] * 8, [1] * 8)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: (sizes.append(t.numel()), t)[1], lambda t: t
        ):
            logprobs = one.score(tokens, temperature=1.0).logprobs
        kept[name] = sum(sizes)
        before = len(calls)
        logprobs.sum().backward()
        assert (len(calls) > before) == (name == "saving")
    assert kept["saving"] < kept["plain"] / 2


def test_a_model_without_an_end_token_is_refused(model_folder: Path, tmp_path: Path) -> None:
    folder = broken(model_folder, tmp_path)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        described = json.loads((folder / name).read_text())
        # Left out, some models would take the number of another's.
        ends = {key: None for key in described if "eos" in key}
        (folder / name).write_text(json.dumps(described | ends))
    with pytest.raises(ConfigError, match=r"names an end-of-sequence token.*set eos_token_id") as refused:
        load_policy(ModelConfig(path=str(folder)))
    assert refused.value.key == "model.path"


def test_a_tokenizer_of_another_model_is_refused(policy: Policy, model_folder: Path, tmp_path: Path) -> None:
    folder = broken(model_folder, tmp_path)
    policy.tokenizer.add_tokens([f"further-{number}" for number in range(400)])
    policy.tokenizer.save_pretrained(folder)
    with pytest.raises(ConfigError, match=r"the tokenizer has \d+ tokens, the model only \d+; take the tokenizer"):
        load_policy(ModelConfig(path=str(folder)))


def test_code_of_a_tokenizer_is_never_run(model_folder: Path, tmp_path: Path) -> None:
    folder = broken(model_folder, tmp_path)
    described = json.loads((folder / "tokenizer_config.json").read_text())
    described |= {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": [None, "evil.Mine"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ConfigError, match="needs code of its own"):
        load_policy(ModelConfig(path=str(folder)))
    assert not (tmp_path / "ran").exists()


def test_the_language_model_of_a_package_is_refused_with_the_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.model_folder.SMOLLM2_PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match="make smollm2") as refused:
        load_policy(ModelConfig(path="builtin:smollm2"))
    assert refused.value.key == "model.path"
