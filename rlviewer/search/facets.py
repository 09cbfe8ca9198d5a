"""Counts beside the list: how what is found spreads over task, stop reason, correctness, reward, length and step.

A facet's own terms are left out of its counts, so that the other choices show what they would find.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import OperationalError, connection
from django.db.models import F, QuerySet

from rlviewer.runs.models import Rollout, Step, StopReason
from rlviewer.runs.templatetags.show import significant
from rlviewer.search.browse import Scope, Search, expected, time_limit
from rlviewer.search.fields import FIELDS, Field
from rlviewer.search.rewrite import own_terms, with_values, without
from rlviewer.search.totals import BY_ID
from rlviewer.search.tree import Range, Value

# Up to so many rollouts are counted in whole when Postgres can in this time; else the newest of them are.
WHOLE, WHOLE_MS = 200_000, 1500
NEWEST, NEWEST_OF_TEXTS = 20_000, 1_000
MOST_OPTIONS = 8
BARS = 24
OPTIONS = ("task", "stop", "correct")
HISTOGRAMS = ("reward", "length", "step")


@dataclass(frozen=True, slots=True)
class Option:
    """One value; `filter` is the filter's text with it added, or taken away where it `is_on`."""

    label: str
    count: int
    filter: str
    is_on: bool


@dataclass(frozen=True, slots=True)
class Choice:
    field: Field
    options: Sequence[Option]
    more: int  # values that are not listed


@dataclass(frozen=True, slots=True)
class Bar:
    low: float
    high: float
    count: int
    height: float  # of the fullest, 0 to 1; what holds anything can be seen

    @property
    def top(self) -> str:
        return f"{1 - self.height:.3f}"

    @property
    def words(self) -> str:
        ends = dict.fromkeys((significant(self.low), significant(self.high)))
        return f"{' to '.join(ends)}: {self.count:,}"


@dataclass(frozen=True, slots=True)
class Histogram:
    """`rest` is the filter without the field's terms; `chosen` the range that the filter asks for."""

    field: Field
    bars: Sequence[Bar]
    low: float
    high: float
    missing: int  # without a value, or not finite
    rest: str
    chosen: Range | None
    is_filtered: bool
    of: int | None

    @property
    def is_whole(self) -> bool:
        return self.field.kind == "int"

    @property
    def ends(self) -> tuple[str, str]:
        return significant(self.low), significant(self.high)


@dataclass(frozen=True, slots=True)
class Facets:
    choices: Sequence[Choice]
    histograms: Sequence[Histogram]
    of: int | None  # counts are of so many of the newest; None: of all


@dataclass(frozen=True, slots=True)
class _Counts:
    """Rows of one filter: how many hold each value, and each bar of the histograms."""

    values: Mapping[str, Mapping[Any, int]]
    bounds: Mapping[str, tuple[float, float] | None]
    total: int
    of: int | None  # as Facets
    whole: frozenset[str] = frozenset()  # facets that are of all even so


def facets(scope: Scope, text: str) -> Facets:
    """One count of rows, one more for each facet that the filter itself speaks of."""
    whole = Search(scope, text)
    counted: dict[tuple[int, ...], _Counts] = {}

    def counts(field: Field) -> _Counts:
        own = own_terms(whole.tree, field)
        key = tuple(term.start for term in own)
        if key not in counted:
            counted[key] = _count(
                Search(scope, extra=[part for part in whole.tree.parts if part not in own]) if own else whole
            )
        return counted[key]

    choices = [_choice(whole, FIELDS[name], counts(FIELDS[name])) for name in OPTIONS]
    histograms = [_histogram(whole, FIELDS[name], counts(FIELDS[name])) for name in HISTOGRAMS]
    sampled = [part.of for part in counted.values() if part.of is not None]
    return Facets([c for c in choices if c.options], [h for h in histograms if h.bars], max(sampled, default=None))


def _count(search: Search) -> _Counts:
    rows = search.counting.rows
    if search.counting.scanned is not None:
        hits = search.find(BY_ID, limit=NEWEST_OF_TEXTS, way=search.counting)
        of = len(hits.places) if hits.has_more or hits.resume else None
        return _counted(Rollout.objects.filter(pk__in=hits.ids), of)
    if expected(rows) <= WHOLE:
        try:
            with time_limit(WHOLE_MS):
                return _counted(rows, None)
        except OperationalError as error:
            if "statement timeout" not in str(error):
                raise
    # What is gathered is sorted; going along the order, Postgres would read texts on its way.
    newest_first = (F("pk") + 0).desc() if search.counting.is_gathered else F("pk").desc()
    sample = _counted(rows.order_by(newest_first)[:NEWEST], NEWEST)
    if sample.total < NEWEST:
        return replace(sample, of=None)
    steps = search.whole_steps()
    return sample if steps is None else _with_all_steps(sample, steps)


