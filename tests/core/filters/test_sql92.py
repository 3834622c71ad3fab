import json
import timeit
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.filters.sql import CHARACTERS_MAX, TERMS_MAX
from onelog.core.filters.sql92 import compile_sql
from onelog.errors import FilterSyntaxError

# Random filters and messages with the answers of RocketMQ 5.5.0's own SelectorParser; None means
# that it refused the filter.
Captured = tuple[str, list[tuple[dict[str, str], bool]] | None]
CAPTURED: list[Captured] = json.loads(
    (Path(__file__).parent / "data" / "rocketmq_5_5_0_filters.json").read_text()
)


def refusal(expression: str) -> str:
    with pytest.raises(FilterSyntaxError) as caught:
        compile_sql(expression)
    return str(caught.value)


def test_captured_filters_select_what_rocketmq_selects() -> None:
    wrong = [
        (expression, properties)
        for expression, answers in CAPTURED
        for properties, answer in answers or []
        if compile_sql(expression)(properties) is not answer
    ]
    assert wrong == []


def test_captured_filters_that_rocketmq_refuses_are_refused() -> None:
    refused = [expression for expression, answers in CAPTURED if answers is None]
    assert len(refused) >= 100
    for expression in refused:
        assert refusal(expression)


@pytest.mark.parametrize(
    ("expression", "properties", "answer"),
    [
        ("a = 'x'", {"a": "x"}, True),
        ("a='x'", {"a": "X"}, False),
        ("A = 'x'", {"a": "x"}, False),
        ("a = 'it''s'", {"a": "it's"}, True),
        ("a = ''''", {"a": "'"}, True),
        ("a <> 'x'", {"a": "y"}, True),
        ("a <> 'x'", {}, False),
        ("a > 5 and b < 2.5", {"a": "6", "b": "2.4"}, True),
        ("a BETWEEN 2 AND 10", {"a": "10"}, True),
        ("a NOT between 2 And 10", {"a": "11"}, True),
        ("a IN ('x', 'y')", {"a": "y"}, True),
        ("a not in ('x','y')", {"a": "z"}, True),
        ("a not in ('x','y')", {}, False),
        ("a is null", {}, True),
        ("a IS NOT NULL", {"a": ""}, True),
        ("a contains 'b'", {"a": "abc"}, True),
        ("a NOT CONTAINS 'x'", {"a": "abc"}, True),
        ("a StartsWith 'a' AND a endswith 'c'", {"a": "abc"}, True),
        ("a not startswith 'b' and a not endswith 'b'", {"a": "abc"}, True),
        ("a = TRUE or b = false", {"a": "no", "b": "FALSE"}, True),
        ("(a = 'x' OR a = 'y') AND b = 'z'", {"a": "y", "b": "z"}, True),
        ("a = 'x' OR a = 'y' AND b = 'z'", {"a": "x"}, True),
        ("a > -5", {"a": "-4"}, True),
        ("a > +5", {"a": "6"}, True),
        ("a > --5\n 3", {"a": "4"}, True),
        ("a /* not b */ = -- neither c\n 'x'", {"a": "x"}, True),
        ("$a_1 = '日本'", {"$a_1": "日本"}, True),
        ("a = 3.1E10", {"a": "31000000000"}, True),
        ("a > 0.0", {"a": "0.5"}, True),
        ("TRUE", {}, True),
        ("not false", {}, True),
        ("null", {}, False),
        ("inn = 'x' and nots = 'y'", {"inn": "x", "nots": "y"}, True),
    ],
)
def test_a_filter_selects(expression: str, properties: dict[str, str], answer: bool) -> None:
    assert compile_sql(expression)(properties) is answer


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "at character 1: expected a property, a number, a text or '(', found the end"),
        ("a = ", "at character 5: expected a property, a number, a text or '(', found the end"),
        ("a = 1 b", "at character 7: expected an operator or the end, found b"),
        ("a LIKE 'x'", "at character 3: expected an operator or the end, found LIKE"),
        ("(a = 1", "at character 7: expected an operator or ')', found the end"),
        ("a = 1)", "at character 6: expected an operator or the end, found )"),
        ("a and between 2 and 10", "at character 7: expected a property, a number, a text or"),
        ("a between 1 or 2", "at character 13: expected AND, found or"),
        ("a in 'x'", "at character 6: expected '(', found 'x'"),
        ("a in ()", "at character 7: expected a text in quotes, found )"),
        ("a in ('x' 'y')", "at character 11: expected ',' or ')', found 'y'"),
        ("a in (1)", "at character 7: expected a text in quotes, found 1"),
        ("a contains b", "at character 12: expected a text in quotes, found b"),
        ("a is 5", "at character 6: expected NULL or NOT NULL, found 5"),
        ("a is not 5", "at character 10: expected NULL or NOT NULL, found 5"),
        ("a not = 5", "at character 7: expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH"),
        ("a = 'x", 'at character 5: "\'x" is a text that does not end'),
        ("a = 1;", "at character 6: ';' is no part of any filter"),
        ("a == 1", "at character 4: expected a property, a number, a text or '(', found ="),
        ("a > 'x'", "at character 3, >: only numbers and properties have an order"),
        ("5 > (a = 1)", "at character 3, >: only numbers and properties have an order"),
        ("a between 'a' and 'b'", "at character 3, between: only numbers and properties"),
        ("a between 10 and 0", "at character 3, between: BETWEEN 10 AND 0 can never be true"),
        ("a = null", "at character 3, =: NULL cannot be compared; write IS NULL"),
        ("true = 5", "at character 6, =: TRUE and FALSE cannot be compared with a number"),
        ("'x' in ('x')", "at character 5, in: only a property can be looked for by IN"),
        ("5", "at character 1, 5: this is a value, where a condition is needed"),
        ("a = 1 and 'x'", "at character 7, and: this is a value, where a condition is needed"),
        ("a = 1 or -b", "at character 7, or: this is a value, where a condition is needed"),
        ("not 5 = a", "at character 1, not: this is a value, where a condition is needed"),
        ("a > 9223372036854775808", "at character 5, 9223372036854775808: beyond"),
        ("a > " + "9" * 9000, ": beyond the range of a long"),
        ("a > 1e400", "at character 5, 1e400: beyond the range of a double"),
        ("a > 007", "at character 6: expected an operator or the end, found 0"),
    ],
)
def test_a_filter_that_is_none_is_refused_with_place_and_reason(expression: str, said: str) -> None:
    assert said in refusal(expression)


