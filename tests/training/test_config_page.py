"""The page of all keys against the configuration that it describes."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from training import config_page, legality
from training.config import ConfigError, RunConfig
from training.hooks import HOOKS
from training.recipes.knobs import KNOBS
from training.recipes.pages import filled
from training.tasks.catalog import FAMILIES

PAGE = config_page.PAGE.read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+(?:\.\w+)?)` \| (?:`(.*?)`|empty) \| (.+?) \| (.+) \|$", re.MULTILINE)
KEYS = {key: (default, allowed, says) for key, default, allowed, says in ROW.findall(PAGE.split("## Parts")[0])}


def config_with(key: str, value: Any) -> RunConfig:
    table, _, name = key.rpartition(".")
    return RunConfig.from_dict({table: {name: value}} if table else {name: value})


def leaves(tables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in tables.items():
        if isinstance(value, dict) and value:
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield key, value


def test_the_page_says_what_the_configuration_says() -> None:
    assert filled(PAGE, config_page.tables(), start=config_page.START) == PAGE, "run python -m training.config_page"


def test_every_key_is_on_the_page_with_its_default_and_a_sentence() -> None:
    defaults = dict(leaves(RunConfig().to_dict()))
    assert list(KEYS) == list(defaults)
    shown = {key: tomllib.loads(f"x = {default}")["x"] if default else {} for key, (default, _, _) in KEYS.items()}
    assert shown == defaults
    assert [key for key, (_, _, says) in KEYS.items() if not says.endswith(".")] == []


def test_every_part_and_every_family_is_on_the_page() -> None:
    for code, hook in HOOKS.items():
        (line,) = re.findall(rf"^\| `hooks\.{code}` .*$", PAGE, re.MULTILINE)
        assert re.findall(r"`(\w+)`", line.rsplit(" | ", 1)[1]) == list(hook.entries)
    knobs = set(re.findall(r"^\| (H\d+) `(\w+)` \| `(\w+)`", PAGE, re.MULTILINE))
    assert knobs == {(*part, name) for part, found in KNOBS.items() for name in found}
    tasks = set(re.findall(r"^\| `(\w+)` \| `(\w+)` \| `", PAGE.split("## Knobs of the tasks")[1], re.MULTILINE))
    assert tasks == {(family.name, name) for family in FAMILIES.values() for name in family.params}


BOUNDED = {key: allowed for key, (_, allowed, _) in KEYS.items() if re.match(r"above \d|\d", allowed)}


@pytest.mark.parametrize("key", BOUNDED)
def test_the_bounds_shown_are_those_that_hold(key: str) -> None:
    found = re.fullmatch(r"(above )?([\d.]+)(?: or more|,? to ([\d.e-]+))?", BOUNDED[key])
    assert found
    is_open, low, high = found[1], tomllib.loads(f"x = {found[2]}")["x"], found[3]
    if is_open:
        with pytest.raises(ConfigError, match="must be greater than"):
            config_with(key, low)
    else:
        config_with(key, low)
        with pytest.raises(ConfigError, match="must be at least"):
            config_with(key, low - 1)
    if high:
        highest = tomllib.loads(f"x = {high}")["x"]
        config_with(key, highest)
        with pytest.raises(ConfigError, match="must be at most"):
            config_with(key, highest + 1)


@pytest.mark.parametrize("key", [key for key, (_, allowed, _) in KEYS.items() if allowed.startswith("`")])
def test_the_choices_shown_are_those_that_are_taken(key: str) -> None:
    for option in re.findall(r"`(\w+)`", KEYS[key][1]):
        config_with(key, option)
    with pytest.raises(ConfigError, match="is not one of"):
        config_with(key, "nothing of the kind")


def test_the_example_on_the_page_may_run() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    legality.check(RunConfig.from_toml(example))
