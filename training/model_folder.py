"""Where a model lies, and whether its folder is one. Imports no torch, so a form can refuse a folder at once."""

import json
from pathlib import Path

from training.config import BUILTIN_MODEL, ConfigError

BUILTIN_FOLDER = Path(__file__).parent / "data" / "tiny"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def model_folder(path: str) -> Path:
    """The folder of `builtin:tiny` or of a local Hugging Face causal LM.

    Raises:
        ConfigError: on model.path, naming what the folder lacks.
    """
    if path == BUILTIN_MODEL:
        return BUILTIN_FOLDER
    folder = Path(path).expanduser()
    try:
        is_folder = folder.is_dir()
    except (OSError, ValueError) as error:  # a name too long, a NUL
        raise _refused(f"{path!r} cannot be read: {error}") from None
    if not path or not is_folder:
        raise _refused(f"{path!r} is not a folder; use {BUILTIN_MODEL} or the folder of a Hugging Face causal LM")
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    for names in (WEIGHTS, TOKENIZERS):
        if not any((folder / name).is_file() for name in names):
            missing.append(" or ".join(names))
    if missing:
        raise _refused(f"{path} is not a model: it has no {', no '.join(missing)}")
    try:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model_type = described.get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise _refused(f"{path}/config.json cannot be read: {error}") from None
    if not model_type:
        raise _refused(f"{path}/config.json has no model_type")
    return folder


def _refused(message: str) -> ConfigError:
    return ConfigError("model.path", message)
