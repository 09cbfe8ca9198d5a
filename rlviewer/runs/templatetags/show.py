"""Template filters and tags that show numbers, times and states the same way everywhere.

Numbers have three significant digits; `<data>` carries the exact value, shown on hover and used when copied. Missing is an em
dash with its reason on hover, never 0.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from django import template
from django.http import QueryDict
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from rlviewer.charts import sparklines
from rlviewer.lib import colour
from rlviewer.lib.icons import ICONS, STATE_ICONS

register = template.Library()
NOT_RECORDED = "not recorded"
THOUSANDS = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"))
UNITS = ((31_536_000, "y"), (604_800, "w"), (86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def significant(value: float, digits: int = 3) -> str:
    """`value` with three significant digits, in plain notation where that stays short; non-finite values by name."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0:
        return "0"
    if isinstance(value, int) and abs(value) < 10_000:
        text = f"{value:,}"
    elif abs(value) < 1e-4 or abs(value) >= 1e15:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        text = f"{mantissa}e{int(exponent)}"
    else:
        # Rounded first: 999,960 must become 1.00 M, not 1000 k.
        rounded = float(f"{value:.{digits - 1}e}")
        size, unit = (
            next(((s, u) for s, u in THOUSANDS if abs(rounded) >= s), (1, "")) if abs(value) >= 1e4 else (1, "")
        )
        rounded /= size
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded)) + 1e-9))
        text = f"{rounded:.{decimals}f}{unit}"
    return text.replace("-", "−")


def _data(exact: float, text: str, css: str = "num") -> SafeString:
    name = repr(exact) if math.isfinite(exact) else significant(exact)
    # All of it is ours and holds nothing to escape; a page has hundreds.
    return mark_safe(f'<data class="{css}" value="{name}" title="{name}">{text}</data>')  # noqa: S308


@register.filter
@lru_cache(maxsize=256)
def missing(reason: str = NOT_RECORDED) -> SafeString:
    """An em dash with the reason on hover."""
    return format_html(
        '<span class="missing" title="{0}"><span aria-hidden="true">—</span>'
        '<span class="visually-hidden">{0}</span></span>',
        reason,
    )


@register.filter
def num(value: float | None, reason: str = NOT_RECORDED) -> SafeString:
    """Three significant digits, the exact value on hover; the argument is why it may be missing."""
    return missing(reason) if value is None else _data(value, significant(value))


@register.filter
def exact(value: int) -> str:
    """A count to its last digit."""
    return f"{value:,}"


@register.filter
def signed(value: float | None, reason: str = NOT_RECORDED) -> SafeString:
    """As `num`, with + or − and the colour of its sign."""
    if value is None:
        return missing(reason)
    text = significant(value)
    positive = value > 0
    css = "num positive" if positive else "num negative" if value < 0 else "num"
    return _data(value, f"+{text}" if positive else text, css)


@register.filter
def percent(value: float | None, reason: str = NOT_RECORDED) -> SafeString:
    """A share of 0 to 1 as a percentage."""
    if value is None:
        return missing(reason)
    return _data(value, f"{significant(float(value) * 100)} %" if math.isfinite(value) else significant(value))


@register.filter
def points(value: float | None, reason: str = NOT_RECORDED) -> SafeString:
    """A difference of two shares, in percentage points with its sign."""
    if value is None:
        return missing(reason)
    text = f"{value * 100:+.1f}".replace("-", "−")
    css = "num positive" if value > 0 else "num negative" if value < 0 else "num"
    return _data(value, text, css)


@register.filter
def nbytes(value: int | None, reason: str = NOT_RECORDED) -> SafeString:
    """Bytes in the unit that reads best."""
    if value is None:
        return missing(reason)
    for size, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= size:
            return _data(value, f"{significant(value / size)} {unit}")
    return _data(value, f"{value} B")


def duration_words(seconds: float) -> str:
    """`3 h 12 min`: the two largest units; below ten seconds with three digits, whole seconds without any."""
    if not math.isfinite(seconds):
        return significant(seconds)
    if abs(seconds) < 10:
        return f"{significant(int(seconds) if seconds == int(seconds) else seconds)} s"
    left, parts = round(seconds), []
    for size, unit in UNITS:
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts)


@register.filter
def duration(value: float | timedelta | None, reason: str = NOT_RECORDED) -> SafeString:
    """Seconds or a timedelta in words."""
    if value is None:
        return missing(reason)
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    return _data(seconds, duration_words(seconds))


@register.filter
def age(value: datetime | None, reason: str = "not yet") -> SafeString:
    """How long ago, with the instant on hover; app.js keeps the words fresh."""
    if value is None:
        return missing(reason)
    seconds = (timezone.now() - value).total_seconds()
    words = "now" if seconds < 5 else f"{duration_words(max(10, seconds)).split(' ', 2)[0]} {_unit_of(seconds)} ago"
    instant = value.strftime("%Y-%m-%d %H:%M:%S UTC")
    return format_html('<time datetime="{}" title="{}" data-age>{}</time>', value.isoformat(), instant, words)


def _unit_of(seconds: float) -> str:
    return next(unit for size, unit in UNITS if max(10, round(seconds)) >= size)


@register.filter
def spark(values: Sequence[float | None] | None, label: str) -> SafeString:
    """A sparkline of `values` in order; gaps stay gaps. The label names the measure for screen readers."""
    finite = [v for v in values or [] if v is not None and math.isfinite(v)]
    if not finite:
        return missing("no step stored yet")
    low, high = min(finite), max(finite)
    words = f"{label}: {significant(finite[0])} to {significant(finite[-1])}, range {significant(low)} to {significant(high)}"
    return format_html(
        '<svg class="sparkline" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<title>{}</title><path d="{}"/></svg>',
        sparklines.WIDTH,
        sparklines.HEIGHT,
        words,
        words,
        sparklines.path([math.nan if value is None else value for value in values or []]),
    )


@register.filter
def run_colour(run_id: int) -> str:
    """The run's colour class, the same on every page; use with `run-dot` or around a sparkline."""
    return colour.run_colour_class(run_id)


@register.filter
def split_name(split: str) -> str:
    """A split as people say it."""
    return {"train": "training", "heldout": "held-out"}.get(split, split)


@register.filter
def last_part(name: str) -> str:
    """What tells names apart in a narrow column: `gsm` of `reasoning_gym:gsm`, the folder's own name of a path."""
    return name.rstrip("/").rpartition("/")[2].removeprefix("reasoning_gym:") or name


@register.filter
def state_icon(state: str) -> str:
    return STATE_ICONS.get(state, "info")


@register.simple_tag
def icon(name: str) -> SafeString:
    """An icon as decoration; the control beside it carries the words."""
    # Both halves are our own constants.
    return mark_safe(f'<svg class="icon" viewBox="0 0 16 16" aria-hidden="true">{ICONS[name]}</svg>')  # noqa: S308


@register.simple_tag(takes_context=True)
def query(context: dict[str, Any], **changes: Any) -> str:
    """This page's query string with some values changed; None removes one. Paging starts anew unless it is named."""
    params: QueryDict = context["request"].GET.copy()
    for name in ("after", "before", "upto"):
        params.pop(name, None)
    for name, value in changes.items():
        params.pop(name, None)
        if value not in (None, ""):
            params[name] = value
    return f"?{params.urlencode()}" if params else "?"
