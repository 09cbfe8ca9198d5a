"""The filter language: every text is a question that Postgres answers, or an error with its place."""

import math
from pathlib import Path

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from rlviewer.runs.models import Rollout
from rlviewer.search.compile import compile_filter
from rlviewer.search.documentation import document
from rlviewer.search.fields import BY_WORD, FIELDS, FORMS
from rlviewer.search.language import FilterError, parse
from rlviewer.search.tree import All, Any, Comparison, Not, Prefix, Range, Text

BY_NAME = FIELDS


def compared(name: str, op: str, *values) -> Comparison:
    return Comparison(BY_NAME[name], op, values)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ()),
        ("reward<0.5", (compared("reward", "<", 0.5),)),
        ("len>=200 adv:-1..", (compared("length", ">=", 200), compared("advantage", "=", Range(-1.0, None)))),
        ("step:100..200", (compared("step", "=", Range(100, 200)),)),
        ("stop:length,error", (compared("stop", "=", 1, 2),)),
        ("dead:true correct:no", (compared("dead", "=", True), compared("correct", "=", False))),
        ("reward:none", (compared("reward", "=", None),)),
        ("run!=3", (Not(compared("run", "=", 3)),)),
        ("task:addition answer:1*", (compared("task", "=", "addition"), compared("answer", "=", Prefix("1")))),
        ("drop:'dead group'", (compared("drop", "=", "dead group"),)),
        ("answer:''", (compared("answer", "=", ""),)),
        ("reward:none,0", (compared("reward", "=", None, 0.0),)),
    ],
)
def test_comparisons(text: str, parts: tuple) -> None:
    assert parse(text).parts == parts


def test_texts() -> None:
    found = parse("carry carr* \"carry the one\" 'a \\'b' 'C'i /x+/i /a\\/b/ + it's").parts
    assert [(part.kind, part.text, part.ignores_case) for part in found if isinstance(part, Text)] == [
        ("words", "carry", False),
        ("prefix", "carr", False),
        ("words", "carry the one", False),
        ("substring", "a 'b", False),
        ("substring", "C", True),
        ("regex", "x+", True),
        ("regex", "a/b", False),
        ("substring", "+", False),
        ("words", "it's", False),
    ]


