import json
from pathlib import Path

from safetensors.torch import load_file

from training import legality
from training.config import RunConfig
from training.model_folder import BUILTIN_FOLDER
from training.tasks.alphabet import ALPHABET
from training.warmstart import build_model, build_tokenizer, main

DEMO = BUILTIN_FOLDER.parent / "demo.toml"


def test_the_tokenizer_in_the_repository_is_the_one_that_is_built(tmp_path: Path) -> None:
    build_tokenizer().save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (BUILTIN_FOLDER / name).read_bytes()


def test_the_weights_in_the_repository_fit_the_model_that_is_built() -> None:
    model = build_model(build_tokenizer())
    stored = load_file(BUILTIN_FOLDER / "model.safetensors")
    assert {name: weight.shape for name, weight in stored.items()} == {
        name: weight.shape for name, weight in model.state_dict().items() if name != "lm_head.weight"
    }


def test_every_character_of_the_alphabet_is_one_token() -> None:
    tokenizer = build_tokenizer()
    assert len(tokenizer.encode(ALPHABET)) == len(ALPHABET)


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        assert main(["--to", str(tmp_path / name), "--steps", "2"]) == 0
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second"))
    assert first == second
    assert json.loads((tmp_path / "first" / "config.json").read_text())["num_hidden_layers"] == 2


def test_the_demo_may_run() -> None:
    legality.check(RunConfig.from_file(DEMO))
