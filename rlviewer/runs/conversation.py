"""A rollout as people read it: turns of roles, each with its thinking, tool calls, results and text. Pure functions.

Trainers and chat logs name the same things differently, so the readers here accept what is met in the wild; what they do not
know is shown as JSON and never dropped.
"""

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlviewer.lib.text import text_from_bytes

ROLES = {
    "human": "user", "gpt": "assistant", "ai": "assistant", "agent": "assistant", "model": "assistant", "bot": "assistant",
    "developer": "system", "function": "tool", "ipython": "tool", "observation": "tool", "tool_response": "tool", "env": "environment",
}  # fmt: skip
# Who wrote a token, by training.records.ORIGINS.
ORIGIN_ROLES = ("prompt", "assistant", "assistant", "feedback", "environment")
THINKING = ("think", "thinking", "thought", "reasoning")
RESULTS = ("tool_response", "tool_result", "tool_output")
# How chat templates begin a turn; the group that matched names its role.
BEGINS = re.compile(
    rb"<\|im_start\|>(\w+)[^\S\n]*\n?"
    rb"|<\|start_header_id\|>(\w+)<\|end_header_id\|>\s*"
    rb"|<start_of_turn>(\w+)\n?"
    rb"|<\|(system|user|assistant|observation|tool)\|>\n?" + "|<｜(User|Assistant)｜>".encode() + rb"|\[(/?INST)\]"
)
ENDS = re.compile(
    rb"\n?(?:<\|im_end\|>|<\|eot_id\|>|<end_of_turn>|<\|end\|>|<\|endoftext\|>|<\|begin_of_text\|>|</?s>|<eos>|<bos>|<pad>|"
    + "<｜end▁of▁sentence｜>|<｜begin▁of▁sentence｜>".encode()
    + rb")\n?"
)
TAG = re.compile(rb"<(/?)(" + "|".join([*THINKING, *RESULTS, "tool_call", "answer"]).encode() + rb")>")
# A prompt may speak of tags without meaning them; only a tool's result stands in a person's turn.
RESULT_TAG = re.compile(rb"<()(" + "|".join(RESULTS).encode() + rb")>")


@dataclass(slots=True)
class Part:
    """A stretch of one kind: text, thinking, tool_call, tool_result, answer or data."""

    kind: str
    text: str
    name: str = ""
    is_open: bool = False  # the completion ended before its closing mark
    tokens: tuple[int, int] | None = None  # first and one past the last


@dataclass(slots=True)
class Turn:
    role: str
    parts: list[Part] = field(default_factory=list)
    name: str = ""
    seconds: float | None = None


def conversation(
    prompt: bytes, completion: bytes, turns: bytes | None, pieces: Sequence[bytes] | None, origins: np.ndarray | None
) -> list[Turn]:
    """The rollout's turns, the prompt first.

    Args:
        turns: what the source recorded as JSON, if it did; else the marks of chat templates and tags in the text tell.
        pieces: text of each token where their sum is the stored completion; then parts know their tokens.
        origins: who wrote each token, an index into ORIGIN_ROLES.
    """
    recorded = list(recorded_turns(turns)) if turns else []
    if recorded:
        has_prompt = recorded[0].role in {"system", "user"}
        return recorded if has_prompt else [*text_turns(prompt, "prompt"), *recorded]
    said = list(text_turns(prompt, "prompt"))
    if pieces is None:
        return [*said, *text_turns(completion, "assistant")]
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    text = b"".join(pieces)
    for start, stop, role in origin_stretches(origins, len(pieces)):
        first = int(ends[start - 1]) if start else 0
        said += text_turns(text[first : int(ends[stop - 1])], role, ends=ends, offset=first)
    return said


def origin_stretches(origins: np.ndarray | None, count: int) -> Iterator[tuple[int, int, str]]:
    """Stretches of tokens that one role wrote: first, one past the last, role."""
    if not count:
        return
    if origins is None:
        yield 0, count, "assistant"
        return
    roles = [ORIGIN_ROLES[origin] if origin < len(ORIGIN_ROLES) else "assistant" for origin in origins.tolist()]
    start = 0
    for place in range(1, count + 1):
        if place == count or roles[place] != roles[start]:
            yield start, place, roles[start]
            start = place


def text_turns(text: bytes, role: str, *, ends: np.ndarray | None = None, offset: int = 0) -> Iterator[Turn]:
    """Turns of a text by the marks of chat templates; without any it is one turn of `role`."""
    start = 0
    for found in [*BEGINS.finditer(text), None]:
        stop = found.start() if found else len(text)
        turn = Turn(role, [part for part in _parts(text, start, stop, role, ends, offset) if part.text.strip()])
        if turn.parts:
            if role == "tool":
                turn.parts = [Part("tool_result", part.text, tokens=part.tokens) for part in turn.parts]
            yield turn
        if found:
            named = next(group for group in found.groups() if group).decode().lower()
            role = {"inst": "user", "/inst": "assistant"}.get(named, ROLES.get(named, named))
            start = found.end()


