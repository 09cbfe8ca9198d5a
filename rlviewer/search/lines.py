"""Rows of the list: the telling part of a completion with what matched, and a cell for each chosen column."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any as AnyValue
from typing import NamedTuple

from django.db.models import F, Func, Sum, TextField, Value
from django.db.models.functions import Right, Substr
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from rlviewer.lib.text import bytes_from_text
from rlviewer.lib.visible import visible, visible_end, visible_start
from rlviewer.runs.models import Prompt, RewardPart, Rollout, StopReason, TokenChunk
from rlviewer.runs.queries.run import PROMPT_CHARACTERS, shown_answer
from rlviewer.runs.templatetags.show import exact, missing, num, percent, run_colour, signed, split_name
from rlviewer.runs.tokens import PackedRollout, unpack_chunk
from rlviewer.search.compile import TEXT, escaped
from rlviewer.search.fields import Field
from rlviewer.search.models import RolloutText
from rlviewer.search.tree import All, Any, Node, Text

BEFORE, AFTER = 12, 120
END_CHARACTERS = 120
WHY_MISSING = {
    "reward": "not scored",
    "advantage": "no advantage",
    "correct": "not judged",
    "answer": "no answer was read",
    "transform": "the prompt was asked as it is",
}
TEXT_ONLY: frozenset[str] = frozenset()


# Beside what the columns ask for; `_Row` names them.
OWN = (
    "pk",
    "run_id",
    "step__run__name",
    "step__split",
    "step__index",
    "group_id",
    "group__prompt",
    "number",
    "chunk_id",
    "position",
)
# Stored text of the end, in characters: one that was escaped takes four.
END = 4 * (END_CHARACTERS + 1)


class _Row(NamedTuple):
    """What every line needs of a rollout."""

    id: int
    run: int
    run_name: str
    split: str
    step: int
    group: int
    prompt: int
    number: int
    chunk: int
    position: int


@dataclass(frozen=True, slots=True)
class Line:
    """One rollout: how its prompt begins, its text around the first match or at its end, its cells."""

    id: int
    prompt: tuple[str, str, str]  # before, match and after, as the completion
    completion: tuple[str, str, str]
    cells: Sequence[str]  # HTML


def read_lines(ids: Sequence[int], columns: Sequence[Field], tree: All) -> list[Line]:
    """In the order of `ids`. One query; one more each for texts that are marked, texts that are not indexed yet, an expression,
    prompts that are marked, and parts of the reward.
    """
    paths = [field.path for field in columns if field.path]
    begin = Substr("group__prompt__text", 1, 4 * PROMPT_CHARACTERS + 4)
    found = Rollout.objects.filter(pk__in=ids).values_list(*OWN, begin, Right(TEXT, END), *paths)
    rows = {row[0]: (_Row(*row[: len(OWN)]), *row[len(OWN) :]) for row in found}
    looked_for, asked = patterns(list(rows), tree), patterns(list(rows), tree, of="prompt")
    has_transform = any(field.name == "transform" for field in columns)
    unpacked = _unpacked([row for row, _, end, *_ in rows.values() if end is None or has_transform])
    marked = RolloutText.objects.filter(pk__in=looked_for.keys() - unpacked.keys())
    texts = dict(marked.values_list("pk", "completion")) if looked_for else {}
    prompts = _matched_prompts({row.id: row.prompt for row, *_ in rows.values()}, asked)
    parts = _parts(ids, columns)
    write = CellWriter(columns)
    lines = []
    for row, start, end, *stored in (rows[pk] for pk in ids if pk in rows):
        packed = unpacked.get(row.id)
        text = packed.completion if packed else bytes_from_text(texts.get(row.id, end or ""))
        values = dict(zip([field.name for field in columns if field.path], stored, strict=True)) | parts.get(row.id, {})
        if packed:
            values["transform"] = transform_name(packed.details.get("transform"))
        prompt = prompts.get(row.id, (visible_start(bytes(start), PROMPT_CHARACTERS), "", ""))
        cells = [write.cell(field, values.get(field.name), row) for field in columns]
        lines.append(Line(row.id, prompt, telling_part(text, looked_for.get(row.id, [])), cells))
    return lines


def rows_html(lines: Sequence[Line]) -> SafeString:
    """The rows of the table. Written here, for a template takes five times as long for a hundred of them."""
    address, preview = _address("rollout-detail"), _address("rollout-preview")
    rows = []
    for line in lines:
        prompt = _marked(*line.prompt) or "(empty prompt)"
        end = _marked(*line.completion) or "(empty completion)"
        rows.append(
            f'<tr data-row data-id="{line.id}" data-preview="{preview % line.id}"><td class="pick"><input type="checkbox" data-pick'
            f' value="{line.id}" aria-label="Select rollout {line.id}"></td><th scope="row" class="whole"><a class="prompt-end mono"'
            f' dir="ltr" href="{address % line.id}"><span class="prompt truncate">{prompt}</span><span class="end">{end}</span></a>'
            f"</th>{''.join(line.cells)}</tr>\n"
        )
    return mark_safe("".join(rows))  # noqa: S308


def _marked(before: str, match: str, after: str) -> str:
    return f"{escape(before)}{f'<mark>{escape(match)}</mark>' if match else ''}{escape(after)}"


def _address(name: str) -> str:
    """The address of a page of one number, which stands as %d."""
    return reverse(name, args=[10**17]).replace("%", "%%").replace(str(10**17), "%d")


def _unpacked(rows: Sequence[_Row]) -> dict[int, PackedRollout]:
    """Their whole texts. One query, none without rows."""
    wanted = {row.chunk for row in rows}
    payloads = TokenChunk.objects.filter(pk__in=wanted).values_list("pk", "payload") if wanted else []
    chunks = {pk: unpack_chunk(payload, columns=TEXT_ONLY) for pk, payload in payloads}
    return {row.id: chunks[row.chunk].rollouts[row.position] for row in rows if row.chunk in chunks}


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
    return "", "", visible_end(completion, END_CHARACTERS)


def _matched_prompts(prompts: Mapping[int, int], asked: Mapping[int, Sequence[str]]) -> dict[int, tuple[str, str, str]]:
    """The telling part of each prompt that something was looked for in. One query."""
    if not asked:
        return {}
    texts = dict(Prompt.objects.filter(pk__in=set(prompts.values())).values_list("pk", "text"))
    parts = {pk: telling_part(bytes(texts[prompt]), asked.get(pk, [])) for pk, prompt in prompts.items()}
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


def _parts(ids: Sequence[int], columns: Sequence[Field]) -> dict[int, dict[str, AnyValue]]:
    """The parts of the reward that are shown. One query, none when none is."""
    names = {escaped(field.part): field.name for field in columns if field.part}
    values: dict[int, dict[str, AnyValue]] = {}
    if names:
        spans = RewardPart.objects.filter(rollout__in=ids, name__in=names).values_list("rollout", "name")
        for pk, name, total in spans.annotate(total=Sum("value")):
            values.setdefault(pk, {})[names[name]] = total
    return values


def transform_name(stored: str | None) -> str | None:
    """Of a transform as it is recorded: JSON with its name, or whatever its source wrote."""
    try:
        return str(json.loads(stored or "null")["name"])
    except (ValueError, TypeError, KeyError):
        return stored or None


class CellWriter:
    """Cells of one page. What many rows share is written once."""

    def __init__(self, columns: Sequence[Field]) -> None:
        self._heads = {
            field.name: f"""<td{' class="n"' if field.is_number else ""} data-label="{escape(field.label)}">"""
            for field in columns
        }
        self._group, self._prompt = _address("group-detail"), _address("prompt-detail")
        self._runs: dict[int, str] = {}
        self._steps: dict[tuple[int, str, int], str] = {}

    def cell(self, field: Field, value: AnyValue, row: _Row) -> str:
        return f"{self._heads[field.name]}{self._content(field, value, row)}</td>"

    def _content(self, field: Field, value: AnyValue, row: _Row) -> str:
        match field.name:
            case "run":
                return self._runs.get(row.run) or self._runs.setdefault(row.run, _run(row))
            case "step":
                key = (row.run, row.split, row.step)
                return self._steps.get(key) or self._steps.setdefault(key, _step(row))
            case "group":
                return f'<a href="{self._group % row.group}?ref={row.number}">{value}</a>'
            case "prompt":
                return f'<a href="{self._prompt % value}">{value}</a>'
            case "stop":
                label = StopReason(value).label
                css = {"length": "chip amber", "error": "chip red"}.get(label, "")
                return f'<span class="{css}">{"cut" if label == "length" else label}</span>'
            case "correct" if value is not None:
                return f'<span class="{"positive" if value else "negative"}">{"✓ yes" if value else "✗ no"}</span>'
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
            return f'<span class="mono truncate answer">{escape(shown_answer(value) or "(empty)")}</span>'
        text = escape(visible(bytes_from_text(str(value))))
        return f'<span class="truncate cell" title="{text}">{text}</span>' if text else ""


def _run(row: _Row) -> str:
    return format_html(
        '<span class="row-nowrap {}"><i class="run-dot" aria-hidden="true"></i><a class="truncate cell" href="{}" title="{}">{}</a></span>',
        run_colour(row.run), reverse("run-detail", args=[row.run]), row.run_name, row.run_name,
    )  # fmt: skip


def _step(row: _Row) -> str:
    address = reverse("step-detail", args=[row.run, row.split, row.step])
    if row.split == "train":
        return format_html('<a href="{}">{}</a>', address, row.step)
    return format_html(
        '<a href="{}"><span class="chip blue">{}</span> {}</a>', address, split_name(row.split), row.step
    )