def test_either_binds_tighter_than_both() -> None:
    a, b, c = (compared("step", "=", n) for n in (1, 2, 3))
    assert parse("step:1 or step:2 step:3").parts == (Any((a, b)), c)
    assert parse("-(step:1 step:2) step:3").parts == (Not(All((a, b))), c)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("reward<", (7, 7), "a number"),
        ("reward<abc x", (7, 10), "a number, not “abc”"),
        ("a rewrd<1", (2, 7), "did you mean reward?"),
        ("x=5", (0, 1), 'quote it: "x='),
        ("step:1.5", (5, 8), "a whole number"),
        ("step:1..x", (8, 9), "a whole number"),
        ("step:..", (5, 7), "before or after"),
        ("step:1,,2", (7, 7), "a whole number"),
        ("stop:never", (5, 10), "stop, length or error"),
        ("dead:maybe", (5, 10), "yes or no"),
        ("task<b", (4, 5), "no order"),
        ('ok "open', (3, 4), "closing quote"),
        ("/open", (0, 1), "closing slash"),
        ("(a", (0, 1), "closing bracket"),
        ("a)", (1, 2), "closes nothing"),
        ("()", (0, 2), "between the brackets"),
        ("a or", (4, 4), "after “or”"),
        ("or a", (0, 2), "before “or”"),
        ("''", (0, 2), "between the quotes"),
        ("step:" + "9" * 19, (5, 24), "18 digits"),
        (r"/(a)\1/", (4, 6), "References back"),
        ("(" * 13 + "a" + ")" * 13, (12, 27), "12 deep"),
        ("a " * 41, (80, 82), "40 conditions"),
        ("a" * 1001, (1000, 1001), "1000 are allowed"),
        ("/" + "a" * 201 + "/", (201, 202), "200 characters"),
    ],
)
def test_errors_name_their_place(text: str, place: tuple[int, int], words: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert (caught.value.start, caught.value.end) == place and words in str(caught.value)


@pytest.mark.parametrize("pattern", ["a(", "[z-a]", "*a", "a{2,1}", "a{999}"])
def test_postgres_says_what_is_no_expression(db: None, pattern: str) -> None:
    with pytest.raises(FilterError) as caught:
        compile_filter(parse(f"step:1 /{pattern}/"))
    assert (caught.value.start, caught.value.end) == (7, 9 + len(pattern)) and "regular expression" in str(caught.value)


def test_an_expression_that_takes_too_long_to_build_is_refused_at_once(db: None) -> None:
    with pytest.raises(FilterError, match="regular expression"):
        compile_filter(parse("/((((a{1,99}){1,99}){1,99}){1,99})/"))


def test_every_example_is_a_filter(db: None) -> None:
    examples = [*(form[2] for form in FORMS), *(field.example for field in FIELDS.values())]
    for text in examples:
        list(Rollout.objects.filter(compile_filter(parse(text)).stored))
    assert all(examples) and all(field.help.endswith(".") for field in FIELDS.values())


words = st.sampled_from(
    [*BY_WORD, "x", "carry", "w*", "or", "none", "nan", "inf", "train", "12", "-3", "1e400", "9" * 18, "9" * 19]
)
signs = st.sampled_from(
    [
        ":",
        "<",
        "<=",
        ">",
        ">=",
        "=",
        "!=",
        "..",
        ",",
        "-",
        "(",
        ")",
        '"',
        "'",
        "/",
        "/i",
        "*",
        " ",
        "\\",
        "\0",
        "\ud800",
        "é",
    ]
)
likely = st.lists(st.one_of(words, signs, st.just(" ")), max_size=14).map("".join)
conditions = st.lists(
    st.tuples(
        st.sampled_from(["", "-", "(", " or "]), words, signs, words, st.sampled_from(["", ")", " or x", ".."])
    ).map("".join),
    max_size=4,
).map(" ".join)


class AnyTextTest(TestCase):
    @given(st.one_of(st.text(st.characters(codec=None), max_size=60), likely, conditions))
    @example("-(version:999999999999999999)")
    @example("-reward:inf..-inf or id:999999999999999999")
    @example("cluster<-999999999999999999")
    @example("'\\' %_\\\\'")
    @example("/\0/ \"\0\" \0 task:'\0' \ud800*")
    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    def test_any_text_gives_sql_that_runs_or_an_error_with_its_place(self, text: str) -> None:
        try:
            found = compile_filter(parse(text))
        except FilterError as error:
            assert 0 <= error.start <= error.end <= len(text) and str(error)
            return
        with transaction.atomic():
            rows = Rollout.objects.filter(found.stored)
            list(rows.filter(found.scanned)[:1] if found.scanned is not None else rows[:1])


def test_a_filter_is_never_part_of_the_sql(db: None) -> None:
    hostile = "task:'x; drop table runs_rollout; --' answer:\"%s {0}\" '); delete from runs_run; --'"
    found = compile_filter(parse(hostile))
    with connection.execute_wrapper(refuse_literals):
        list(Rollout.objects.filter(found.stored).filter(found.scanned or ()))


def refuse_literals(execute, sql, params, many, context):
    assert "drop table" not in str(sql) and "delete from" not in str(sql)
    assert any("drop table" in str(param) for param in params)
    return execute(sql, params, many, context)


def test_nan_is_a_value() -> None:
    (part,) = parse("reward:nan").parts
    assert isinstance(part, Comparison) and math.isnan(part.values[0])


def test_the_docs_are_written_from_the_same_table() -> None:
    written = (Path(__file__).parents[2] / "docs" / "filters.md").read_text(encoding="utf-8")
    assert written == document(), "run: python -m rlviewer.search.documentation > docs/filters.md"
