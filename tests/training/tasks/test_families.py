"""What holds for every family of our own."""

import random
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.config import ConfigError
from training.tasks import addition, catalog, modular_arithmetic, multiplication, natbool_dag
from training.tasks.alphabet import ALPHABET
from training.tasks.base import Task
from training.tasks.countdown import ExpressionError, evaluate
from training.tasks.stream import make_task

FAMILIES = list(catalog.FAMILIES)
SEEDS = range(100)
HARDEST = {
    "addition": {"digits": 100, "terms": 16},
    "multiplication": {"digits": 50, "other_digits": 50},
    "modular_arithmetic": {"terms": 16, "digits": 12, "largest_modulus": 10_000},
    "sorting": {"count": 64, "digits": 9},
    "reversal": {"length": 100},
    "countdown": {"count": 8, "largest_number": 999, "largest_target": 99_999},
    "natbool_dag": {"inputs": 8, "depth": 16, "fan_in": 4},
}


def make(name: str, seed: int, **params: int) -> Task:
    family = catalog.FAMILIES[name]
    return make_task(family, catalog.make_params(family, params), seed)


def check(task: Task, completion: str) -> bool:
    return catalog.FAMILIES[task.family].check(task, completion).correct


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("params", ["default", "hardest"])
def test_the_oracle_is_right_and_its_steps_join_up(name: str, params: str) -> None:
    for seed in SEEDS:
        task = make(name, seed, **(HARDEST[name] if params == "hardest" else {}))
        assert check(task, task.answer)
        assert check(task, task.solution)
        assert "".join(task.solution[step.start : step.end] for step in task.oracle) == task.solution
        assert [step.text for step in task.oracle] == [task.solution[step.start : step.end] for step in task.oracle]
        assert set(task.prompt + task.solution) <= set(ALPHABET)
        assert task.oracle[-1].text == task.answer


@pytest.mark.parametrize("name", FAMILIES)
def test_a_perturbed_answer_is_wrong(name: str) -> None:
    rng = random.Random(0)
    for seed in SEEDS:
        task = make(name, seed)
        position = rng.randrange(len(task.answer))
        for perturbed in (
            task.answer[:position] + task.answer[position + 1 :],
            task.answer + task.answer[-1],
            f"{task.answer};",
            f"{task.answer} {task.answer}",
            "-" + task.answer,
            task.answer.upper() + "X",
        ):
            assert perturbed == task.answer or not check(task, perturbed), (task.prompt, perturbed)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_seed_makes_the_same_task(name: str) -> None:
    assert [make(name, seed) for seed in range(5)] == [make(name, seed) for seed in range(5)]
    assert len({make(name, seed).prompt for seed in range(50)}) > 40


@pytest.mark.parametrize("name", FAMILIES)
def test_every_knob_is_bounded_and_explained(name: str) -> None:
    family = catalog.FAMILIES[name]
    assert family.name == name
    for knob, param in family.params.items():
        assert param.help.endswith(".")
        assert param.low is not None and param.high is not None
        for value in (param.low - 1, param.high + 1):
            with pytest.raises(ConfigError) as caught:
                catalog.make_params(family, {knob: int(value)})
            assert caught.value.key == f"task.params.{knob}"


HOSTILE = [
    "",
    " ",
    "\x00",
    "\ud800",
    "\udcff46",
    "5" * 5000,
    "9" * 5_000_000,
    "(" * 5_000_000,
    ";" * 100_000,
    "--5",
    "+46",
    "４６",
    "٤٦",
    "4६",
    "²",
    "1e3",
    "0x2e",
    "4_6",
    "46.0",
    "46\x00",
    "True\u2028",
    "true",
    "1/0",
    "1//1",
    "2**9999999",
    "(" * 500 + "1" + ")" * 500,
    "7 " * 2000,
]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_completion_is_wrong_and_never_a_crash(name: str, number: int) -> None:
    task = make(name, 0)
    family = catalog.FAMILIES[name]
    for completion in (HOSTILE[number], f"work;{HOSTILE[number]}", task.answer + HOSTILE[number].strip(" ") + "?"):
        verdict = family.check(task, completion)
        assert not verdict.correct
        assert verdict.reward == 0.0
        assert verdict.feedback
        assert len(verdict.feedback) < 5000
        verdict.feedback.encode()


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=()), max_size=30), seed=st.integers(0, 20))
def test_whatever_is_written_only_the_answer_is_right(name: str, text: str, seed: int) -> None:
    task = make(name, seed)
    verdict = catalog.FAMILIES[name].check(task, text)
    assert verdict.reward in (0.0, 1.0)
    assert verdict.correct == (verdict.reward == 1.0)
    # A right text can only be the answer in ASCII; a countdown may be solved in another way.
    assert not verdict.correct or (text.isascii() and (name == "countdown" or task.answer in text))
    verdict.feedback.encode()


