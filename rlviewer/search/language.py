"""The filter language: text in, a small tree out, every error with its place. Knows the fields' names, no database.

query     = either*                        all must hold
either    = condition ("or" condition)*
condition = "-" condition | "(" query ")" | comparison | text
"""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from rlviewer.search.fields import BY_WORD, PART_PREFIX, Field, part_field
from rlviewer.search.tree import All, Any, Comparison, Node, Not, Prefix, Range, Text, Value

MAX_CHARS = 1000
MAX_CONDITIONS = 40
MAX_DEPTH = 12
MAX_PATTERN_CHARS = 200
MAX_DIGITS = 18  # of a whole number: what the database's integers hold

YES = {"yes": True, "true": True, "no": False, "false": False}
COMPARISON = re.compile(r"""(part\.(?:"[^"]+"|'[^']+'|[\w-]+)|[A-Za-z_]+)(<=|>=|!=|[:<>=])""")
BARE = re.compile(r"[^\s()]+")
BARE_VALUE = re.compile(r"[^\s(),]*")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE | re.ASCII)
CLOSING = {'"': "a closing quote", "'": "a closing quote", "/": "a closing slash"}


class FilterError(ValueError):
    """What is wrong, from `start` to `end` of the text, and what was expected there."""

    def __init__(self, message: str, start: int, end: int) -> None:
        super().__init__(message)
        self.start, self.end = start, max(start, end)


def parse(text: str) -> All:
    """The conditions of `text`; none for an empty one.

    Raises:
        FilterError: with the place, and what was expected there.
    """
    return _Parser(text).query()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth, self.count = text, 0, 0, 0
        if len(text) > MAX_CHARS:
            raise FilterError(f"The filter has {len(text)} characters; {MAX_CHARS} are allowed.", MAX_CHARS, len(text))

    def query(self) -> All:
        parts: list[Node] = []
        while not self._ended():
            if self._peek() == ")":
                if self.depth:
                    break
                self._fail("This bracket closes nothing.", self.at, self.at + 1)
            parts.append(self._either())
        return All(tuple(parts))

    def _either(self) -> Node:
        parts = [self._condition()]
        while self._takes_or():
            if self._ended() or self._peek() == ")":
                self._fail("Expected a condition after “or”.", self.at, self.at)
            parts.append(self._condition())
        return parts[0] if len(parts) == 1 else Any(tuple(parts))

    def _takes_or(self) -> bool:
        if self._ended():
            return False
        found = BARE.match(self.text, self.at)
        if not found or found[0] not in {"or", "OR"}:
            return False
        self.at = found.end()
        return True

    def _condition(self) -> Node:
        start, char = self.at, self._peek()
        self.count += 1
        if self.count > MAX_CONDITIONS:
            self._fail(f"More than {MAX_CONDITIONS} conditions.", start, len(self.text))
        if char == "(":
            return self._bracket(start)
        if char == "-" and re.match(r"[^\s)]", self.text[start + 1 : start + 2]):
            self.at += 1
            self._deeper(start)
            part = self._condition()
            self.depth -= 1
            return Not(part)
        if char in CLOSING:
            return self._quoted_text(start)
        found = BARE.match(self.text, start)
        if found and found[0] in {"or", "OR"}:
            self._fail('Expected a condition before “or”; to find the word, quote it: "or".', start, found.end())
        if named := COMPARISON.match(self.text, start):
            return self._comparison(named)
        assert found is not None
        self.at = found.end()
        return _word(found[0], start, found.end())

    def _bracket(self, start: int) -> Node:
        self.at += 1
        self._deeper(start)
        inner = self.query()
        self.depth -= 1
        if self._ended():
            self._fail("Expected a closing bracket for this one.", start, start + 1)
        self.at += 1
        if not inner.parts:
            self._fail("Expected a condition between the brackets.", start, self.at)
        return inner

    def _quoted_text(self, start: int) -> Text:
        mark, text = self._peek(), self._quoted()
        flagged = mark != '"' and self.text[self.at : self.at + 1] == "i"
        self.at += flagged
        if not text.strip() and (mark != "'" or not text):
            self._fail(f"Expected something between the {'slashes' if mark == '/' else 'quotes'}.", start, self.at)
        if mark == "/":
            _refuse_dangerous(text, start + 1)
        kind = {'"': "words", "'": "substring", "/": "regex"}[mark]
        if kind == "words" and not any(char.isalnum() for char in text):
            kind = "substring"
        return Text(kind, text, flagged, start, self.at)

    def _quoted(self) -> str:
        """What stands between the mark here and its twin; a backslash keeps the mark as a character."""
        start, mark = self.at, self._peek()
        found = re.compile(rf"(?:\\.|[^\\{mark}])*", re.DOTALL).match(self.text, start + 1)
        assert found is not None
        if self.text[found.end() : found.end() + 1] != mark:
            self._fail(f"Expected {CLOSING[mark]} for this one.", start, start + 1)
        self.at = found.end() + 1
        return found[0].replace("\\" + mark, mark)

    def _comparison(self, named: re.Match[str]) -> Node:
        start, word, sign = named.start(), named[1], named[2]
        is_part = word.startswith(PART_PREFIX)
        field = part_field(word.removeprefix(PART_PREFIX).strip("\"'")) if is_part else BY_WORD.get(word.lower())
        if field is None:
            near = difflib.get_close_matches(word.lower(), BY_WORD, 1)
            hint = f"did you mean {near[0]}?" if near else f'to find this text, quote it: "{word}{sign}…".'
            self._fail(f"There is no field “{word}”; {hint}", start, named.end(1))
        self.at = named.end()
        if field.name == "prompt" and sign in {":", "=", "!="} and self.text[self.at : self.at + 1] in CLOSING:
            text = replace(self._quoted_text(self.at), of="prompt")
            return Not(text) if sign == "!=" else text
        op = {":": "=", "!=": "="}.get(sign, sign)
        if op != "=" and not field.is_number:
            self._fail(f"“{field.name}” has no order; use “:”.", named.end(1), named.end())
        values = [self._value(field, op)]
        while op == "=" and self.text[self.at : self.at + 1] == ",":
            self.at += 1
            values.append(self._value(field, op))
        compared = Comparison(field, op, tuple(values), start, self.at)
        return Not(compared) if sign == "!=" else compared

    def _value(self, field: Field, op: str) -> Value:
        start = self.at
        is_quoted = self.text[start : start + 1] in {'"', "'"}
        if is_quoted:
            raw = self._quoted()
        else:
            found = BARE_VALUE.match(self.text, start)
            assert found is not None
            raw, self.at = found[0], found.end()
        if raw == "" and not (is_quoted and field.kind == "text"):
            self._fail(f"Expected {_expected(field, op)}.", start, self.at)
        if op == "=" and raw.lower() == "none" and not is_quoted:
            return None
        if field.kind == "text":
            return Prefix(raw[:-1]) if raw.endswith("*") and not is_quoted else raw
        if field.kind in {"bool", "filled"}:
            if raw.lower() not in YES:
                self._unexpected(field, op, raw, start)
            return YES[raw.lower()]
        if field.choices is not None:
            if raw.lower() not in field.choices:
                self._unexpected(field, op, raw, start)
            return field.choices[raw.lower()]
        if op == "=" and ".." in raw:
            low, high = raw.split("..", 1)
            if not low and not high:
                self._fail("Expected a number before or after “..”.", start, self.at)
            return Range(
                self._number(field, op, low, start) if low else None,
                self._number(field, op, high, start + len(low) + 2) if high else None,
            )
        if op == "=" and field.kind == "float" and raw.lower() == "nan":
            return math.nan
        return self._number(field, op, raw, start)

    def _number(self, field: Field, op: str, raw: str, start: int) -> float | int:
        if field.kind == "int":
            if not re.fullmatch(r"[+-]?\d+", raw, re.ASCII):
                self._unexpected(field, op, raw, start)
            if len(raw.lstrip("+-")) > MAX_DIGITS:
                self._fail(f"A number of at most {MAX_DIGITS} digits is expected.", start, start + len(raw))
            return int(raw)
        if not NUMBER.fullmatch(raw):
            self._unexpected(field, op, raw, start)
        return float(raw)

    def _unexpected(self, field: Field, op: str, raw: str, start: int) -> NoReturn:
        self._fail(f"Expected {_expected(field, op)}, not “{raw}”.", start, min(len(self.text), start + len(raw)))

    def _deeper(self, start: int) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self._fail(f"Conditions lie more than {MAX_DEPTH} deep.", start, len(self.text))

    def _ended(self) -> bool:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.at >= len(self.text)

    def _peek(self) -> str:
        return self.text[self.at]

    @staticmethod
    def _fail(message: str, start: int, end: int) -> NoReturn:
        raise FilterError(message, start, end)


