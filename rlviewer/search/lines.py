"""Rows of the list: the telling part of a completion with what matched, and a cell for each chosen column."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any as AnyValue

from django.db.models import F, Func, Sum, TextField, Value
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from rlviewer.lib.text import bytes_from_text
from rlviewer.lib.visible import visible, visible_end
from rlviewer.runs.models import Prompt, RewardPart, Rollout, Run, StopReason, TokenChunk
from rlviewer.runs.queries.run import RolloutLine, shown_answer, with_prompts
from rlviewer.runs.templatetags.show import exact, missing, num, percent, run_colour, signed, split_name
from rlviewer.runs.tokens import unpack_chunk
from rlviewer.search.compile import TEXT, escaped
from rlviewer.search.fields import Field
from rlviewer.search.tree import All, Any, Node, Text

BEFORE, AFTER = 12, 120
WHY_MISSING = {
    "reward": "not scored",
    "advantage": "no advantage",
    "correct": "not judged",
    "answer": "no answer was read",
    "transform": "the prompt was asked as it is",
}
TEXT_ONLY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Cell:
    label: str
    html: SafeString | str
    is_number: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One rollout: how its prompt begins, its text around the first match or at its end, its cells."""

    rollout: Rollout
    prompt: tuple[str, str, str]  # before, match and after, as the completion
    before: str
    match: str
    after: str
    cells: Sequence[Cell]

    @property
    def is_empty(self) -> bool:
        return not (self.before or self.match or self.after)


def read_lines(ids: Sequence[int], columns: Sequence[Field], tree: All) -> list[Line]:
    """In the order of `ids`. Four queries, one more for an expression and one each where runs or parts of the reward are shown."""
    stored = {row.pk: row for row in Rollout.objects.filter(pk__in=ids).select_related("step", "group")}
    rollouts = [stored[pk] for pk in ids if pk in stored]
    payloads = TokenChunk.objects.filter(pk__in={r.chunk_id for r in rollouts}).values_list("pk", "payload")
    chunks = {pk: unpack_chunk(payload, columns=TEXT_ONLY) for pk, payload in payloads}
    prompts = {line.rollout.pk: line.prompt for line in with_prompts([RolloutLine(r, "", None) for r in rollouts])}
    values = _values(ids, columns)
    looked_for = patterns(ids, tree)
    asked = patterns([rollout.pk for rollout in rollouts], tree, of="prompt")
    matched = _matched_prompts(rollouts, asked)
    names = _run_names(rollouts) if any(field.name == "run" for field in columns) else {}
    lines = []
    for rollout in rollouts:
        chunk = chunks.get(rollout.chunk_id)
        packed = chunk.rollouts[rollout.position] if chunk else None
        parts = telling_part(packed.completion if packed else b"", looked_for.get(rollout.pk, []))
        row = values.get(rollout.pk, {})
        if packed:
            row["transform"] = transform_name(packed.details.get("transform"))
        cells = [
            Cell(field.label, cell(field, row.get(field.name), rollout, names), field.is_number) for field in columns
        ]
        prompt = matched.get(rollout.pk, (prompts.get(rollout.pk, ""), "", ""))
        lines.append(Line(rollout, prompt, *parts, cells))
    return lines


def telling_part(completion: bytes, patterns: Sequence[str]) -> tuple[str, str, str]:
    """Before, match and after of the first thing that was looked for; without one the end of the text."""
    if patterns:
        text = completion.decode("utf-8", "surrogateescape")
        found = next((match for p in patterns if (match := re.search(p, text, re.IGNORECASE))), None)
        if found:
            start, stop = max(0, found.start() - BEFORE), found.end() + AFTER
            parts = text[start : found.start()], found[0][:200], text[found.end() : stop]
            before, marked, after = (visible(part.encode("utf-8", "surrogateescape")) for part in parts)
            return ("…" if start else "") + before, marked, after + ("…" if stop < len(text) else "")
    return "", "", visible_end(completion)


def _matched_prompts(
    rollouts: Sequence[Rollout], asked: Mapping[int, Sequence[str]]
) -> dict[int, tuple[str, str, str]]:
    """The telling part of each prompt that something was looked for in. One query."""
    if not asked:
        return {}
    texts = dict(Prompt.objects.filter(pk__in={r.group.prompt_id for r in rollouts}).values_list("pk", "text"))
    parts = {r.pk: telling_part(bytes(texts[r.group.prompt_id]), asked.get(r.pk, [])) for r in rollouts}
    return {pk: part for pk, part in parts.items() if part[1]}


def patterns(ids: Sequence[int], tree: All, of: str = "completion") -> dict[int, list[str]]:
    """What to mark in each text, as expressions; empty when nothing is looked for. One query for expressions of a person's own,
    whose matching is left to Postgres, which bounds it.
    """
    texts = list(_texts(tree, of))
    plain = [pattern for node in texts for pattern in _plain_patterns(node)]
    own = next((node for node in texts if node.kind == "regex"), None)
    found = {} if own is None else _first_matches(ids, own)
    marked = {pk: [*([re.escape(found[pk])] if found.get(pk) else []), *plain] for pk in ids}
    return {pk: expressions for pk, expressions in marked.items() if expressions}


