"""A filter's text with a condition more or less; every other word of it stays as the person wrote it."""

from collections.abc import Iterable

from rlviewer.search.fields import Field
from rlviewer.search.language import BARE_VALUE
from rlviewer.search.tree import All, Comparison, Value


def own_terms(tree: All, field: Field) -> list[Comparison]:
    """Conditions on `field` that must hold by themselves: none that is negated, bracketed or one of several."""
    return [part for part in tree.parts if isinstance(part, Comparison) and part.field.name == field.name]


def without(text: str, tree: All, field: Field) -> str:
    """The filter without the field's own terms."""
    kept, at = [], 0
    for term in own_terms(tree, field):
        kept.append(text[at : term.start].strip())
        at = term.end
    return " ".join(filter(None, [*kept, text[at:].strip()]))


def with_values(text: str, tree: All, field: Field, values: Iterable[Value]) -> str:
    """The filter with `field:a,b` in place of the field's own terms; no value, no term."""
    spelled = ",".join(spell(field, value) for value in values)
    rest = without(text, tree, field)
    return f"{rest} {field.name}:{spelled}".strip() if spelled else rest


def spell(field: Field, value: Value) -> str:
    """A stored value as a person would write it."""
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if field.choices is not None:
        return next((name for name, number in field.choices.items() if number == value), str(value))
    text = str(value)
    is_plain = BARE_VALUE.fullmatch(text) and text.lower() != "none" and text[0] not in "\"'" and text[-1] != "*"
    if field.kind != "text" or is_plain:
        return text
    mark = "'" if '"' in text else '"'
    return mark + text.replace(mark, "\\" + mark) + mark
