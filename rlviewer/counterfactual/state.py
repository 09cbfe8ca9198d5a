"""What the address of the page says: a step, the recipes beside its own, one of them chosen, and its knobs moved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from django.http import QueryDict

from rlviewer.counterfactual.jobs import Question
from rlviewer.runs.models import Run
from rlviewer.runs.queries.step import number_from
from training.config import ConfigError
from training.params import Param, check_params
from training.recipes import RECIPES, Recipe, named
from training.recipes.knobs import COMMON, KNOBS

# What is shown when nobody chose: different in advantage, in loss, or in how tokens become one number.
USUAL = (
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_plus_plus",
    "opo",
    "maxrl",
    "dapo",
    "gspo",
    "cispo",
    "gmpo",
    "sapo",
    "dppo",
)
MOST_RECIPES = 24
OWN = "own"
KNOB = "k."
# Hooks whose knobs change what a stored step teaches; the others decide what would have been sampled.
REPLAYED = ("H4", "H5", "H6", "H7", "H8")
NOT_REPLAYED = frozenset({"critic_learning_rate", "critic_updates", "critic_max_grad_norm", "value_clip", "kl_target", "kl_horizon"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Knob:
    """A constant of the chosen recipe, as a form shows it."""

    name: str
    param: Param
    value: Any
    error: str = ""

    @property
    def words(self) -> str:
        return self.name.replace("_", " ")

    @property
    def kind(self) -> str:
        if self.param.options or isinstance(self.param.default, bool):
            return "choice"
        return "number" if isinstance(self.param.default, int | float) else "text"

    @property
    def options(self) -> Sequence[str]:
        return self.param.options or ("true", "false")

    @property
    def shown(self) -> str:
        return str(self.value).lower() if isinstance(self.value, bool) else f"{self.value:g}" if isinstance(self.value, float) else str(self.value)  # fmt: skip

    @property
    def top(self) -> float:
        """Where the slider ends; what lies beyond is typed."""
        default = float(self.param.default)
        top = max(4 * abs(default), abs(float(self.value)) if self.kind == "number" else 0, 4 if self.is_whole else 0.1)
        return min(top, self.param.high) if self.param.high is not None else top

    @property
    def is_whole(self) -> bool:
        return isinstance(self.param.default, int)

    @property
    def step(self) -> float:
        return 1 if self.is_whole else float(f"{(self.top - float(self.param.low or 0)) / 200:.1g}")


@dataclass(frozen=True, slots=True)
class State:
    step: int | None
    recipes: tuple[str, ...]  # beside the run's own
    chosen: str  # OWN or one of the recipes
    raw: Mapping[str, str]  # knobs of the chosen one, as written

    @classmethod
    def from_query(cls, query: QueryDict) -> Self:
        """Unknown names are left out: a mistyped address still shows the step."""
        asked = [name for text in query.getlist("recipes") for name in text.split(",")]
        recipes = tuple(dict.fromkeys(name for name in asked if name in RECIPES))[:MOST_RECIPES] or USUAL
        chosen = query.get("chosen", "")
        raw = {
            key.removeprefix(KNOB): str(value).strip() for key, value in query.items() if key.startswith(KNOB) and value
        }
        return cls(number_from(query.get("step")), recipes, chosen if chosen in recipes else OWN, raw)

    def query(self, **changes: Any) -> str:
        """Of the same page with some of it changed; another chosen recipe has no knobs moved."""
        query = QueryDict(mutable=True)
        step, chosen = changes.get("step", self.step), changes.get("chosen", self.chosen)
        if step is not None:
            query["step"] = str(step)
        if self.recipes != USUAL:
            query["recipes"] = ",".join(self.recipes)
        if chosen != OWN:
            query["chosen"] = chosen
        if chosen == self.chosen:
            for name, value in changes.get("raw", self.raw).items():
                query[KNOB + name] = value
        return query.urlencode(safe=",")


def own_recipe(run: Run) -> Recipe | None:
    return named(run.algorithm)


def knobs_of(run: Run, state: State) -> list[Knob]:
    """The constants of the chosen recipe with where they stand, and what is wrong with what was written."""
    recipe = own_recipe(run) if state.chosen == OWN else RECIPES[state.chosen]
    if recipe is None:
        return []
    told = run.plugins.get("parameters", {}) if state.chosen == OWN and isinstance(run.plugins, dict) else {}
    replayed = {name for hook in REPLAYED for entry in recipe.parts[hook] for name in KNOBS.get((hook, entry), {})}
    found = []
    for name, param in recipe.params.items():
        if name not in (replayed | COMMON.keys()) - NOT_REPLAYED or isinstance(param.default, tuple | list):
            continue
        found.append(typed_knob(name, param, state.raw.get(name, ""), told.get(name, param.default)))
    return found


def typed_knob(name: str, param: Param, text: str, stands: Any) -> Knob:
    """The knob as it was written; where that is wrong, as it stands and with what is wrong."""
    if not text:
        return Knob(name, param, stands)
    try:
        value = _typed(text, param)
        check_params({name: param}, {name: value}, where="")
    except ConfigError as problem:
        return Knob(name, param, stands, problem.message)
    except ValueError:
        return Knob(name, param, stands, f"must be a number, got {text!r}")
    return Knob(name, param, value)


def moved(run: Run, knobs: Sequence[Knob], state: State) -> dict[str, Any]:
    """The constants that differ from where the recipe, or the run, has them."""
    told = run.plugins.get("parameters", {}) if state.chosen == OWN and isinstance(run.plugins, dict) else {}
    return {knob.name: knob.value for knob in knobs if knob.value != told.get(knob.name, knob.param.default)}


def _typed(text: str, param: Param) -> Any:
    if isinstance(param.default, bool):
        return text.lower() in {"true", "on", "1"}
    if isinstance(param.default, int):
        return int(text)
    return float(text) if isinstance(param.default, float) else text


def questions(run: Run, state: State) -> tuple[Question, list[Question], Question]:
    """The run's own recipe, those beside it, and the chosen one with its knobs."""
    own = Question()
    beside = [Question(name) for name in state.recipes if name != run.algorithm]
    chosen = Question("" if state.chosen == OWN else state.chosen, moved(run, knobs_of(run, state), state))
    return own, beside, chosen
