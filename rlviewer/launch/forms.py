"""The launch form of one run, built from the configuration, the task family and the recipe: a new knob needs no form code."""

import dataclasses
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from django import forms
from django.http import QueryDict

from rlviewer.accounts.models import User
from rlviewer.launch.model_folders import check_model, offered
from rlviewer.launch.presets import Preset
from training import legality
from training.config import ConfigError, RunConfig
from training.params import Param
from training.recipes import PRESETS, RECIPES, named
from training.tasks import catalog
from training.tasks.base import TaskFamily

# What a person usually decides, and what stands folded below it; a name that ends in a dot means all that it starts.
SECTIONS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("What", ("name", "task.name", "task.params."), ("task.",)),
    ("Who", ("model.path",), ("model.",)),
    ("How", ("algorithm", "optimizer.learning_rate", "sampling.group_size"), ("algorithm_params.", "optimizer.")),
    ("Budget", ("steps", "sampling.prompts_per_step", "sampling.max_new_tokens", "eval.every_steps", "seed"), ("",)),
)
# Which task and algorithm the form showed: the knobs sent with it belong to those.
SHOWN_TASK, SHOWN_ALGORITHM = "shown_task", "shown_algorithm"
LABELS = {
    "optimizer.name": "Optimiser",
    "task.name": "Task",
    "model.path": "Model",
    "name": "Name",
    "eval.every_steps": "Evaluate every",
}
MAX_TEXT = 300
ON, OFF = "on", "off"


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the form: a setting of the configuration by its dotted key."""

    key: str
    kind: type
    default: Any
    help: str = ""
    options: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    titles: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )  # how options are shown; without one as they are

    @property
    def label(self) -> str:
        return LABELS.get(self.key) or self.key.rpartition(".")[2].replace("_", " ").capitalize()

    def text(self, value: Any) -> str:
        """`value` as the form shows it."""
        if self.kind is bool:
            return ON if value else OFF
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    def parse(self, text: str) -> Any:
        """The typed value of what a person wrote.

        Raises:
            ConfigError: it is no value of this kind; bounds are checked by the configuration itself.
        """
        if self.kind is bool:
            if text not in {ON, OFF}:
                raise ConfigError(self.key, f"must be {ON} or {OFF}, got {text!r}")
            return text == ON
        if self.kind in {int, float}:
            noun = "a whole number" if self.kind is int else "a number"
            try:
                return self.kind(text[:40])
            except ValueError:
                raise ConfigError(self.key, f"must be {noun}, got {text!r}" if text else f"needs {noun}") from None
        if self.kind is tuple:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        return text

    def field(self) -> forms.Field:
        widget: forms.Widget = forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"})
        if options := (ON, OFF) if self.kind is bool else self.options:
            # A menu says "off" as well, which an unticked box would not send.
            widget = forms.Select(choices=[(option, self.titles.get(option, option)) for option in options])
        elif self.suggestions:
            widget.attrs["list"] = f"{self.key}-list"
        elif self.kind in {int, float}:
            widget.attrs["inputmode"] = "numeric" if self.kind is int else "decimal"
        return forms.CharField(
            label=self.label, help_text=self.help, required=False, max_length=MAX_TEXT, widget=widget
        )


def config_settings(user: User) -> Iterator[Setting]:
    """Every setting of RunConfig but the free tables."""
    suggestions = {"task.name": tuple(catalog.FAMILIES)}
    options = {"algorithm": (*RECIPES, *PRESETS)}
    titles = {"algorithm": algorithm_titles()}
    # A site admin may write another folder, so the models are suggestions to them and a choice to everybody else.
    (suggestions if user.is_superuser else options)["model.path"] = tuple(offered())
    for prefix, cls in (("", RunConfig), *_tables()):
        hints = typing.get_type_hints(cls)
        for spec in dataclasses.fields(cls):
            key, kind = prefix + spec.name, hints[spec.name]
            if kind in {int, float, str, bool}:
                chosen = options.get(key) or spec.metadata.get("options", ())
                # One option is no choice.
                if len(chosen) != 1 or key in options:
                    help_text = spec.metadata.get("help", "")
                    yield Setting(
                        key, kind, spec.default, help_text, chosen, suggestions.get(key, ()), titles.get(key, {})
                    )


def algorithm_titles() -> dict[str, str]:
    """What people call the algorithms, and whose values a preset takes."""
    found = {name: recipe.title for name, recipe in RECIPES.items()}
    for preset in PRESETS:
        name, _, trainer = preset.partition("@")
        found[preset] = f"{found[name]}, as {trainer} sets it"
    return found


def _tables() -> Iterator[tuple[str, Any]]:
    for name, kind in typing.get_type_hints(RunConfig).items():
        if dataclasses.is_dataclass(kind):
            yield f"{name}.", kind


def knob_settings(prefix: str, knobs: Mapping[str, Param]) -> Iterator[Setting]:
    for name, knob in knobs.items():
        if isinstance(knob.default, bool | int | float | str | tuple):
            yield Setting(f"{prefix}{name}", type(knob.default), knob.default, _with_bounds(knob), tuple(knob.options))


def _with_bounds(knob: Param) -> str:
    if knob.low is None and knob.high is None:
        return knob.help
    if knob.high is None:
        return f"{knob.help} At least {knob.low:g}."
    return (
        f"{knob.help} {knob.low:g} to {knob.high:g}." if knob.low is not None else f"{knob.help} At most {knob.high:g}."
    )


class LaunchForm(forms.Form):
    """`config` holds the configuration once the form is valid; an error stands beside its field."""

    config: RunConfig | None = None

    def __init__(self, user: User, values: Mapping[str, str]) -> None:
        self.user = user
        self.chosen_task, self.chosen_algorithm = values.get("task.name", ""), values.get("algorithm", "")
        self.family, self.recipe = _family(self.chosen_task), named(self.chosen_algorithm)
        found = [
            *config_settings(user),
            *knob_settings("task.params.", self.family.params if self.family else {}),
            *knob_settings("algorithm_params.", self.recipe.params if self.recipe else {}),
        ]
        self.settings = {setting.key: setting for setting in found}
        texts = {key: values.get(key, setting.text(setting.default)) for key, setting in self.settings.items()}
        super().__init__(texts, auto_id="f-%s")
        self.fields.update({key: setting.field() for key, setting in self.settings.items()})

    @classmethod
    def from_query(cls, user: User, query: QueryDict, preset: Preset) -> Self:
        """The preset with what the query changes; knobs of another task or algorithm than the chosen one are dropped.

        An algorithm that is chosen anew brings what its recipe starts from.
        """
        values, sent = preset_values(user, preset), {name: query.get(name, "") for name in query}
        algorithm = sent.get("algorithm", values["algorithm"])
        if algorithm != sent.get(SHOWN_ALGORITHM, values["algorithm"]):
            wanted = recipe_values(algorithm)
            values |= wanted
            if SHOWN_ALGORITHM in sent:
                sent = {name: value for name, value in sent.items() if name not in wanted}
        for shown, key, prefix in (
            (SHOWN_TASK, "task.name", "task.params."),
            (SHOWN_ALGORITHM, "algorithm", "algorithm_params."),
        ):
            if sent.get(key, values[key]) != values[key]:
                values = _without(values, prefix)
            if shown in sent and sent[shown] != sent.get(key):
                sent = _without(sent, prefix)
        return cls(user, {**values, **sent})

    def clean(self) -> dict[str, Any]:
        self.config, problems = self._build()
        for key, message in problems.items():
            if key in self.fields and key not in self.errors:
                self.add_error(key, message)
            elif key not in self.fields:
                self.add_error(None, f"{key}: {message}" if key else message)
        return self.cleaned_data

    def _build(self) -> tuple[RunConfig | None, dict[str, str]]:
        """The configuration, or every problem by its key: a setting at fault is set aside to find the next one."""
        problems: dict[str, str] = {}
        raw: dict[str, Any] = {"task": {"params": {}}, "algorithm_params": {}}
        for key, setting in self.settings.items():
            try:
                value = setting.parse(str(self.data.get(key, "")).strip())
                if key == "name" and not value:
                    raise ConfigError(key, "needs a name, so that others find the run")
                if key == "model.path":
                    check_model(value, self.user)
            except ConfigError as error:
                problems[error.key] = error.message
                value = setting.default
            _put(raw, key, value)
        for _ in range(len(self.settings)):
            try:
                config = RunConfig.from_dict(raw)
                legality.check(config)
                return (None if problems else config), problems
            except ConfigError as error:
                problems.setdefault(error.key, error.message)
                if error.key not in self.settings or _get(raw, error.key) == self.settings[error.key].default:
                    break
                self._set_aside(raw, error.key)
        return None, problems

    def _set_aside(self, raw: dict[str, Any], key: str) -> None:
        _put(raw, key, self.settings[key].default)
        if key == "task.name":
            raw["task"]["params"] = {}
        elif key == "algorithm":
            raw["algorithm_params"] = {}

    def sections(self) -> Iterator[dict[str, Any]]:
        """Title, usual and folded fields of each section; every setting stands in one place."""
        usual = [[key for name in names for key in _matching(name, self.settings)] for _, names, _ in SECTIONS]
        left = [key for key in self.settings if not any(key in keys for keys in usual)]
        for (title, _, folded), shown in zip(SECTIONS, usual, strict=True):
            more = [key for name in folded for key in _matching(name, left)]
            left = [key for key in left if key not in more]
            yield {
                "title": title,
                "fields": [self[key] for key in shown],
                "more": [self[key] for key in more],
                "is_open": any(key in self.errors for key in more),
            }

    def suggestions(self) -> dict[str, tuple[str, ...]]:
        return {key: setting.suggestions for key, setting in self.settings.items() if setting.suggestions}


def _matching(name: str, keys: Iterable[str]) -> list[str]:
    return [key for key in keys if key == name or (key.startswith(name) and name[-1:] in {".", ""})]


def _without(values: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key: value for key, value in values.items() if not key.startswith(prefix)}


def _family(name: str) -> TaskFamily | None:
    try:
        return catalog.resolve(name)
    except ConfigError:
        return None


def recipe_values(algorithm: str) -> dict[str, str]:
    """What the recipe starts from, by dotted key, as the form shows it."""
    recipe = named(algorithm)
    tables = recipe.settings if recipe else {}
    return {f"{table}.{key}": str(value) for table, keys in tables.items() for key, value in keys.items()}


def preset_values(user: User, preset: Preset) -> dict[str, str]:
    """The preset's settings as the form shows them."""
    raw = preset.run_config().to_dict()
    flat: dict[str, str] = {}
    for setting in config_settings(user):
        flat[setting.key] = setting.text(_get(raw, setting.key))
    for prefix in ("task.params", "algorithm_params"):
        for name, value in _get(raw, prefix).items():
            flat[f"{prefix}.{name}"] = Setting(name, type(value), value).text(value)
    return flat


def _get(raw: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        raw = raw[part]
    return raw


def _put(raw: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        raw = raw.setdefault(part, {})
    raw[last] = value
