"""Prompts as a person's turn of a conversation, worded by the chat template of a tokenizer."""

from dataclasses import dataclass, replace
from typing import Any

import jinja2

from training.config import ConfigError
from training.transforms import Segment, TransformedPrompt

# What no template contains, in the places of the turns.
QUESTION, ANSWER = "{the person's turn}", "{the model's turn}"


@dataclass(frozen=True, slots=True)
class ChatWrapper:
    """What a template puts around a prompt, and the tokens that end the model's turn."""

    head: str
    tail: str
    end_ids: frozenset[int]

    def wrap(self, prompt: TransformedPrompt) -> TransformedPrompt:
        return replace(prompt, prompt=(Segment(self.head), *prompt.prompt, Segment(self.tail)))


def chat_wrapper(tokenizer: Any, chat: str) -> ChatWrapper | None:
    """As `model.chat` wants it; None: prompts stay as they are.

    Raises:
        ConfigError: a template is wanted and there is none, or it does not show the person's turn as it was said.
    """
    if chat == "off" or (chat == "auto" and not tokenizer.chat_template):
        return None
    if not tokenizer.chat_template:
        raise ConfigError("model.chat", "the tokenizer has no chat template; take off, or an instruction-tuned model")
    question = {"role": "user", "content": QUESTION}
    try:
        asked = tokenizer.apply_chat_template([question], tokenize=False, add_generation_prompt=True)
        talk = tokenizer.apply_chat_template(
            [question, {"role": "assistant", "content": ANSWER}], tokenize=False, add_generation_prompt=False
        )
    except (jinja2.TemplateError, ValueError, TypeError) as error:
        raise ConfigError("model.chat", f"the tokenizer's chat template fails: {error}; take off") from error
    head, found, tail = asked.partition(QUESTION)
    if not found:
        raise ConfigError("model.chat", "the tokenizer's chat template does not show what a person says; take off")
    after = tokenizer.encode(talk.rpartition(ANSWER)[2], add_special_tokens=False)
    return ChatWrapper(head, tail, frozenset(after[:1]) & frozenset(tokenizer.all_special_ids))
