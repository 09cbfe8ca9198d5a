"""What the documentation says of every key of a configuration, from the configuration itself. Imports no torch.

`python -m training.config_page` writes it into docs/config-keys.md.
"""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from training.config import NAMES, RunConfig, toml_value
from training.hooks import HOOKS
from training.params import Param
from training.recipes.knobs import COMMON, KNOBS
from training.recipes.pages import filled, rows
from training.tasks.catalog import FAMILIES

PAGE = Path(__file__).parents[1] / "docs" / "config-keys.md"
START = "<!-- from the configuration -->\n"
HEAD = ["default", "allowed", "what it does"]


def tables() -> str:
    """The keys of every table of the file, the parts, their knobs, and those of every task family."""
    keys = "".join(f"### {title}\n\n{rows([['key', *HEAD], *lines])}\n" for title, lines in _tables())
    parts = [["hook", "what it is", "takes", "parts"]]
    for code, hook in HOOKS.items():
        entries = ", ".join(f"`{entry}`" for entry in hook.entries)
        parts.append([f"`hooks.{code}`", hook.title, "a list" if hook.many else "one", entries])
    knobs = [["part", "knob", *HEAD], *_knobs("every algorithm", COMMON)]
    for (code, entry), found in sorted(KNOBS.items(), key=_in_order):
        knobs += _knobs(f"{code} `{entry}`", found)
    families = [["family", "knob", *HEAD]]
    for family in FAMILIES.values():
        families += _knobs(f"`{family.name}`", family.params)
    return (
        f"## Keys\n\n{keys}## Parts: `[hooks]`\n\n{rows(parts)}\n"
        f"## Knobs of the parts: `[algorithm_params]`\n\n{rows(knobs)}\n"
        f"## Knobs of the tasks: `[task.params]`\n\n{rows(families)}"
    )


def _tables() -> Iterator[tuple[str, list[list[str]]]]:
    """Title and rows of each table of the file."""
    hints = typing.get_type_hints(RunConfig)
    inner = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    yield "At the top", [_key(spec, hints, "") for spec in dataclasses.fields(RunConfig) if spec.name not in inner]
    for name, kind in inner.items():
        own = typing.get_type_hints(kind)
        yield f"`[{name}]`", [_key(spec, own, f"{name}.") for spec in dataclasses.fields(kind)]


def _key(spec: "dataclasses.Field[Any]", hints: Mapping[str, Any], prefix: str) -> list[str]:
    rules, kind = spec.metadata, hints[spec.name]
    if kind not in NAMES:
        return [f"`{prefix}{spec.name}`", "empty", "a table", rules["help"]]
    bounds = rules.get("low"), rules.get("high"), rules.get("options", ())
    allowed = _allowed(kind, *bounds, is_open=rules.get("open_low", False))
    return [f"`{prefix}{spec.name}`", f"`{toml_value(spec.default)}`", allowed, rules["help"]]


def _in_order(part: tuple[tuple[str, str], Any]) -> tuple[int, int]:
    (hook, entry), _ = part
    return list(HOOKS).index(hook), HOOKS[hook].entries.index(entry)


def _knobs(where: str, knobs: Mapping[str, Param]) -> list[list[str]]:
    return [
        [
            where,
            f"`{name}`",
            f"`{toml_value(knob.default)}`",
            _allowed(type(knob.default), knob.low, knob.high, knob.options),
            knob.help,
        ]
        for name, knob in knobs.items()
    ]


def _allowed(
    kind: type, low: float | None, high: float | None, options: tuple[str, ...], *, is_open: bool = False
) -> str:
    if options:
        return ", ".join(f"`{option}`" for option in options)
    if low is None:
        return NAMES[kind]
    least = f"above {_number(low)}" if is_open else _number(low)
    if high is None:
        return least if is_open else f"{least} or more"
    return f"{least}, to {_number(high)}" if is_open else f"{least} to {_number(high)}"


def _number(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:.15g}"


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables(), start=START), encoding="utf-8")


if __name__ == "__main__":
    main()
