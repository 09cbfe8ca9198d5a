"""What the documentation says of every algorithm, from the recipes themselves. Imports no torch.

`python -m training.recipes.pages` writes it into docs/algorithms.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.recipes import PRESETS, RECIPES, Recipe
from training.recipes.base import GROUND

FOLDER = Path(__file__).parents[2] / "docs" / "algorithms"
START, END = "<!-- from the recipes -->\n", "<!-- end -->\n"
# Parts that tell algorithms apart, shown for each.
COLUMNS = {"H4": "reward", "H5": "advantage", "H6": "token weights", "H7": "loss", "H9": "selection"}
# Parts that few algorithms change, shown where one does.
FURTHER = {"H1": "tasks", "H2": "prompt", "H3": "plan", "H8": "further loss", "H10": "side model"}


def table() -> str:
    """A row a recipe: its parts, how tokens become one number, and the knobs that it moves. Then a row a preset."""
    recipes = [["algorithm", "changes", *COLUMNS.values(), "further parts", "aggregation", "knobs it moves"]]
    for name, recipe in RECIPES.items():
        parts = [", ".join(recipe.parts[hook]) for hook in COLUMNS]
        further = ", ".join(f"{FURTHER[hook]} {', '.join(recipe.parts[hook])}" for hook in _further(recipe))
        parent = f"[{recipe.parent}]({recipe.parent}.md)" if recipe.parent else ""
        aggregation = str(recipe.params["aggregation"].default)
        recipes.append([f"[{name}]({name}.md)", parent, *parts, further, aggregation, _moved(recipe.defaults)])
    presets = [["preset", "algorithm", "what it sets"]]
    for name, knobs in PRESETS.items():
        recipe_name = name.split("@")[0]
        presets.append([f"`{name}`", f"[{recipe_name}]({recipe_name}.md)", _knobs(knobs)])
    return f"{_rows(recipes)}\n### Presets\n\n{_rows(presets)}"


def head(recipe: Recipe) -> str:
    """The top of an algorithm's page: what it is, its formula, its parts and where it comes from."""
    parent = f" Changes [{RECIPES[recipe.parent].title}]({recipe.parent}.md)." if recipe.parent else ""
    shown = [hook for hook in GROUND if hook in COLUMNS or hook in _further(recipe)]
    parts = "".join(
        f"| {hook} {(COLUMNS | FURTHER)[hook]} | {', '.join(f'`{entry}`' for entry in recipe.parts[hook])} "
        f"| {'' if recipe.parts[hook] == GROUND[hook] else 'its own'} |\n"
        for hook in shown
    )
    return (
        f"# {recipe.title} (`{recipe.name}`)\n\n{recipe.summary}{parent}\n\n"
        f"```text\n{recipe.formula.replace(';  ', chr(10))}\n```\n\n"
        f"| part | entry | |\n| --- | --- | --- |\n{parts}\n"
        f"Aggregation `{recipe.params['aggregation'].default}`. "
        f"Knobs it moves: {_moved(recipe.defaults) or 'none'}.\n\n"
        f"{_starts(recipe)}"
        f"Source: {recipe.source}.\n"
    )


def _starts(recipe: Recipe) -> str:
    """What a configuration starts from that names the recipe and is silent about these keys."""
    keys = {f"{table}.{key}": value for table, keys in recipe.settings.items() for key, value in keys.items()}
    return f"Unless they are set: {_knobs(keys)}.\n\n" if keys else ""


def _further(recipe: Recipe) -> list[str]:
    return [hook for hook in FURTHER if recipe.parts[hook] != GROUND[hook]]


def _moved(defaults: Mapping[str, Any]) -> str:
    return _knobs({knob: value for knob, value in defaults.items() if knob != "aggregation"})


def _knobs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{knob}` {value}" for knob, value in values.items())


def _rows(lines: list[list[str]]) -> str:
    head, *body = lines
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *body))


def filled(page: str, content: str) -> str:
    """`page` with what stands between the markers replaced."""
    before, rest = page.split(START)
    return f"{before}{START}{content}{END}{rest.split(END)[1]}"


def main() -> None:
    for path, content in [
        (FOLDER / "README.md", table()),
        *((FOLDER / f"{name}.md", head(recipe)) for name, recipe in RECIPES.items()),
    ]:
        path.write_text(filled(path.read_text(encoding="utf-8"), content), encoding="utf-8")


if __name__ == "__main__":
    main()