def _texts(node: Node, of: str) -> Iterator[Text]:
    """Those that must or may be there."""
    if isinstance(node, Text) and node.of == of:
        yield node
    elif isinstance(node, All | Any):
        for part in node.parts:
            yield from _texts(part, of)


def _plain_patterns(node: Text) -> Iterator[str]:
    words = re.findall(r"\w+", node.text) if node.kind in {"words", "prefix"} else []
    if node.kind == "substring":
        yield re.escape(node.text)
    elif words:
        ending = r"\w*" if node.kind == "prefix" else r"(?!\w)"
        yield r"(?<!\w)" + r"\W+".join(map(re.escape, words)) + ending


def _first_matches(ids: Sequence[int], node: Text) -> dict[int, str]:
    """What a regular expression matched first in each text."""
    column = TEXT if node.of == "completion" else "group__prompt__prompttext__text"
    first = Func(
        F(column),
        Value(escaped(node.text)),
        Value(1),
        Value(1),
        Value("i" if node.ignores_case else "c"),
        function="regexp_substr",
        output_field=TextField(),
    )
    return dict(Rollout.objects.filter(pk__in=ids).values_list("pk", first))


def _values(ids: Sequence[int], columns: Sequence[Field]) -> dict[int, dict[str, AnyValue]]:
    stored = [field for field in columns if field.path]
    rows = Rollout.objects.filter(pk__in=ids).values_list("pk", *(field.path for field in stored))
    values = {pk: dict(zip([field.name for field in stored], row, strict=True)) for pk, *row in rows}
    parts = {escaped(field.part): field.name for field in columns if field.part}
    if parts:
        spans = RewardPart.objects.filter(rollout__in=ids, name__in=parts).values_list("rollout", "name")
        for pk, name, total in spans.annotate(total=Sum("value")):
            values[pk][parts[name]] = total
    return values


def transform_name(stored: str | None) -> str | None:
    """Of a transform as it is recorded: JSON with its name, or whatever its source wrote."""
    try:
        return str(json.loads(stored or "null")["name"])
    except (ValueError, TypeError, KeyError):
        return stored or None


def _run_names(rollouts: Sequence[Rollout]) -> Mapping[int, str]:
    return dict(Run.objects.filter(pk__in={r.run_id for r in rollouts}).values_list("pk", "name"))


def cell(field: Field, value: AnyValue, rollout: Rollout, run_names: Mapping[int, str]) -> SafeString | str:
    step = rollout.step
    if field.name == "run":
        address = reverse("run-detail", args=[rollout.run_id])
        name = run_names.get(rollout.run_id, "")
        return format_html(
            '<span class="row-nowrap {}"><i class="run-dot" aria-hidden="true"></i><a class="truncate cell" href="{}" title="{}">{}</a></span>',
            run_colour(rollout.run_id), address, name, name,
        )  # fmt: skip
    if field.name == "step":
        address = reverse("step-detail", args=[rollout.run_id, step.split, step.index])
        if step.split == "train":
            return format_html('<a href="{}">{}</a>', address, step.index)
        return format_html(
            '<a href="{}"><span class="chip blue">{}</span> {}</a>', address, split_name(step.split), step.index
        )
    if field.name == "group":
        address = reverse("group-detail", args=[rollout.group_id])
        return format_html('<a href="{}?ref={}">{}</a>', address, rollout.number, value)
    if field.name == "prompt":
        return format_html('<a href="{}">{}</a>', reverse("prompt-detail", args=[value]), value)
    if field.name == "stop":
        label = StopReason(value).label
        css = {"length": "chip amber", "error": "chip red"}.get(label, "")
        return format_html('<span class="{}">{}</span>', css, {"length": "cut"}.get(label, label))
    if field.name == "correct" and value is not None:
        return format_html('<span class="{}">{}</span>', *(("positive", "✓ yes") if value else ("negative", "✗ no")))
    if value is None:
        return missing("no such part" if field.part else WHY_MISSING.get(field.name, "not recorded"))
    if field.name == "advantage" or field.part:
        return signed(value)
    if field.name == "clip":
        return percent(value)
    if field.kind == "float":
        return num(value)
    if field.kind == "int":
        return exact(value) if field.name == "length" else str(value)
    if field.kind == "bool":
        return "yes" if value else "no"
    if field.name == "answer":
        return format_html('<span class="mono truncate answer">{}</span>', shown_answer(value) or "(empty)")
    text = visible(bytes_from_text(str(value)))
    return format_html('<span class="truncate cell" title="{}">{}</span>', text, text) if text else ""