def _counted(rows: QuerySet[Rollout], of: int | None) -> _Counts:
    """All counts in one statement."""
    named = rows.values(**{f"f_{name}": F(FIELDS[name].path) for name in (*OPTIONS, *HISTOGRAMS)})
    inner, params = named.query.sql_with_params()
    parts = [
        f"SELECT '{name}', f_{name}::text, count(*), NULL::float8, NULL::float8 FROM found GROUP BY 2"  # noqa: S608
        for name in OPTIONS
    ]
    parts += [_bars_sql(name) for name in HISTOGRAMS]
    values: dict[str, dict[Any, int]] = {name: {} for name in (*OPTIONS, *HISTOGRAMS)}
    bounds: dict[str, tuple[float, float] | None] = dict.fromkeys(HISTOGRAMS)
    with connection.cursor() as cursor:
        cursor.execute(f"WITH found AS MATERIALIZED ({inner}) {' UNION ALL '.join(parts)}", params)
        for name, value, count, low, high in cursor:
            values[name][value] = count
            if low is not None:
                bounds[name] = (low, high)
    return _Counts(values, bounds, sum(values["stop"].values()), of)


def _with_all_steps(sample: _Counts, steps: QuerySet[Step]) -> _Counts:
    """Steps know themselves how many rollouts they hold."""
    stored = [(index, count) for index, count in steps.values_list("index", "rollout_count") if count]
    low, high = min(stored)[0], max(stored)[0]
    bars: Counter[str | None] = Counter()
    for index, count in stored:
        bars[str(1 + min(BARS - 1, (index - low) * BARS // max(1, high - low)))] += count
    return replace(
        sample,
        values={**sample.values, "step": bars},
        bounds={**sample.bounds, "step": (low, high)},
        whole=frozenset({"step"}),
    )


def _bars_sql(name: str) -> str:
    """How many lie in each range between the least and the largest finite value; null: no such value."""
    number = f"f_{name}::float8"
    is_finite = f"{number} > '-inf' AND {number} < 'inf'"  # NaN is above infinity
    return (  # names of ours only
        f"SELECT '{name}', CASE WHEN {is_finite} THEN CASE WHEN low < high"  # noqa: S608
        f" THEN least(width_bucket({number}, low, high, {BARS}), {BARS}) ELSE 1 END END::text, count(*), low, high"
        f" FROM found, (SELECT min({number}) low, max({number}) high FROM found WHERE {is_finite}) ends GROUP BY 2, 4, 5"
    )


def _choice(search: Search, field: Field, counts: _Counts) -> Choice:
    chosen = [value for term in own_terms(search.tree, field) if term.op == "=" for value in term.values]
    found = sorted(counts.values[field.name].items(), key=lambda item: (-item[1], str(item[0])))
    stored = [(_stored(field, text), count) for text, count in found]
    # What is chosen stays in sight, so that it can be taken away again.
    listed = [item for place, item in enumerate(stored) if place < MOST_OPTIONS or item[0] in chosen]
    listed += [(value, 0) for value in chosen if value not in [kept for kept, _ in listed] and _is_plain(value)]
    options = []
    for value, count in listed:
        is_on = value in chosen
        values = [kept for kept in chosen if kept != value] if is_on else [*chosen, value]
        text = with_values(search.text, search.tree, field, values)
        options.append(Option(_label(field, value), count, text, is_on))
    return Choice(field, options, len(stored) - min(len(stored), MOST_OPTIONS))


def _is_plain(value: Value) -> bool:
    return value is None or isinstance(value, bool | int | str)


def _stored(field: Field, text: str | None) -> Value:
    if text is None or text == "":
        return None
    if field.kind == "bool":
        return text == "true"
    return int(text) if field.kind == "choice" else text


def _label(field: Field, value: Value) -> str:
    if field.name == "stop" and isinstance(value, int):
        return {"stop": "ended by itself", "length": "cut", "error": "error"}[StopReason(value).label]
    if field.name == "correct":
        return "not judged" if value is None else "right" if value else "wrong"
    return "none" if value is None else str(value)


def _histogram(search: Search, field: Field, counts: _Counts) -> Histogram:
    own, found, ends = own_terms(search.tree, field), counts.values[field.name], counts.bounds[field.name]
    bars: list[Bar] = []
    low, high = ends or (0.0, 0.0)
    if ends:
        number = BARS if low < high else 1
        width, top = (high - low) / number, max(count for place, count in found.items() if place is not None)
        for place in range(number):
            count = found.get(str(place + 1), 0)
            bars.append(Bar(low + place * width, low + (place + 1) * width, count, max(count / top, 0.04)))
    chosen = own[0].values[0] if len(own) == 1 and len(own[0].values) == 1 else None
    return Histogram(
        field,
        bars,
        low,
        high,
        found.get(None, 0),
        without(search.text, search.tree, field),
        chosen if isinstance(chosen, Range) else None,
        bool(own),
        None if field.name in counts.whole else counts.of,
    )
