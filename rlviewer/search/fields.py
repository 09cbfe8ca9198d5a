"""What a filter can ask of a rollout and what its list can show: one table for the language, completion, help and docs."""

from collections.abc import Mapping
from dataclasses import dataclass

from rlviewer.review.models import Thumb
from rlviewer.runs.causes import PLACE
from rlviewer.runs.models import StopReason


@dataclass(frozen=True, slots=True)
class Field:
    """One stored value of a rollout.

    `kind`: "int", "float", "bool" (yes or no), "filled" (yes where the column is not empty), "choice" or "text".
    `path`: where it is read from, as Django spells a column seen from `Rollout`.
    """

    name: str
    label: str
    kind: str
    path: str
    help: str
    unit: str = ""
    aliases: tuple[str, ...] = ()
    choices: Mapping[str, int] | None = None
    nullable: bool = False
    is_column: bool = True  # the list can show it and be sorted by it
    is_shown: bool = False  # until a person chooses columns
    part: str = ""  # name of the part of the reward that it is, instead of a path
    is_label: bool = False  # of what people said: `path` is seen from `Label`, and one label of a rollout suffices

    @property
    def is_number(self) -> bool:
        return self.kind in {"int", "float"}

    @property
    def example(self) -> str:
        if self.part:
            return f"{self.name}>0"
        return EXAMPLES.get(self.name, {"bool": f"{self.name}:yes", "filled": f"{self.name}:yes"}.get(self.kind, ""))


EXAMPLES = {
    "reward": "reward<0.5",
    "advantage": "advantage:-1..0",
    "length": "length>200",
    "step": "step:100..200",
    "split": "split:train",
    "task": "task:addition",
    "stop": "stop:length,error",
    "answer": "answer:12",
    "entropy": "entropy>=1.5",
    "run": "run:3,4",
    "prompt": "prompt:27",
    "group": "group:5",
    "id": "id>=1000",
    "number": "number:0",
    "difficulty": "difficulty:2..4",
    "logprob": "logprob<-2",
    "clip": "clip>0.1",
    "version": "version:340",
    "stale": "stale>0",
    "cluster": "cluster:0",
    "attempt": "attempt:2",
    "algorithm": "algorithm:grpo",
    "drop": "drop:'dead group'",
    "cause": "cause:all_wrong",
    "why": "why:truncated",
    "label": "label:hack",
    "thumb": "thumb:up",
}

