"""What the documentation says of every algorithm, from the recipes themselves. Imports no torch.

`python -m training.recipes.pages` writes it into docs/algorithms.
"""

from pathlib import Path

from training.recipes import RECIPES, Recipe
from training.recipes.base import GROUND

FOLDER = Path(__file__).parents[2] / "docs" / "algorithms"
START, END = "<!-- from the recipes -->\n", "<!-- end -->\n"
COLUMNS = {"H4": "reward", "H5": "advantage", "H6": "token weights", "H7": "loss", "H9": "selection"}


def table() -> str:
    """A row a recipe: its parts, how tokens become one number, and the knobs that it moves."""
    head = ["algorithm", "changes", *COLUMNS.values(), "aggregation", "knobs it moves"]
    lines = [head, ["---"] * len(head)]
    for name, recipe in RECIPES.items():
        parts = [", ".join(recipe.parts[hook]) for hook in COLUMNS]
        parent = f"[{recipe.parent}]({recipe.parent}.md)" if recipe.parent else ""
        aggregation = str(recipe.params["aggregation"].default)
        lines.append([f"[{name}]({name}.md)", parent, *parts, aggregation, _moved(recipe)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def head(recipe: Recipe) -> str:
    """The top of an algorithm's page: what it is, its formula, its parts and where it comes from."""
    parent = f" Changes [{RECIPES[recipe.parent].title}]({recipe.parent}.md)." if recipe.parent else ""
    parts = "".join(
        f"| {hook} {COLUMNS[hook]} | {', '.join(f'`{entry}`' for entry in recipe.parts[hook])} "
        f"| {'' if recipe.parts[hook] == GROUND[hook] else 'its own'} |\n"
        for hook in COLUMNS
    )
    return (
        f"# {recipe.title} (`{recipe.name}`)\n\n{recipe.summary}{parent}\n\n"
        f"```text\n{recipe.formula.replace(';  ', chr(10))}\n```\n\n"
        f"| part | entry | |\n| --- | --- | --- |\n{parts}\n"
        f"Aggregation `{recipe.params['aggregation'].default}`. Knobs it moves: {_moved(recipe) or 'none'}.\n\n"
        f"Source: {recipe.source}.\n"
    )


def _moved(recipe: Recipe) -> str:
    return ", ".join(f"`{knob}` {value}" for knob, value in recipe.defaults.items() if knob != "aggregation")


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