def test_a_filter_has_at_most_16000_characters() -> None:
    longest = "a = 1".ljust(CHARACTERS_MAX)
    assert compile_sql(longest)({"a": "1"})
    assert refusal(longest + " ") == "the filter has 16001 characters; the limit is 16000"


def test_parentheses_are_nested_at_most_100_deep() -> None:
    assert compile_sql("(" * 100 + "a = 1" + ")" * 100)({"a": "1"})
    assert refusal("(" * 101 + "a = 1" + ")" * 101) == (
        "at character 101: more than 100 open parentheses"
    )


@pytest.mark.parametrize(
    "expression",
    ["not " * 150 + "true", "a" + " is null" * 150, "a" + " = a" * 150, "-" * 150 + "a = 1"],
)
def test_operators_are_nested_at_most_100_deep(expression: str) -> None:
    assert "conditions are nested more than 100 deep" in refusal(expression)


@pytest.mark.parametrize("word", ["and", "or"])
def test_a_filter_may_be_long_without_being_deep(word: str) -> None:
    expression = f" {word} ".join(f"a{at} = {at}" for at in range(TERMS_MAX))
    assert compile_sql(expression)({f"a{at}": str(at) for at in range(TERMS_MAX)})


@pytest.mark.parametrize(
    "expression",
    [
        " or ".join(["a = 1"] * 501),
        " or ".join(["a"] * 501),
        " and ".join(["a between 1 and 2"] * 251),
        " or ".join(["a contains 'x'"] * 51),
        "not (" + " or ".join(["a = 1"] * 500) + ")",
        " = ".join(["(a <> 1 and a is not null)"] * 90 + ["a"] * 400),
    ],
)
def test_a_filter_has_at_most_500_conditions(expression: str) -> None:
    said = refusal(expression)
    assert "more than 500 conditions" in said
    assert "IN takes many values of one property" in said


def test_a_condition_that_is_evaluated_twice_counts_twice() -> None:
    # 2**30 comparisons for each message, if it were taken.
    expression = "a"
    for _ in range(30):
        expression = f"-({expression} BETWEEN 1 AND 2)"
    assert "more than 500 conditions" in refusal(f"{expression} BETWEEN 1 AND 2")


def test_in_takes_thousands_of_texts() -> None:
    texts = ",".join(f"'{at}'" for at in range(2_300))
    assert compile_sql(f"a in ({texts})")({"a": "2299"})


def test_a_filter_has_at_most_8000_words_and_signs() -> None:
    assert refusal("a > " + "-" * 9_000 + "1") == (
        "at character 8003: more than 8000 words and signs"
    )


def test_two_minus_signs_begin_a_comment_only_where_a_line_ends() -> None:
    assert compile_sql("a = 1 -- the first\n or b = --2")({"b": "2"})
    assert compile_sql("a = ----1")({"a": "1"})
    assert compile_sql("-- all\r\na = 1")({"a": "1"})


@pytest.mark.parametrize("condition", ["a = 0", "a = 0.0"])
def test_what_has_more_than_100_characters_is_no_number(condition: str) -> None:
    matches = compile_sql(condition)
    assert matches({"a": "0" * 100})
    assert not matches({"a": "0" * 101})


# Words of the language in any order reach further into the parser than any characters do.
words = st.sampled_from(
    "a b 1 2.5 'x' '' ( ) , = <> > < >= <= + - NOT AND OR IN IS NULL TRUE FALSE BETWEEN CONTAINS "
    "STARTSWITH ENDSWITH ' @ -- /* */ 1e9 99999999999999999999".split()
)
properties_dicts = st.dictionaries(
    st.sampled_from("ab"), st.sampled_from(["", "1", "x", "-2.5", "1e9", "true"])
)


@given(st.lists(words, max_size=25).map(" ".join) | st.text(), properties_dicts)
def test_any_text_is_a_filter_or_refused(expression: str, properties: dict[str, str]) -> None:
    try:
        matches = compile_sql(expression)
    except FilterSyntaxError:
        assert refusal(expression).startswith("at ")
        return
    assert matches(properties) in (True, False)


@given(st.text(), st.text())
def test_any_text_can_be_looked_for(wanted: str, other: str) -> None:
    matches = compile_sql("a = '{}'".format(wanted.replace("'", "''")))
    assert matches({"a": wanted})
    assert matches({"a": other}) is (wanted == other)


def test_a_filter_is_compiled_once() -> None:
    assert compile_sql("a = 'once'") is compile_sql("a = 'once'")


def test_a_comparison_takes_microseconds() -> None:
    matches, properties = compile_sql("a > 5"), {"a": "7", "b": "x"}
    rounds = 10_000
    best_s = min(timeit.repeat(lambda: matches(properties), number=rounds, repeat=5)) / rounds
    # Measured: 0.5 us. The margin is for slow and busy machines.
    assert best_s < 10e-6
