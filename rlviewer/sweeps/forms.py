"""The form of a sweep, built from its typed definition; rows for parameters grow as they are filled."""

import tomllib
from collections.abc import Mapping
from typing import Any

from django import forms

from rlviewer.accounts.models import User
from rlviewer.launch.forms import Setting
from rlviewer.sweeps import checking
from rlviewer.sweeps.checking import Checked, IllegalPoints
from rlviewer.sweeps.spec import SweepSpec, spec_fields
from training.config import ConfigError, to_toml

MOST_PARAMETERS = 12
RANGE = ".."
BASE_HELP = "The run that every trial starts from, as TOML."
VALUES_HELP = "Values with commas between, or a range: 1e-6 .. 1e-3 log, 2 .. 8 step 2."
CHOICES_OF_LIST = "seeds"


class SweepForm(forms.Form):
    """`checked` holds the sweep once the form is valid; `problem` of the grid stands beside what causes it."""

    checked: Checked | None = None
    illegal: Checked | None = None

    def __init__(self, user: User, values: Mapping[str, str]) -> None:
        self.user = user
        self.settings = {one.name: _setting(one, kind) for one, kind in spec_fields()}
        texts = {name: setting.text(setting.default) for name, setting in self.settings.items()} | dict(values)
        super().__init__(texts, auto_id="f-%s")
        for name, setting in self.settings.items():
            self.fields[name] = setting.field()
        self.fields["base"] = forms.CharField(
            label="Base configuration",
            help_text=BASE_HELP,
            required=False,
            max_length=50_000,
            widget=forms.Textarea(attrs={"rows": 14, "spellcheck": "false", "class": "mono"}),
        )
        filled = [n for n in range(MOST_PARAMETERS) if texts.get(f"key-{n}", "").strip()]
        self.rows = range(min(MOST_PARAMETERS, (max(filled) + 2) if filled else 1))
        for number in self.rows:
            self.fields[f"key-{number}"] = forms.CharField(
                label=f"Parameter {number + 1}",
                required=False,
                max_length=120,
                widget=forms.TextInput(attrs={"list": "parameter-keys", "autocomplete": "off", "spellcheck": "false"}),
            )
            self.fields[f"values-{number}"] = forms.CharField(
                label=f"Values of parameter {number + 1}",
                required=False,
                max_length=1000,
                help_text=VALUES_HELP,
                widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
            )

    @classmethod
    def of_spec(cls, user: User, spec: SweepSpec) -> "SweepForm":
        return cls(user, spec_values(spec))

    def clean(self) -> dict[str, Any]:
        try:
            self.checked = checking.check(self._spec(), self.user)
        except IllegalPoints as error:
            self.illegal = error.checked
            self.add_error("leave_out_illegal", error.message)
        except ConfigError as error:
            self._put_beside(error)
        return self.cleaned_data

    def _spec(self) -> SweepSpec:
        raw: dict[str, Any] = {}
        for name, setting in self.settings.items():
            text = str(self.data.get(name, "")).strip()
            if setting.kind is tuple:
                raw[name] = _whole_numbers(name, text)
            else:
                raw[name] = setting.parse(text)
        try:
            raw["base"] = tomllib.loads(self.data.get("base", ""))
        except (ValueError, RecursionError) as error:
            raise ConfigError("base", f"not valid TOML: {error}") from None
        raw["parameters"] = {}
        for number in self.rows:
            key = self.data.get(f"key-{number}", "").strip()
            if not key:
                continue
            if key in raw["parameters"]:
                raise ConfigError(f"key-{number}", "is a parameter already")
            raw["parameters"][key] = parse_values(key, self.data.get(f"values-{number}", ""))
        return SweepSpec.from_dict(raw)

    def _put_beside(self, error: ConfigError) -> None:
        field = error.key
        if error.key.startswith("parameters."):
            key = error.key.removeprefix("parameters.")
            number = next((n for n in self.rows if self.data.get(f"key-{n}", "").strip() == key), None)
            is_name = "no setting is called" in error.message
            field = f"{'key' if is_name else 'values'}-{number}"
        elif error.key == "parameters":
            field = "key-0"
        if field in self.fields:
            self.add_error(field, error.message)
        else:
            self.add_error("base", str(error))

    def usual(self) -> list[forms.BoundField]:
        return [self[name] for name in ("name", "sampler", "trials", "seeds", "objective", "concurrency")]

    def more(self) -> list[forms.BoundField]:
        shown = {"name", "sampler", "trials", "seeds", "objective", "concurrency"}
        return [self[name] for name in self.settings if name not in shown]

    def parameter_rows(self) -> list[tuple[forms.BoundField, forms.BoundField, str]]:
        """Key, values, and what the setting means."""
        help_texts = self.keys()
        return [
            (self[f"key-{n}"], self[f"values-{n}"], help_texts.get(self.data.get(f"key-{n}", "").strip(), ""))
            for n in self.rows
        ]

    def keys(self) -> dict[str, str]:
        if self.checked:
            return checking.keys(self.checked.spec, self.user)
        return checking.keys(SweepSpec(), self.user)


def _setting(one: Any, kind: Any) -> Setting:
    default = (0,) if one.name == "seeds" else one.default
    kind = tuple if one.name == "seeds" else kind
    return Setting(one.name, kind, default, one.metadata.get("help", ""), tuple(one.metadata.get("options", ())))


def _whole_numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(name, f"must be whole numbers with commas between, got {text!r}") from None


def parse_values(key: str, text: str) -> dict[str, Any]:
    """The search space of one parameter as a person writes it.

    Raises:
        ConfigError: it is neither a list of values nor a range.
    """
    where = f"parameters.{key}"
    if RANGE not in text:
        choices = [_value(part) for part in _split(text)]
        if not choices:
            raise ConfigError(where, "needs values")
        return {"choices": choices}
    low, _, rest = text.partition(RANGE)
    words = rest.split()
    table: dict[str, Any] = {"low": _value(low.strip()), "high": _value(words[0]) if words else ""}
    match words[1:]:
        case []:
            return table
        case ["log"]:
            return table | {"log": True}
        case ["step", step]:
            return table | {"step": _value(step)}
    raise ConfigError(where, "a range is LOW .. HIGH, with log or step STEP after it")


def _split(text: str) -> list[str]:
    """At commas outside brackets and quotes."""
    parts, depth, quoted = [""], 0, False
    for char in text:
        quoted ^= char == '"'
        depth += (char in "[{") - (char in "]}")
        if char == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def _value(text: str) -> Any:
    """What TOML reads, with on and off as the form says them; everything else is text."""
    text = {"on": "true", "off": "false"}.get(text, text)
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError, KeyError):
        return text


def spec_values(spec: SweepSpec) -> dict[str, str]:
    """A definition as the form shows it."""
    raw = spec.to_dict()
    values = {one.name: _setting(one, kind).text(raw[one.name]) for one, kind in spec_fields()}
    values["base"] = to_toml(spec.base)
    for number, (key, table) in enumerate(spec.parameters.items()):
        values[f"key-{number}"], values[f"values-{number}"] = key, _written(table)
    return values


def _written(table: dict[str, Any]) -> str:
    if "choices" in table:
        return ", ".join(_word(value) for value in table["choices"])
    end = " log" if table.get("log") else f" step {table['step']}" if "step" in table else ""
    return f"{table['low']} {RANGE} {table['high']}{end}"


def _word(value: Any) -> str:
    from training.config import toml_value

    if isinstance(value, str) and _value(value) == value and "," not in value:
        return value
    return toml_value(value)
