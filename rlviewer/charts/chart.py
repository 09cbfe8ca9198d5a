"""One chart of a page, shown by `{% include "components/chart.html" with chart=chart only %}`."""

import json
from dataclasses import dataclass
from typing import Any

from django.utils.safestring import SafeString, mark_safe

# Inside an element's text only these could end it or be read as something else.
_ESCAPED = {ord("<"): "\\u003C", ord(">"): "\\u003E", ord("&"): "\\u0026"}


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure with its words. `figure` is None when there is nothing to draw; `nothing` then says which kind of nothing."""

    key: str  # its name within the page
    title: str  # the question or the measure
    unit: str
    figure: dict[str, Any] | None
    meaning: str = ""  # one sentence, told on hover
    nothing: str = "Nothing is recorded for this chart."
    note: str = ""  # below the chart, such as what a proxy stands for
    window: str = (
        ""  # where to ask for a zoomed part of the figure: a JSON object of figures by key, for ?keys=&from=&to=
    )
    tall: bool = False

    @property
    def shown_unit(self) -> str:
        """Nothing where the title says it already."""
        return "" if self.title.lower().endswith(self.unit.lower()) else self.unit

    @property
    def name(self) -> str:
        return f"{self.title}, {self.shown_unit}" if self.shown_unit else self.title

    @property
    def json(self) -> SafeString:
        """The figure for the text of an element."""
        text = json.dumps(self.figure, allow_nan=False, separators=(",", ":"))
        return mark_safe(text.translate(_ESCAPED))  # noqa: S308
