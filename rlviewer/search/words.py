"""A filter and an order in plain words."""

import math
from typing import Any as AnyValue

from rlviewer.runs.templatetags.show import split_name
from rlviewer.search.browse import Sort
from rlviewer.search.fields import Field
from rlviewer.search.tree import All, Any, Comparison, Node, Not, Prefix, Range, Text

OPERATORS = {"<": "below", "<=": "at most", ">": "above", ">=": "at least"}
ENDINGS = {0: "that ended by themselves", 1: "cut at the token limit", 2: "ended by an error"}


def meaning(tree: All, sort: Sort) -> str:
    """`Rollouts with reward below 0.5 and cut at the token limit, newest first`."""
    parts = [_words(part) for part in tree.parts]
    return f"Rollouts{''.join(f' {part}' if number == 0 else f' and {part}' for number, part in enumerate(parts))}, {order(sort)}"


def order(sort: Sort) -> str:
    if sort.seed is not None:
        return f"at random (seed {sort.seed})"
    if sort.field.name == "id":
        return "newest first" if sort.is_descending else "oldest first"
    if sort.field.kind in {"text", "choice"}:
        return f"by {sort.field.label}{', last first' if sort.is_descending else ''}"
    if sort.field.kind == "bool":
        return f"{sort.field.label} {'first' if sort.is_descending else 'last'}"
    return f"by {sort.field.label}, {'highest' if sort.is_descending else 'lowest'} first"


def _words(node: Node) -> str:
    if isinstance(node, Not):
        return f"not ({_words(node.part)})"
    if isinstance(node, All | Any):
        joined = f" {'or' if isinstance(node, Any) else 'and'} ".join(_words(part) for part in node.parts)
        return f"({joined})" if len(node.parts) > 1 else joined
    if isinstance(node, Text):
        what = {
            "words": "the words",
            "prefix": "a word that begins with",
            "substring": "the characters",
            "regex": "a match of",
        }
        where = " in the prompt" if node.of == "prompt" else ""
        return f"with {what[node.kind]} “{node.text}”{where}{' in any case' if node.ignores_case else ''}"
    return _comparison(node)


def _comparison(node: Comparison) -> str:
    field = node.field
    if node.op != "=":
        return f"with {field.label} {OPERATORS[node.op]} {_value(field, node.values[0])}"
    if all(isinstance(value, bool) for value in node.values) and len(node.values) == 1:
        is_true = bool(node.values[0])
        if field.kind == "filled":
            return f"of {'a dead group' if is_true else 'live groups'}"
        if field.name == "correct":
            return "that are correct" if is_true else "that are wrong"
        return f"that were {'' if is_true else 'not '}{field.label}"
    if field.name == "stop":
        return " or ".join(ENDINGS[value] if isinstance(value, int) else "of unknown ending" for value in node.values)
    if field.choices is not None:
        named: dict[AnyValue, str] = {value: label for label, value in field.choices.items()}
        return f"with {field.label} {' or '.join(named.get(value, 'not recorded') for value in node.values)}"
    if field.name == "split":
        return " or ".join(
            "of training" if v == "train" else f"of the {split_name(str(v))} evaluation" for v in node.values
        )
    return f"with {field.label} {' or '.join(_value(field, value) for value in node.values)}"


def _value(field: Field, value: AnyValue) -> str:
    unit = f" {field.unit}" if field.unit else ""
    if value is None:
        return "not recorded"
    if isinstance(value, Range):
        if value.low is None or value.high is None:
            end = value.high if value.low is None else value.low
            return f"{'up to' if value.low is None else 'from'} {end:g}{unit}"
        return f"from {value.low:g} to {value.high:g}{unit}"
    if isinstance(value, Prefix):
        return f"“{value.text}…”"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value or "“”"
    return (
        "NaN"
        if isinstance(value, float) and math.isnan(value)
        else f"{value}{unit}"
        if isinstance(value, int)
        else f"{value:g}{unit}"
    )
