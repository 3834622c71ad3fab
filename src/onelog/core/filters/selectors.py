"""Selectors: conditions on a message's headers in the language of JMS, as ActiveMQ has it.

A name with other signs stands in double quotes. The meaning is that of SQL: a header that is absent
makes a condition unknown, and what is unknown is no match.

Headers are texts. One that is compared or reckoned with a number is read as a number; if it is none
the condition is unknown. (ActiveMQ refuses that; its prefix `convert_string_expressions:` is
understood here, and changes nothing.) RocketMQ's filters are another language: `sql92`.
"""

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onelog.core.filters.sql import (
    NOT,
    Expression,
    Language,
    OperandError,
    Properties,
    Relation,
    is_null,
    joined,
    negation,
    node,
    parse,
    predicate,
)

NUMBER_CHARACTERS_MAX = 100
LIKE_TERMS = 10
"""What LIKE counts for: it goes through all of a text."""
_CONVERTING = "convert_string_expressions:"

Selector = Callable[[Mapping[str, Any]], bool]


@functools.lru_cache(maxsize=256)
def compile_selector(text: str) -> Selector:
    """A function that tells whether a message with these headers is selected."""
    evaluate = parse(text.strip().removeprefix(_CONVERTING), LANGUAGE)

    def is_selected(headers: Mapping[str, Any]) -> bool:
        return evaluate(headers) is True

    return is_selected


def _constant(value: str | float | None) -> Expression:
    return Expression(lambda headers: value, value=value, literal=True)


def _named(name: str) -> Expression:
    return Expression(lambda headers: headers.get(name))


def _read(value: Any) -> int | float | None:
    """A number, of a number or a text; None if that is none."""
    if isinstance(value, bool) or value is None:
        return None
    if not isinstance(value, str):
        return value if isinstance(value, int | float) else None
    if len(value) > NUMBER_CHARACTERS_MAX or not value.isascii() or "_" in value:
        return None
    try:
        return int(value)
    except ValueError:
        pass
    try:
        found = float(value)
    except ValueError:
        return None
    return None if math.isnan(found) else found


def _are_equal(left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        texts = [str(each).lower() for each in (left, right)]
        return texts[0] == texts[1]
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    one, other = _read(left), _read(right)
    return None if one is None or other is None else one == other


def _equal(left: Expression, right: Expression, negated: bool) -> Expression:
    first, second = left.evaluate, right.evaluate

    def equals(headers: Properties) -> bool | None:
        found = _are_equal(first(headers), second(headers))
        return None if found is None else found is not negated

    return predicate(equals, left, right)


def _ordered(left: Expression, relation: Relation, right: Expression) -> Expression:
    first, second = left.evaluate, right.evaluate

    def compares(headers: Properties) -> bool | None:
        one, other = _read(first(headers)), _read(second(headers))
        return None if one is None or other is None else relation(one, other)

    return predicate(compares, left, right)


def _between(operand: Expression, low: Expression, high: Expression, negated: bool) -> Expression:
    evaluates = [each.evaluate for each in (low, operand, high)]

    def is_between(headers: Properties) -> bool | None:
        numbers = [_read(evaluate(headers)) for evaluate in evaluates]
        if any(each is None for each in numbers):
            return None
        least, found, most = numbers
        return (least <= found <= most) is not negated  # type: ignore[operator]

    return predicate(is_between, low, operand, high)


def _one_of(operand: Expression, choices: Sequence[Expression], negated: bool) -> Expression:
    evaluate, others = operand.evaluate, [each.evaluate for each in choices]

    def is_one(headers: Properties) -> bool | None:
        value = evaluate(headers)
        if value is None:
            return None
        return any(_are_equal(value, other(headers)) for other in others) is not negated

    return predicate(is_one, operand, *choices, weight=len(choices))


def _reckoned(
    left: Expression, operation: Callable[[Any, Any], Any], right: Expression
) -> Expression:
    first, second = left.evaluate, right.evaluate

    def reckoned(headers: Properties) -> Any:
        one, other = _read(first(headers)), _read(second(headers))
        if one is None or other is None:
            return None
        try:
            return operation(one, other)
        except (ZeroDivisionError, OverflowError):
            return None

    return node(reckoned, left, right, weight=2)


def _negative(operand: Expression) -> Expression:
    return _reckoned(_constant(0), operator.sub, operand)


def _like(operand: Expression, pattern: str, escape: str | None, negated: bool) -> Expression:
    if escape is not None and len(escape) != 1:
        raise OperandError(f"ESCAPE takes one character, and not {escape!r}")
    evaluate, is_like = operand.evaluate, _compiled(pattern, escape)

    def likes(headers: Properties) -> bool | None:
        value = evaluate(headers)
        return is_like(value) is not negated if isinstance(value, str) else None

    # For `_`, it goes that far from each of the text's places.
    weight = LIKE_TERMS + (len(pattern) if "_" in pattern and "%" in pattern else 0)
    return predicate(likes, operand, weight=1 + weight)


def _compiled(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """`%` is any text, `_` any character, and what follows the escape is itself.

    What is between two `%` is looked for from left to right, and where it is found first is as good
    as any later place: nothing is tried twice.
    """
    runs: list[list[str]] = [[]]
    is_escaped = False
    for each in pattern:
        if is_escaped or each not in ("%", "_", escape):
            runs[-1].append(re.escape(each))
            is_escaped = False
        elif each == escape:
            is_escaped = True
        elif each == "%":
            runs.append([])
        else:
            runs[-1].append(".")
    first, *others = (re.compile("".join(run), re.DOTALL) for run in runs)
    if not others:
        return lambda text: first.fullmatch(text) is not None
    last, last_size = others.pop(), len(runs[-1])
    middle = [run for run in others if run.pattern]

    def is_like(text: str) -> bool:
        found = first.match(text)
        for run in middle:
            if found is None:
                return False
            found = run.search(text, found.end())
        tail = len(text) - last_size
        return found is not None and found.end() <= tail and last.match(text, tail) is not None

    return is_like


LANGUAGE = Language(
    name="selector",
    subject="header",
    token=re.compile(
        r"""(?P<blank>\s+)
          | (?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?[lLfFdD]?)
          | (?P<text>'(?:''|[^'])*')
          | (?P<quoted>"(?:""|[^"])+")
          | (?P<name>[^\W0-9][\w$.]*)
          | (?P<symbol><>|!=|>=|<=|[=<>(),+*/%-])""",
        re.VERBOSE,
    ),
    depth_max=400,
    limit_hint=f"LIKE counts for {LIKE_TERMS}; with % and _ for as many more as it has characters",
    not_strength=NOT,
    number=lambda text: _constant(_read(text.rstrip("lLfFdD"))),
    text=_constant,
    constant=_constant,
    named=_named,
    condition=lambda operand: operand,
    joined=joined,
    negation=negation,
    negative=_negative,
    is_null=is_null,
    equal=_equal,
    ordered=_ordered,
    between=_between,
    one_of=_one_of,
    text_tests={"LIKE": _like},
    arithmetic=_reckoned,
)
"""The words of JMS."""