@pytest.mark.parametrize("name", ["addition", "multiplication", "modular_arithmetic"])
@given(digits=st.sampled_from("٠١٢٣٤٥٦٧٨٩०१२३４５６𝟒𝟔"))
@settings(max_examples=10, deadline=None)
def test_digits_of_other_scripts_are_no_answer(name: str, digits: str) -> None:
    task = make(name, 3)
    translated = "".join(chr(0x0660 + int(char)) for char in task.answer)
    verdict = catalog.FAMILIES[name].check(task, translated)
    assert (verdict.correct, verdict.parsed_answer) == (False, None)
    assert catalog.FAMILIES[name].check(task, task.answer + digits).parsed_answer is None


def test_addition_shows_its_carries() -> None:
    assert addition.columns([25, 88]) == ["5+8=13;", "2+8+1=11;"]
    assert addition.columns([7, 95]) == ["7+5=12;", "0+9+1=10;"]


def test_multiplication_shows_its_rows() -> None:
    assert multiplication.rows(12, 34) == ["12*4=48;", "12*30=360;", "48+360=408;"]


def test_modular_arithmetic_never_goes_below_zero() -> None:
    work, remainder = modular_arithmetic.reduce([("+", [3]), ("-", [2, 5]), ("+", [8])], 7)
    assert work == ["3%7=3;", "2*5%7=3;", "(3-3)%7=0;", "8%7=1;", "(0+1)%7=1;"]
    assert remainder == (3 - 10 + 8) % 7


def test_leading_zeros_and_signs_are_another_answer() -> None:
    task = Task(family="addition", params={}, difficulty=1.0, prompt="12+34=", answer="46")
    verdict = catalog.FAMILIES["addition"].check(task, "046")
    assert (verdict.correct, verdict.parsed_answer, verdict.feedback) == (False, "046", "Expected 46, got 046.")
    assert catalog.FAMILIES["addition"].check(task, "2+4=6;\n46\n").correct


def test_countdown_takes_any_expression_that_makes_the_target() -> None:
    task = Task(
        family="countdown",
        params={},
        difficulty=3.0,
        prompt="3 5 7 make 22=",
        answer="3*5+7",
        payload={"numbers": [3, 5, 7], "target": 22},
    )
    assert check(task, "7+5*3")
    assert check(task, " ( 7 + (3 * 5) ) ")
    assert not check(task, "22")
    assert not check(task, "3*5+7+0")
    assert not check(task, "3*5")
    assert not check(task, "35-7-5-1")
    verdict = catalog.FAMILIES["countdown"].check(task, "3+5+7")
    assert (verdict.parsed_answer, verdict.feedback) == ("3+5+7", "Expected 22, this makes 15.")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1-2-3", -4), ("2+3*4", 14), ("(2+3)*4", 20), ("12/3/2", 2), ("1/3*3", 1), ("2*(3+(4-1))", 12), ("7", 7)],
)
def test_expressions_have_the_usual_value(text: str, value: int) -> None:
    assert evaluate(text)[1] == value


@pytest.mark.parametrize("text", ["", "1+", "+1", "1 2", "(1", "1)", "()", "1/0", "1/(2-2)", "a", "2^3", "1" * 10])
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text)


def test_a_deeply_nested_expression_needs_no_stack() -> None:
    depth = sys.getrecursionlimit() * 2
    assert evaluate("(" * depth + "1" + ")" * depth)[1] == 1


def test_no_gate_of_a_dag_can_be_skipped() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        inputs = [rng.random() < 0.5 for _ in range(4)]
        gates = natbool_dag.draw_gates(rng, inputs, 4, 3)
        values = natbool_dag.evaluate(inputs, gates)
        for level, (kind, reads) in enumerate(gates):
            read = [values[index] for index in reads]
            assert level == 0 or len(inputs) + level - 1 in reads
            for place in range(len(read)):
                flipped = [not value if place == index else value for index, value in enumerate(read)]
                assert natbool_dag.gate_value(kind, flipped) != natbool_dag.gate_value(kind, read)


def test_true_and_false_are_equally_likely() -> None:
    counts = Counter(make("natbool_dag", seed).answer for seed in range(1000))
    assert 430 < counts["True"] < 570
    assert counts["True"] + counts["False"] == 1000


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean sorting\?") as caught:
        catalog.resolve("sortin")
    assert caught.value.key == "task.name"
