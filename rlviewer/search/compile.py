"""A filter's tree as conditions for the database. Every value is a parameter; names of columns come from the table of fields."""

import math
from dataclasses import dataclass, replace
from typing import Any as AnyType

from django.contrib.postgres.search import SearchQuery, SearchVector
from django.db import DataError, OperationalError, connection, transaction
from django.db.models import BooleanField, ExpressionWrapper, FloatField, Func, OuterRef, Q, Subquery, Sum, Value
from django.db.models.fields import Field as Column
from django.db.models.functions import StrIndex
from django.db.models.lookups import Exact, GreaterThan, GreaterThanOrEqual, IsNull, LessThan, LessThanOrEqual

from rlviewer.lib.text import bytes_from_str, text_from_bytes
from rlviewer.review.models import Label
from rlviewer.runs.models import RewardPart
from rlviewer.search.fields import Field
from rlviewer.search.language import FilterError
from rlviewer.search.models import PromptText
from rlviewer.search.tree import All, Any, Comparison, Node, Not, Prefix, Range, Text

TEXT = "rollouttext__completion"
# One try of a regular expression on an empty text: building it must not take longer.
PROBE_MS = 1000
NAN = math.nan


class IsNotTrue(Func):
    """False or unknown: a condition and its negation share no rollout and leave none out."""

    template = "(%(expressions)s) IS NOT TRUE"
    output_field = BooleanField()


class PrefixQuery(Func):
    """The words as a phrase whose last is only the beginning of one; null when there is none."""

    template = "(NULLIF(phraseto_tsquery('simple', %(expressions)s)::text, '') || ':*')::tsquery"
    output_field: "Column[AnyType, AnyType]" = SearchQuery("").output_field


@dataclass(frozen=True, slots=True)
class Conditions:
    """`stored` asks narrow rows, `words` the index of words. `scanned` reads texts, so whoever asks goes window by window."""

    stored: Q
    words: Q | None
    scanned: Q | None


def compile_filter(tree: All) -> Conditions:
    """Conditions on `Rollout`. Top-level parts are kept apart by what answers them.

    Raises:
        FilterError: a regular expression that Postgres does not take.
    """
    parts: dict[str, list[Q]] = {"stored": [], "words": [], "scanned": []}
    for part in tree.parts:
        kind = "scanned" if _scans(part) else "words" if _reads_text(part) else "stored"
        parts[kind].append(condition(part))
    # An inner join, else Postgres reads every text.
    words = Q(*parts["words"], rollouttext__isnull=False) if parts["words"] else None
    return Conditions(Q(*parts["stored"]), words, Q(*parts["scanned"]) if parts["scanned"] else None)


def condition(node: Node) -> Q:
    if isinstance(node, All):
        return Q(*(condition(part) for part in node.parts))
    if isinstance(node, Any):
        either = Q()
        for part in node.parts:
            either |= condition(part)
        return either
    if isinstance(node, Not):
        return Q(IsNotTrue(ExpressionWrapper(condition(node.part), output_field=BooleanField())))
    if isinstance(node, Text):
        return _text(node)
    return _comparison(node)


def escaped(text: str) -> str:
    """As texts are stored."""
    return text_from_bytes(bytes_from_str(text))


def _parts(node: Node) -> tuple[Node, ...]:
    if isinstance(node, All | Any):
        return node.parts
    return (node.part,) if isinstance(node, Not) else ()


def _scans(node: Node) -> bool:
    """Whether it must read texts: the index finds words, and one of several words, but not where they are missing."""
    if isinstance(node, Text):
        return node.of == "completion" and node.kind in {"substring", "regex"}
    parts = _parts(node)
    is_one_of_words = isinstance(node, Any) and all(isinstance(p, Text) and p.of == "completion" for p in parts)
    is_mixed = not isinstance(node, All) and not is_one_of_words and _reads_text(node)
    return is_mixed or any(_scans(part) for part in parts)


def _reads_text(node: Node) -> bool:
    if isinstance(node, Text):
        return node.of == "completion"
    return any(_reads_text(part) for part in _parts(node))


def _text(node: Text) -> Q:
    """Prompts are few beside rollouts and short: all of them are asked, whatever is looked for."""
    if node.of == "prompt":
        return Q(group__prompt__in=PromptText.objects.filter(_matches(node, "text")).values("prompt"))
    return _matches(node, TEXT)


