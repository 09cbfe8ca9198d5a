"""What the documentation says of every algorithm, from the recipes themselves. Imports no torch.

`python -m training.recipes.pages` writes it into docs/algorithms, and begins the page of an algorithm that has none.
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
    return f"{rows(recipes)}\n### Presets\n\n{rows(presets)}"


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


def rows(lines: list[list[str]]) -> str:
    """A Markdown table; the first line is its head."""
    head, *body = lines
    written = [[cell.replace("|", "\\|") for cell in line] for line in (head, ["---"] * len(head), *body)]
    return "".join(f"| {' | '.join(line)} |\n" for line in written)


def filled(page: str, content: str, *, start: str = START) -> str:
    """`page` with what stands between the markers replaced.

    Raises:
        ValueError: the markers are not there, once each.
    """
    if page.count(start) != 1 or page.count(END) != 1:
        raise ValueError(f"needs the lines {start.strip()} and {END.strip()} once each, to fill in what is between")
    before, rest = page.split(start)
    return f"{before}{start}{content}{END}{rest.split(END)[1]}"


def headings(recipe: Recipe) -> list[str]:
    """What a person writes of an algorithm, below the generated top of its page."""
    first = f"What changes from {RECIPES[recipe.parent].title}" if recipe.parent else "What it is made of"
    return [first, "When to use it", "What to watch"]


def main() -> None:
    for recipe in RECIPES.values():
        path = FOLDER / f"{recipe.name}.md"
        if not path.exists():
            path.write_text(f"{START}{END}" + "".join(f"\n## {one}\n" for one in headings(recipe)), encoding="utf-8")
        path.write_text(filled(path.read_text(encoding="utf-8"), head(recipe)), encoding="utf-8")
    path = FOLDER / "README.md"
    path.write_text(filled(path.read_text(encoding="utf-8"), table()), encoding="utf-8")


if __name__ == "__main__":
    main()
