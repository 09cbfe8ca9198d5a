"""Which models a person may train: the built-in ones, and the folders that the site's operator put under `HOME/models`.

Any project has admins and any person may make a project, so a free path would let everybody ask the server what lies on its
disk. Only site admins name other folders.
"""

from pathlib import Path

from django.conf import settings

from rlviewer.accounts.models import User
from training.config import BUILTIN_MODEL, SMOLLM2_MODEL, ConfigError
from training.model_folder import smollm2_folder


def offered() -> list[str]:
    """The built-in models, SmolLM2 where it is installed, and every model folder under `HOME/models`."""
    try:
        found = sorted(path for path in (settings.HOME / "models").iterdir() if is_model(path))
    except OSError:
        found = []
    return [BUILTIN_MODEL, *([SMOLLM2_MODEL] if smollm2_folder() else []), *map(str, found)]


def is_model(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file()
    except (OSError, ValueError):
        return False


def check_model(path: str, user: User) -> None:
    """Raises ConfigError when this person may not train that model, or when it is none."""
    if path in offered():
        return
    if not user.is_superuser:
        raise ConfigError("model.path", "not one of the models offered here; a site admin adds folders to models/")
    if not Path(path).is_absolute():
        raise ConfigError("model.path", f"must be {BUILTIN_MODEL} or an absolute path, got {path!r}")
    if not is_model(Path(path)):
        raise ConfigError(
            "model.path", f"{path!r} holds no config.json, so it is not the folder of a Hugging Face model"
        )
