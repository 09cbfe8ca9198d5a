"""The algorithms as one family: what each changes from its parent, and which runs of a project use it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from django.db.models import Count
from django.urls import reverse
from django.utils.http import urlencode

from rlviewer.accounts.models import Project
from rlviewer.runs.models import Run
from training.hooks import HOOKS
from training.recipes import PRESETS, RECIPES, Recipe, named


@dataclass(frozen=True, slots=True)
class Change:
    """One part or knob that differs from the parent's; `before` is empty at the root."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Node:
    """A recipe in the tree. Presets count among the runs of their recipe."""

    recipe: Recipe
    depth: int  # steps from a root
    changes: Sequence[Change]
    runs: int
    href: str
    runs_href: str
    launch_href: str


def ladder(project: Project) -> list[Node]:
    """Parents before their children, in the order of the recipes. One query."""
    counts = _runs_by_recipe(project)
    return [node_of(project, recipe, depth, counts.get(recipe.name, 0)) for recipe, depth in _in_order("", 0)]


def node_of(project: Project, recipe: Recipe, depth: int, runs: int) -> Node:
    launch = reverse("run-launch", args=[project.pk])
    return Node(
        recipe=recipe,
        depth=depth,
        changes=list(changes(recipe)),
        runs=runs,
        href=reverse("algorithm-detail", args=[project.pk, recipe.name]),
        runs_href=f"{reverse('run-list', args=[project.pk])}?{urlencode({'algorithm': recipe.name})}",
        launch_href=f"{launch}?{urlencode({'algorithm': recipe.name})}",
    )


def changes(recipe: Recipe) -> Iterator[Change]:
    """What tells a recipe from its parent: parts by hook, then the defaults of knobs that both have."""
    parent = RECIPES.get(recipe.parent)
    for hook, entries in recipe.parts.items():
        before = parent.parts[hook] if parent else ()
        if entries != before and (parent or hook in recipe.changes):
            yield Change(HOOKS[hook].title, ", ".join(before), ", ".join(entries) or "none")
    if parent:
        theirs = parent.params
        for name, knob in recipe.params.items():
            if name in theirs and theirs[name].default != knob.default:
                yield Change(name, _word(theirs[name].default), _word(knob.default))


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def children(name: str) -> list[Recipe]:
    return [recipe for recipe in RECIPES.values() if recipe.parent == name]


def presets_of(name: str) -> dict[str, Mapping[str, object]]:
    """Values of other trainers, by the preset's name."""
    return {preset: values for preset, values in PRESETS.items() if preset.partition("@")[0] == name}


def recipe_name(algorithm: str) -> str:
    """The recipe behind what a run names: itself, or that of a preset; unknown names stay."""
    recipe = named(algorithm)
    return recipe.name.partition("@")[0] if recipe else algorithm


def _in_order(parent: str, depth: int) -> Iterator[tuple[Recipe, int]]:
    for recipe in children(parent):
        yield recipe, depth
        yield from _in_order(recipe.name, depth + 1)


def _runs_by_recipe(project: Project) -> dict[str, int]:
    counts: dict[str, int] = {}
    for algorithm, count in Run.objects.filter(project=project).values_list("algorithm").annotate(Count("pk")):
        name = recipe_name(algorithm)
        counts[name] = counts.get(name, 0) + count
    return counts
