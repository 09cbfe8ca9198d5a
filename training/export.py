"""Makes a model folder of a checkpoint, loadable by its path: adapters merged into the weights they belong to.

`python -m training.export RUN_FOLDER/checkpoints/step-00000100 FOLDER`; `--average` takes the moving average of the weights.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from training import checkpoint_files
from training.config import ConfigError, RunConfig
from training.optimizers import Optimizer, WeightAverage
from training.policy import load_policy, load_weights, merged_weights, put_weights, save_model, weights_of


def export(checkpoint: Path, folder: Path, *, average: bool = False) -> None:
    """Write the model of `checkpoint` to `folder`.

    Raises:
        ConfigError, ValueError: it is no intact checkpoint of a run folder, or keeps no average.
    """
    if not checkpoint_files.is_intact(checkpoint):
        raise ValueError(f"{checkpoint} is no checkpoint, or a damaged one")
    config = RunConfig.from_file(checkpoint.parent.parent / "config.toml")
    model = replace(config.model, device="cpu", gradient_checkpointing=False)
    policy = load_policy(model)
    load_weights(policy, checkpoint)
    if average:
        saved = torch.load(checkpoint / "optimizer.pt", map_location="cpu", weights_only=True)["average"]
        if not saved:
            raise ValueError(f"{checkpoint} keeps no average of the weights; optimizer.ema_decay was 0")
        kept = WeightAverage(Optimizer(policy.model, config.optimizer).parameters, config.optimizer.ema_decay)
        kept.load_state_dict(saved)
        with kept.in_place():
            merged = {name: weight.clone() for name, weight in merged_weights(policy).items()}
    else:
        merged = merged_weights(policy)
    whole = load_policy(replace(model, lora_rank=0))
    put_weights(whole, merged)
    folder.mkdir(parents=True)
    save_model(whole, folder, weights_of(whole))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m training.export", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="folder of a checkpoint, in the folder of its run")
    parser.add_argument("folder", type=Path, help="folder to make")
    parser.add_argument("--average", action="store_true", help="the moving average of the weights")
    options = parser.parse_args(arguments)
    try:
        export(options.checkpoint, options.folder, average=options.average)
    except (ConfigError, ValueError, FileExistsError, FileNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
