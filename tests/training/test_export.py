from pathlib import Path

import pytest
import torch

from tests.training.test_run import MakeRun, attempt
from training.config import ModelConfig
from training.export import export, main
from training.policy import load_policy, weights_of
from training.run import FINISHED


def trained(make_run: MakeRun, model: str = "", optimizer: str = "") -> Path:
    folder = make_run(steps=2)
    config = folder / "config.toml"
    config.write_text(
        config.read_text()
        .replace("[sampling]", f"{model}\n[sampling]")
        .replace("learning_rate = 1e-4", f"learning_rate = 1e-2\n{optimizer}")
    )
    assert attempt(folder) == FINISHED
    return folder / "checkpoints" / "step-00000002"


def change_of(folder: Path) -> torch.Tensor:
    """How far an exported model's weights are from the built-in one's."""
    ours, base = (weights_of(load_policy(ModelConfig(path=path))) for path in (str(folder), "builtin:tiny"))
    return torch.cat([(ours[name] - base[name]).flatten() for name in base])


def test_adapters_become_a_model_of_its_own(make_run: MakeRun, tmp_path: Path) -> None:
    checkpoint = trained(make_run, "lora_rank = 2")
    assert main([str(checkpoint), str(tmp_path / "model")]) == 0
    assert change_of(tmp_path / "model").abs().max() > 1e-3
    assert not (tmp_path / "model" / "adapter_config.json").exists()
    assert load_policy(ModelConfig(path=str(tmp_path / "model"))).encode("1+1=")


def test_the_average_is_nearer_to_where_the_run_began(make_run: MakeRun, tmp_path: Path) -> None:
    checkpoint = trained(make_run, optimizer="ema_decay = 0.5")
    export(checkpoint, tmp_path / "last")
    export(checkpoint, tmp_path / "average", average=True)
    last, average = (change_of(tmp_path / name) for name in ("last", "average"))
    assert 0 < average.norm() < 0.9 * last.norm()


def test_what_cannot_be_exported_is_refused(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = trained(make_run)
    for arguments, said in (
        ([str(checkpoint), str(tmp_path / "a"), "--average"], "keeps no average"),
        ([str(checkpoint), str(tmp_path)], "File exists"),
        ([str(tmp_path), str(tmp_path / "b")], "no checkpoint"),
    ):
        assert main(arguments) == 1
        assert said in capsys.readouterr().err