def _parts(
    text: bytes, start: int, stop: int, role: str, ends: np.ndarray | None = None, offset: int = 0
) -> Iterator[Part]:
    """Parts of `text[start:stop]` by its tags; a tag inside of another is its text."""

    def part(kind: str, first: int, last: int, *, is_open: bool = False) -> Part:
        plain = text_from_bytes(ENDS.sub(b"", text[first:last]))
        name, plain = _call(plain) if kind == "tool_call" else ("", plain)
        tokens = None
        if ends is not None and last > first:
            places = np.searchsorted(ends, [offset + first, offset + last - 1], side="right").tolist()
            tokens = (places[0], places[1] + 1)
        return Part(kind, plain.strip("\n"), name, is_open, tokens)

    at, tag = start, TAG if role == "assistant" else RESULT_TAG
    while opened := tag.search(text, at, stop):
        kind = _kind(opened[2].decode())
        if opened[1]:
            # A template may open the thinking at the end of the prompt: what came first was thought.
            yield part(kind if kind == "thinking" else "text", at, opened.start())
            at = opened.end()
            continue
        yield part("text", at, opened.start())
        closing = text.find(b"</" + opened[2] + b">", opened.end(), stop)
        yield part(kind, opened.end(), stop if closing < 0 else closing, is_open=closing < 0)
        at = stop if closing < 0 else closing + len(opened[0]) + 1
    yield part("text", at, stop)


def _kind(tag: str) -> str:
    return "thinking" if tag in THINKING else "tool_result" if tag in RESULTS else tag


def _call(text: str) -> tuple[str, str]:
    """Name and arguments of a tool call written as JSON; anything else stays as it is."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return "", text
    if not isinstance(call, Mapping):
        return "", text
    return _named_call(call)


def _named_call(call: Mapping[str, Any]) -> tuple[str, str]:
    inner = call["function"] if isinstance(call.get("function"), Mapping) else call
    name = next((inner[key] for key in ("name", "function_name", "function", "tool_name") if inner.get(key)), "")
    given = next(
        (inner[key] for key in ("arguments", "input", "parameters", "args", "tool_args") if key in inner), None
    )
    if given is None:
        return str(name), words_of({key: value for key, value in inner.items() if key not in {"name", "id", "type"}})
    if isinstance(given, str):
        # Arguments that are no JSON are what the model wrote.
        with contextlib.suppress(ValueError, RecursionError):
            given = json.loads(given)
    return str(name), words_of(given)


def words_of(value: Any) -> str:
    """Any JSON value as text; a string stays what it is."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def recorded_turns(data: bytes) -> Iterator[Turn]:
    """Turns of a JSON list of messages, in whichever of the usual forms."""
    try:
        messages = json.loads(data)
    except (ValueError, RecursionError):
        yield Turn("unknown", [Part("data", text_from_bytes(data))])
        return
    for message in messages if isinstance(messages, list) else [messages]:
        if not isinstance(message, Mapping):
            yield Turn("unknown", [Part("data", words_of(message))])
            continue
        told = str(next((message[key] for key in ("role", "from", "source", "type") if message.get(key)), "unknown"))
        turn = Turn(
            ROLES.get(told.lower(), told.lower()), name=str(message.get("name") or ""), seconds=_seconds(message)
        )
        for key in ("reasoning_content", "reasoning", "thought"):
            if message.get(key):
                turn.parts.append(Part("thinking", words_of(message[key])))
                break
        said = [message[key] for key in ("content", "value", "message", "text") if key in message]
        turn.parts += _content(next((one for one in said if one is not None), None), turn.role)
        for call in _listed(message.get("tool_calls")):
            turn.parts.append(_tool_call(call))
        observed = message.get("observation")
        if isinstance(observed, Mapping) and "results" in observed:
            observed = [
                result.get("content") if isinstance(result, Mapping) else result
                for result in _listed(observed["results"])
            ]
        turn.parts += [Part("tool_result", words_of(result)) for result in _listed(observed)]
        if not turn.parts and not said:
            turn.parts.append(Part("data", words_of(message)))
        yield turn


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _tool_call(call: Any) -> Part:
    if isinstance(call, str):
        name, text = _call(call)
    else:
        name, text = _named_call(call) if isinstance(call, Mapping) else ("", words_of(call))
    return Part("tool_call", text, name)


def _seconds(message: Mapping[str, Any]) -> float | None:
    found = next(
        (message[key] for key in ("seconds", "duration_seconds", "execution_time", "duration") if key in message), None
    )
    if not isinstance(found, int | float) or isinstance(found, bool) or not math.isfinite(found):
        return None
    return float(found)


def _content(content: Any, role: str) -> Iterator[Part]:
    """Parts of a message's content: text with tags, a list of typed parts, or any other value."""
    if isinstance(content, str):
        if role in {"tool", "environment"}:
            yield Part("tool_result", content)
        else:
            data = content.encode("utf-8", "surrogatepass")
            yield from (part for part in _parts(data, 0, len(data), role) if part.text.strip())
        return
    for item in _listed(content):
        if not isinstance(item, Mapping):
            yield Part("text" if isinstance(item, str) else "data", words_of(item))
            continue
        kind = str(item.get("type", ""))
        if kind in {"thinking", "reasoning", "redacted_thinking"}:
            yield Part("thinking", words_of(item.get("thinking") or item.get("reasoning") or item.get("text") or item))
        elif kind in {"tool_use", "tool_call", "unparsed_tool_call", "server_tool_use"}:
            yield _tool_call(item.get("tool_call", item))
        elif kind in {"tool_result", "web_search_tool_result"}:
            yield Part("tool_result", words_of(item.get("content", item)), str(item.get("name") or ""))
        elif isinstance(item.get("text"), str):
            yield from _content(item["text"], role)
        else:
            # Pictures and sound are named, not fetched.
            yield Part("data", words_of({key: _short(value) for key, value in item.items()}), kind)


def _short(value: Any, limit: int = 2000) -> Any:
    text = words_of(value)
    return value if len(text) <= limit else f"{text[:200]}… ({len(text):,} characters)"
