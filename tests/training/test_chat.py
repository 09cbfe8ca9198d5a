import pytest
from transformers import PreTrainedTokenizerFast

from training.chat import chat_wrapper
from training.config import ConfigError
from training.policy import Policy
from training.transforms import Segment, TransformedPrompt
from training.warmstart import build_tokenizer

TEMPLATE = (
    "<pad>{% for message in messages %}{{ message.role }}: {{ message.content }}<eos>"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    found = build_tokenizer()
    found.chat_template = TEMPLATE
    return found


def test_a_prompt_becomes_a_turn(tokenizer: PreTrainedTokenizerFast) -> None:
    wrapper = chat_wrapper(tokenizer, "auto")
    assert wrapper is not None
    prompt = TransformedPrompt((Segment("2+2="), Segment(" now")), name="asked")
    wrapped = wrapper.wrap(prompt)
    assert wrapped.text == "<pad>user: 2+2= now<eos>assistant: "
    assert wrapped.text == tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt.text}], tokenize=False, add_generation_prompt=True
    )
    assert (wrapped.name, [segment.text for segment in wrapped.prompt[1:3]]) == ("asked", ["2+2=", " now"])


def test_the_token_after_the_models_turn_ends_a_completion(tokenizer: PreTrainedTokenizerFast) -> None:
    wrapper = chat_wrapper(tokenizer, "on")
    assert wrapper is not None
    assert wrapper.end_ids == {tokenizer.eos_token_id}
    # A template that ends a turn with text names no token.
    tokenizer.chat_template = TEMPLATE.replace("<eos>", "\n")
    wrapper = chat_wrapper(tokenizer, "on")
    assert wrapper is not None
    assert wrapper.end_ids == frozenset()


def test_the_policy_ends_at_the_end_of_the_turn_and_starts_once(
    policy: Policy, tokenizer: PreTrainedTokenizerFast
) -> None:
    tokenizer.chat_template = TEMPLATE.replace("<eos>", "<pad>")
    wrapper = chat_wrapper(tokenizer, "on")
    talks = Policy(policy.model, tokenizer, policy.device, chat=wrapper)
    assert talks.eos_ids == {tokenizer.eos_token_id, tokenizer.pad_token_id}
    assert wrapper is not None
    ids = talks.encode(wrapper.wrap(TransformedPrompt((Segment("2"),))).text)
    assert ids[0] == tokenizer.pad_token_id
    assert tokenizer.decode(ids) == "<pad>user: 2<pad>assistant: "


def test_prompts_stay_as_they_are_without_a_template_or_when_asked(tokenizer: PreTrainedTokenizerFast) -> None:
    assert chat_wrapper(tokenizer, "off") is None
    assert chat_wrapper(build_tokenizer(), "auto") is None


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "no chat template"),
        ("{{ messages[0].role }}", "does not show what a person says"),
        ("{% if %}", "chat template fails"),
        ("{{ raise_exception('only Latin') }}", "only Latin"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(
    tokenizer: PreTrainedTokenizerFast, template: str | None, said: str
) -> None:
    tokenizer.chat_template = template
    with pytest.raises(ConfigError, match=said) as refused:
        chat_wrapper(tokenizer, "on")
    assert refused.value.key == "model.chat"