_ALL = (
    Field("id", "rollout", "int", "pk", "Number of the rollout, rising in the order of storing.", aliases=("rollout",)),
    Field("run", "run", "int", "run_id", "Number of the run."),
    Field(
        "step",
        "step",
        "int",
        "group__step__index",
        "Training step, from 0; of an evaluation the steps trained before it.",
        "",
        is_shown=True,
    ),
    Field("split", "split", "text", "step__split", "“train”, or the name of an evaluation set."),
    Field("task", "task", "text", "group__prompt__generator", "Family of the prompt.", aliases=("family",)),
    Field("difficulty", "difficulty", "float", "group__prompt__difficulty", "Of the prompt, as its task says.", nullable=True),
    Field("prompt", "prompt", "int", "group__prompt_id", "Number of the prompt: the same through all steps and runs."),
    Field("group", "group", "int", "group__index", "Number of the group in its step, from 0.", is_shown=True),
    Field("number", "number", "int", "number", "Number of the rollout in its group, from 0."),
    Field("reward", "reward", "float", "reward", "What the reward function gave, unscaled.", nullable=True, is_shown=True),
    Field("advantage", "advantage", "float", "advantage", "Reward against its baseline.", aliases=("adv",), nullable=True, is_shown=True),
    Field("correct", "correct", "bool", "correct", "Whether the answer was judged right.", nullable=True, is_shown=True),
    Field("answer", "answer", "text", "parsed_answer", "The answer that was read from the completion.", nullable=True, is_shown=True),
    Field("length", "length", "int", "length_tokens", "Tokens of the completion.", "tokens", aliases=("len", "tokens"), is_shown=True),
    Field(
        "stop",
        "ended",
        "choice",
        "stop_reason",
        "How the completion ended: by itself, cut at the token limit, or by an error.",
        choices={reason.label: reason.value for reason in StopReason},
        is_shown=True,
    ),
    Field("entropy", "entropy", "float", "entropy_mean", "Mean over the counted tokens.", "nats", nullable=True),
    Field("logprob", "log-probability", "float", "logprob_mean", "Mean of the sampler's over the counted tokens.", "nats", nullable=True),
    Field("clip", "clipped", "float", "clip_share", "Share of counted tokens that the update clipped, 0 to 1.", nullable=True),
    Field("version", "policy version", "int", "policy_version", "Steps trained when it was sampled.", nullable=True),
    Field("stale", "staleness", "int", "staleness_steps", "Steps between the weights that sampled it and those trained.", "steps", nullable=True),
    Field("cluster", "answer cluster", "int", "answer_cluster", "Equal answers of a group share it.", nullable=True),
    Field("kept", "kept", "bool", "kept", "Whether it entered the update."),
    Field("drop", "drop reason", "text", "drop_reason", "Why it was left out of the update."),
    Field("dead", "dead group", "filled", "group__dead_cause", "Every rollout of its group got the same reward.", is_column=False),
    Field("cause", "dead cause", "text", "group__dead_cause", "Why its group is dead: all_right, all_wrong, same_score, single, unscored."),
    Field(
        "why",
        "why it taught nothing",
        "choice",
        "group__groupsignal__cause",
        "The first cause that fits a dead group; worked out some seconds after storing.",
        choices=PLACE,
        nullable=True,
        is_column=False,
    ),
    Field("attempt", "attempt", "int", "step__attempt__number", "Try of the run that stored it.", is_column=False),
    Field("algorithm", "algorithm", "text", "step__run__algorithm", "Of the run.", is_column=False),
    Field("label", "label", "text", "name__name", "A label that somebody gave it, or a range of its tokens.", nullable=True, is_column=False, is_label=True),
    Field("thumb", "thumb", "choice", "thumb", "A thumb that somebody gave it, or a range of its tokens.", choices={thumb.label: thumb.value for thumb in Thumb}, nullable=True, is_column=False, is_label=True),
    Field("labelled", "labelled", "bool", "", "Whether somebody gave it a thumb or a label.", is_column=False, is_label=True),
)  # fmt: skip
FIELDS: dict[str, Field] = {field.name: field for field in _ALL}
BY_WORD: dict[str, Field] = {word: field for field in _ALL for word in (field.name, *field.aliases)}
COLUMNS = tuple(field.name for field in _ALL if field.is_column)
SHOWN = tuple(field.name for field in _ALL if field.is_shown)
# What the list can show beside: read with the texts, so there is no order and no filter by it.
TRANSFORM = Field(
    "transform", "transform", "text", "", "Of the prompt, before the policy was asked.", nullable=True, is_column=False
)
PART_PREFIX = "part."


def part_field(name: str) -> Field:
    """The part of the reward of this name: the sum of its spans. Which names there are is up to the runs."""
    written = name if name.isidentifier() and name.isascii() else f'"{name}"'
    return Field(
        f"{PART_PREFIX}{written}",
        name,
        "float",
        "",
        f"The reward's part “{name}”.",
        nullable=True,
        is_column=False,
        part=name,
    )


# The language beside its fields: form, meaning, example.
FORMS = (
    ("word", "the completion contains this word, whatever its case", "carry"),
    ("word*", "a word that begins like this", "carr*"),
    ('"a phrase"', "these words in this order", '"carry the one"'),
    ("'characters'", "exactly these characters, anywhere; 'abc'i ignores case", "'= 12'"),
    ("/expression/", "a regular expression; /abc/i ignores case", "/so = \\d+$/"),
    ('prompt:"words"', "the same of the prompt: words, 'characters' or /expression/", 'prompt:"how many"'),
    ("field<value", "also <= > >= = and != ; a colon is the same as =", "reward<0.5"),
    ("part.name<value", "the part of the reward of this name; in quotes when it is not one word", "part.format>0"),
    ("field:low..high", "from low to high, both included; either may be left out", "step:100..200"),
    ("field:a,b", "one of several values", "stop:length,error"),
    ("field:abc*", "a text that begins like this", "answer:1*"),
    ("field:none", "nothing is stored; nan: stored and not a number", "reward:none"),
    ("-condition", "everything that the condition does not match, missing values included", "-stop:stop"),
    ("a or b", "either; conditions side by side must all hold; brackets group", "(reward:1 or length<20) dead:no"),
)