def _matches(node: Text, column: str) -> Q:
    text = escaped(node.text)
    if node.kind == "substring" and not node.ignores_case:
        # Skips ahead by the length of what it looks for; LIKE goes byte by byte.
        return Q(GreaterThan(StrIndex(column, Value(text)), 0))
    if node.kind == "substring":
        return Q(**{f"{column}__icontains": text})
    if node.kind == "regex":
        _probe(text, node)
        return Q(**{f"{column}__{'iregex' if node.ignores_case else 'regex'}": text})
    query = (
        PrefixQuery(Value(text)) if node.kind == "prefix" else SearchQuery(text, config="simple", search_type="phrase")
    )
    # Exactly the indexed expression, else Postgres reads every text.
    return Q(Matches(SearchVector(column, config="simple"), query))


class Matches(Exact):
    """`vector @@ query`."""

    def as_sql(self, compiler: AnyType, connection: AnyType) -> tuple[str, tuple[AnyType, ...]]:
        left, left_params = self.process_lhs(compiler, connection)
        right, right_params = self.process_rhs(compiler, connection)
        return f"{left} @@ {right}", (*left_params, *right_params)


def _probe(pattern: str, node: Text) -> None:
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(PROBE_MS)])
            cursor.execute("SELECT '' ~ %s", [pattern])
    except DataError as error:
        reason = str(error.__cause__ or error).splitlines()[0].removeprefix("invalid regular expression: ")
        raise FilterError(f"Not a regular expression: {reason}.", node.start, node.end) from None
    except OperationalError:
        raise FilterError("This regular expression is too complex. Make it shorter.", node.start, node.end) from None


def _comparison(node: Comparison) -> Q:
    field = node.field
    if node.op == "=":
        either = Q()
        for value in node.values:
            either |= _equal(field, value)
        return either
    (value,) = node.values
    assert isinstance(value, int | float)
    lookup = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}[node.op]
    return _bounded(field, **{lookup: value})


def _labelled(field: Field, value: AnyType) -> Q:
    """One label of the rollout fits. Labels are few beside rollouts: they are found first."""
    given = Label.objects.exclude(thumb=None, name=None)  # a note alone is no label
    if value is None:
        given = given.filter(**{f"{field.path}__isnull": False})
    elif field.path:
        given = given.filter(_equal(replace(field, is_label=False), value))
    fits = Q(pk__in=given.values("rollout"))
    return fits if value not in {None, False} else ~fits


def _equal(field: Field, value: AnyType) -> Q:
    path = field.path
    if field.is_label:
        return _labelled(field, value)
    if value is None:
        is_empty = field.kind in {"text", "filled"} and not field.nullable
        return Q(**{path: ""}) if is_empty else _where(field, "isnull", True)
    if field.kind == "filled":
        return ~Q(**{path: ""}) if value else Q(**{path: ""})
    if isinstance(value, Range):
        ends = {"gte": value.low, "lte": value.high}
        return _bounded(field, **{name: end for name, end in ends.items() if end is not None})
    if isinstance(value, Prefix):
        return Q(**{f"{path}__startswith": escaped(value.text)})
    if isinstance(value, str):
        return Q(**{path: escaped(value)})
    return _where(field, "exact", value)


PART_LOOKUPS = {
    lookup.lookup_name: lookup for lookup in (Exact, IsNull, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual)
}


def _where(field: Field, lookup: str, value: AnyType) -> Q:
    if not field.part:
        return Q(**{f"{field.path}__{lookup}": value})
    spans = RewardPart.objects.filter(rollout=OuterRef("pk"), name=escaped(field.part)).order_by()
    total = Subquery(spans.values("rollout").annotate(total=Sum("value")).values("total"), output_field=FloatField())
    return Q(PART_LOOKUPS[lookup](total, value))


def _bounded(field: Field, **bounds: float) -> Q:
    found = Q(*(_where(field, lookup, value) for lookup, value in bounds.items()))
    # Postgres holds NaN for larger than every number; nobody who asks for large values wants it.
    is_open = field.kind == "float" and not {"lt", "lte"} & set(bounds)
    return found & _where(field, "lt", NAN) if is_open else found
