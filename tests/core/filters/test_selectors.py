"""Selectors of JMS: which headers they select, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.filters.selectors import compile_selector
from onelog.core.filters.sql import TERMS_MAX
from onelog.errors import FilterSyntaxError

HEADERS = {"color": "red", "size": "12", "price": "9.5", "name": "O'Neil_x", "flag": "true"}


@pytest.mark.parametrize(
    "selector",
    [
        "color = 'red'",
        "color <> 'blue'",
        "color != 'blue'",
        "size > 10",
        "size >= 12",
        "size < 12.5",
        "size = 12",
        "size <> 13",
        "price * 2 = 19",
        "size / 4 + 1 = 4",
        "size - 2 > 9",
        "-size < 0",
        "size % 5 = 2",
        "size BETWEEN 10 AND 12",
        "size NOT BETWEEN 13 AND 20",
        "color IN ('red', 'blue')",
        "color NOT IN ('blue')",
        "color LIKE 'r%'",
        "color LIKE '_ed'",
        "color NOT LIKE 'b%'",
        "name LIKE 'O''N%'",
        "name LIKE '%!_x' ESCAPE '!'",
        "missing IS NULL",
        "color IS NOT NULL",
        "flag = TRUE",
        "NOT color = 'blue'",
        "NOT (color = 'blue' OR size = 1)",
        "NOT NOT color = 'red'",
        "color = 'red' AND size = 12 OR missing = 1",
        "missing = 1 OR color = 'red'",
        "convert_string_expressions:size > 10",
        "TRUE",
        "color='red' and\n size>1e1",
        "\"color\" = 'red'",
        "(color = 'red')",
        "size IN (1, 12)",
        "NOT (color = 'x' AND missing = 1)",
        "size" + "+ 0" * 200 + "= 12",
        "size > 10 = TRUE",
    ],
)
def test_what_is_selected(selector: str) -> None:
    assert compile_selector(selector)(HEADERS)


@pytest.mark.parametrize(
    "selector",
    [
        "color = 'blue'",
        "missing = 1",
        "missing <> 1",
        "NOT missing = 1",
        "color > 5",
        "NOT color > 5",
        "size = '13'",
        "missing LIKE '%'",
        "missing NOT LIKE '%'",
        "missing IN ('a')",
        "missing NOT IN ('a')",
        "size / 0 = 1",
        "color + 1 = 2",
        "color IS NULL",
        "FALSE",
        "NULL",
        "color",
        "missing BETWEEN 1 AND 2",
        "Color = 'red'",
        "color = missing",
        "name LIKE '%!_x'",
        "color = 'red' AND missing = 1",
        "size <> 12",
    ],
)
def test_what_is_not(selector: str) -> None:
    assert not compile_selector(selector)(HEADERS)


@pytest.mark.parametrize(
    ("selector", "at"),
    [
        ("", 1),
        ("color =", 8),
        ("color = 'red", 9),
        ("= 1", 1),
        ("color LIKE 5", 12),
        ("color LIKE 'a' ESCAPE 'bc'", 7),
        ("color IS 5", 10),
        ("size BETWEEN 1", 15),
        ("color NOT 5", 11),
        ("(color = 'red'", 15),
        ("a = 1 b", 7),
        ("color IN ()", 11),
        ("a ; b", 3),
        ("(" * 200, 101),
        ("1 = NOT color", 5),
    ],
)
def test_what_is_none_is_refused_with_its_place(selector: str, at: int) -> None:
    with pytest.raises(FilterSyntaxError, match=f"at character {at}[:,]"):
        compile_selector(selector)


def test_a_selector_has_a_limit_of_conditions() -> None:
    with pytest.raises(FilterSyntaxError, match="conditions"):
        compile_selector(" OR ".join(["a = 1"] * (TERMS_MAX + 1)))


WORDS = [
    "color",
    "'red'",
    "12",
    "=",
    "<>",
    "<",
    "AND",
    "OR",
    "NOT",
    "(",
    ")",
    "LIKE",
    "'%r'",
    "IN",
    "BETWEEN",
    "IS",
    "NULL",
    "+",
    "-",
    "*",
    "/",
    "TRUE",
    "ESCAPE",
    ",",
    "size",
]


@given(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join) | st.text(max_size=40))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        selector = compile_selector(text)
    except FilterSyntaxError:
        return
    assert selector(HEADERS) in (True, False)
