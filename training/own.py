"""Code of one's own, named in a configuration file as `module:function` and imported on the worker. Imports no torch.

Whoever may write a configuration file on the machine may run code there; whoever may open a page may not. So a name is only
looked up where the trainer runs, and what is launched from a page cannot hold one.
"""

import difflib
import hashlib
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from training.config import ConfigError

NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def is_own(name: str) -> bool:
    """Whether `name` has the form `module:function`."""
    return NAME.fullmatch(name) is not None


def load(name: str, *, key: str) -> Any:
    """What `name` stands for.

    Raises:
        ConfigError: it cannot be imported; its key is `key`.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            key, f"{name}: no module {error.name!r} on the worker; add its folder to PYTHONPATH where the worker starts"
        ) from error
    except Exception as error:  # code of others fails in its own way
        raise ConfigError(key, f"{name}: {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        raise ConfigError(
            key, f"{name}: {module_name} has no {attribute!r}" + (f"; did you mean {near[0]}?" if near else "")
        )
    return getattr(module, attribute)


def version_of(thing: Any) -> str:
    """The start of a digest of the file that `thing` was written in, so that a change of the code is seen."""
    try:
        source = Path(inspect.getfile(thing if callable(thing) else type(thing))).read_bytes()
    except (OSError, TypeError):
        return "unknown"
    return hashlib.sha256(source).hexdigest()[:12]
