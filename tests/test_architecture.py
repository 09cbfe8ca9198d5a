"""ARCHITECTURE.md against the code: folders, tables and modules that it names."""

import re
from pathlib import Path

from django.apps import apps

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_every_folder_and_table_has_its_row() -> None:
    rows = re.findall(r"^\| `([\w/]+)` \| [^|]+ \| ?(?:`([\w ]+)`)? ?\|$", PAGE, re.MULTILINE)
    named = {folder.rstrip("/"): set(tables.split()) for folder, tables in rows}
    assert [folder for folder in named if not (ROOT / folder).is_dir()] == []
    folders = {f"rlviewer/{path.name}" for path in (ROOT / "rlviewer").iterdir() if list(path.glob("*.py"))}
    assert folders - set(named) == set()
    found: dict[str, set[str]] = {}
    for model in apps.get_models():
        if model.__module__.startswith("rlviewer."):
            found.setdefault("/".join(model.__module__.split(".")[:2]), set()).add(model.__name__)
    assert {folder: tables for folder, tables in named.items() if tables} == found


def test_the_modules_of_a_step_are_there() -> None:
    section = PAGE.split("## Inside the trainer")[1].split("\n## ")[0]
    lists = re.findall(r"^\| (?:gather|score|learn|record) \| .* \| (.+) \|$", section, re.MULTILINE)
    modules = {name for one in lists for name in re.findall(r"`(\w+)`", one)}
    assert len(lists) == 4
    training = ROOT / "training"
    assert [name for name in modules if not any((training / form).exists() for form in (f"{name}.py", name))] == []