def _word(text: str, start: int, end: int) -> Text:
    """A bare word; without any letter or digit the index has no word for it, so its characters are looked for."""
    if not any(char.isalnum() for char in text):
        return Text("substring", text, False, start, end)
    if text.endswith("*"):
        return Text("prefix", text.rstrip("*"), False, start, end)
    return Text("words", text, False, start, end)


def _expected(field: Field, op: str) -> str:
    if field.kind in {"bool", "filled"}:
        return "yes, no or none" if field.nullable else "yes or no"
    if field.choices is not None:
        return _one_of(list(field.choices))
    if field.kind == "text":
        return "a value" if op == "=" else "a text"
    number = "a whole number" if field.kind == "int" else "a number"
    return f"{number} or a range like 1..5" if op == "=" else number


def _one_of(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _refuse_dangerous(pattern: str, start: int) -> None:
    """Postgres matches in time linear in the text, except where a pattern refers back to what it matched."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise FilterError(
            f"A regular expression may have {MAX_PATTERN_CHARS} characters.",
            start + MAX_PATTERN_CHARS,
            start + len(pattern),
        )
    for found in re.finditer(r"\\(.)", pattern, re.DOTALL):
        if found[1].isdecimal() and found[1] != "0":
            raise FilterError(
                "References back (\\1) are not allowed: they can take for ever. Write the text out.",
                start + found.start(),
                start + found.end(),
            )
