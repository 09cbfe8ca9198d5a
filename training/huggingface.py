"""What the trainer takes from transformers, loaded without what only other kinds of models need: 115 MB less."""

import contextlib
import sys
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def without(*packages: str) -> Iterator[None]:
    """What is imported in the block finds none of `packages`, but for those that are loaded already."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


# scipy: losses of object detection. Triton: torch's compiler, which builds for processors alone do without.
SPARED = ("scipy",) if torch.version.cuda else ("scipy", "triton")

# Once transformers has looked for them it counts on them.
with without(*(() if "transformers" in sys.modules else SPARED)):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel, logging
    from transformers.modeling_layers import GradientCheckpointingLayer

__all__ = [
    "AutoConfig",
    "AutoModelForCausalLM",
    "AutoTokenizer",
    "DynamicCache",
    "GradientCheckpointingLayer",
    "PreTrainedModel",
    "logging",
]
