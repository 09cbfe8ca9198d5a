import json
from typing import Any

import numpy as np
import pytest

from rlviewer.runs.conversation import conversation


def said(*args: Any, **kwargs: Any) -> list[tuple[str, str, str]]:
    """Role, kind and text of every part."""
    return [(turn.role, part.kind, part.text) for turn in conversation(*args, **kwargs) for part in turn.parts]


def plain(prompt: bytes, completion: bytes) -> list[tuple[str, str, str]]:
    return said(prompt, completion, None, None, None)


def recorded(*messages: Any) -> list[tuple[str, str, str]]:
    user = {"role": "user", "content": "?"}
    return said(b"", b"", json.dumps([user, *messages]).encode(), None, None)[1:]


def test_text_without_marks_is_a_prompt_and_an_answer() -> None:
    assert plain(b"2+2=", b"4\n") == [("prompt", "text", "2+2="), ("assistant", "text", "4")]
    assert plain(b"2+2=", b"") == [("prompt", "text", "2+2=")]


@pytest.mark.parametrize(
    "prompt",
    [
        b"<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n",
        b"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>",
        b"<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\n",
    ],
    ids=["chatml", "llama", "phi"],
)
def test_the_marks_of_chat_templates_part_the_prompt(prompt: bytes) -> None:
    assert plain(prompt, b"A") == [("system", "text", "S"), ("user", "text", "U"), ("assistant", "text", "A")]


def test_thinking_calls_results_and_answers_are_parts() -> None:
    text = b'<think>hm\n</think>\n\nI call.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    text += b"<|im_end|>\n<|im_start|>user\n<tool_response>3</tool_response><|im_end|>\n<|im_start|>assistant\n<answer>3</answer>"
    assert plain(b"", text) == [
        ("assistant", "thinking", "hm"), ("assistant", "text", "I call."), ("assistant", "tool_call", '{\n  "a": 1\n}'),
        ("user", "tool_result", "3"), ("assistant", "answer", "3"),
    ]  # fmt: skip


def test_thinking_that_the_prompt_opened_or_the_limit_cut() -> None:
    assert plain(b"", b"hm</think>4") == [("assistant", "thinking", "hm"), ("assistant", "text", "4")]
    (turn,) = conversation(b"", b"<think>hm", None, None, None)
    assert turn.parts[0].kind == "thinking" and turn.parts[0].is_open


def test_a_prompt_that_speaks_of_tags_means_none() -> None:
    prompt = b"Think inside <think></think>, then <answer>x</answer>."
    assert plain(prompt, b"") == [("prompt", "text", prompt.decode())]


def test_a_call_that_is_no_json_is_what_the_model_wrote() -> None:
    assert plain(b"", b"<tool_call>{oops</tool_call>") == [("assistant", "tool_call", "{oops")]


def test_parts_know_their_tokens_and_who_wrote_them() -> None:
    pieces = [b"<think>", b"h", b"m", b"</think>", b" 4", b"4", b"<eos>", b"\n", b"out", b"A"]
    origins = np.array([2] * 7 + [4] * 2 + [2], np.uint8)
    turns = conversation(b"", b"", None, pieces, origins)
    found = [(turn.role, part.kind, part.text, part.tokens) for turn in turns for part in turn.parts]
    assert found == [
        ("assistant", "thinking", "hm", (1, 3)), ("assistant", "text", " 44", (4, 7)),
        ("environment", "text", "out", (7, 9)), ("assistant", "text", "A", (9, 10)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ({"role": "assistant", "content": None}, []),
        ({"from": "gpt", "value": "hi"}, [("text", "hi")]),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "hi"}]},
         [("thinking", "hm"), ("text", "hi")]),
        ({"role": "assistant", "content": "", "tool_calls": ['{"name": "f", "arguments": "{\\"a\\": 1}"}']},
         [("tool_call", '{\n  "a": 1\n}')]),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "not json"}}]}, [("tool_call", "not json")]),
        ({"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {"a": 1}}]}, [("tool_call", '{\n  "a": 1\n}')]),
        ({"source": "agent", "message": "hi", "tool_calls": [{"function_name": "f", "arguments": {}}],
          "observation": {"results": [{"content": "42"}]}}, [("text", "hi"), ("tool_call", "{}"), ("tool_result", "42")]),
        ({"role": "assistant", "what": 1}, [("data", '{\n  "role": "assistant",\n  "what": 1\n}')]),
    ],
)  # fmt: skip
def test_messages_in_the_usual_forms(message: dict[str, Any], parts: list[tuple[str, str]]) -> None:
    assert recorded(message) == [("assistant", kind, text) for kind, text in parts]


def test_what_is_no_message_is_shown_as_it_is() -> None:
    assert recorded("?", 7) == [("unknown", "data", "?"), ("unknown", "data", "7")]
    assert recorded({"role": "tool", "content": "<b>"}) == [("tool", "tool_result", "<b>")]


def test_the_prompt_comes_first_where_the_turns_lack_it() -> None:
    turns = json.dumps([{"role": "assistant", "content": "4"}]).encode()
    assert said(b"2+2=", b"", turns, None, None) == [("prompt", "text", "2+2="), ("assistant", "text", "4")]


def test_invalid_bytes_travel_escaped() -> None:
    assert plain(b"\xff", b"a\x00") == [("prompt", "text", "\U0010ffff"), ("assistant", "text", "a\U0010ff00")]
