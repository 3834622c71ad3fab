"""RocketMQ's SQL-92 filters: the words of its SelectorParser, and what they mean.

The meaning is RocketMQ's, surprises included, so that a filter selects the same messages here as
there:

- A property is a text or absent. Compared with a number it is read as the number's own Java type:
  `a > 5` reads an int, so "5.5" and "3000000000" are no match; `a > 5.0` reads a double.
- What cannot be read fails the whole filter, also below NOT and OR: the message does not match.
  Here that is a `ValueError`, which only `compile_sql` catches.
- Absent properties make a condition unknown (None); AND, OR and NOT are three-valued; only True
  matches. Yet `'x' = a` with `a` absent is False, and `a = b` with both absent is True.
- NOT binds tighter than comparison: `NOT a = 1` compares the condition `NOT a` with 1.

Other than there, words after the end of a filter are an error, so that `a LIKE 'x'` is refused
instead of selecting nothing; and 0.0 is a number like any other. `--` comments end with a line
break.

Invariant: the kind of every node is known before any message is seen, so that the right comparison
is chosen once, when the filter is compiled.
"""

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from onelog.core.filters.sql import (
    Evaluate,
    Expression,
    Language,
    OperandError,
    Relation,
    Value,
    ValueKind,
    is_null,
    joined,
    negation,
    node,
    parse,
    predicate,
)

Properties = Mapping[str, str]
Predicate = Callable[[Properties], bool]
Compare = Callable[[Any, Any], int]

CONTAINS_TERMS = 10
"""What CONTAINS counts for: it goes through all of a text, which may have 32 KB."""
NUMBER_CHARACTERS_MAX = 100
"""What a property may have to be read as a number: reading takes the longer the longer it is."""
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


@functools.lru_cache(maxsize=256)
def compile_sql(expression: str) -> Predicate:
    """A function that tells whether a message with these properties matches the filter."""
    evaluate = parse(expression, LANGUAGE)

    def matches(properties: Properties) -> bool:
        try:
            return evaluate(properties) is True
        except ValueError:
            # A property that is not the number the filter compares it with.
            return False

    return matches


_TEXTS = (ValueKind.PROPERTY, ValueKind.TEXT)
_NUMBERS = (ValueKind.INT, ValueKind.LONG, ValueKind.DOUBLE)


def _literal(kind: ValueKind, value: Value) -> Expression:
    return Expression(lambda properties: value, kind, value, literal=True)


def _number(text: str) -> Expression:
    """A number: with point or exponent a double, otherwise an int, or a long if it must be."""
    digits = text.rstrip("lL")
    if not digits.isdigit():
        double = float(text)
        if math.isinf(double):
            raise OperandError("beyond the range of a double")
        return _literal(ValueKind.DOUBLE, double)
    whole = int(digits) if len(digits) < 20 else INT64_MAX + 1
    if whole > INT64_MAX:
        raise OperandError("beyond the range of a long")
    return _literal(ValueKind.INT if whole <= INT32_MAX else ValueKind.LONG, whole)


def _named(name: str) -> Expression:
    return Expression(lambda properties: properties.get(name), ValueKind.PROPERTY, name)


def _negative(operand: Expression) -> Expression:
    """`-x`: the negative of a number, and nothing for everything else (also for properties)."""
    if isinstance(operand.value, int | float) and operand.kind in _NUMBERS:
        value = -operand.value
        return Expression(lambda properties: value, operand.kind, value)
    evaluate = operand.evaluate

    def nothing(properties: Properties) -> None:
        evaluate(properties)  # It may fail, and then so must this.

    return node(nothing, operand, kind=ValueKind.NOTHING)


def _condition(operand: Expression) -> Expression:
    """The operand as a condition. A bare property is one, though it is never true."""
    if operand.kind is ValueKind.CONDITION:
        return operand
    if operand.kind is not ValueKind.PROPERTY:
        raise OperandError("this is a value, where a condition is needed")
    name = str(operand.value)
    return predicate(lambda properties: False if name in properties else None, operand)


def _joined(operands: Sequence[Expression], decisive: bool) -> Expression:
    return joined([_condition(each) for each in operands], decisive)


def _one_of(operand: Expression, choices: Sequence[Expression], negated: bool) -> Expression:
    if operand.kind is not ValueKind.PROPERTY:
        raise OperandError("only a property can be looked for by IN")
    name, known = str(operand.value), frozenset(each.value for each in choices)

    def in_(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else (text in known) is not negated

    return predicate(in_, operand)


def _text_test(
    has_part: Callable[[str, str], bool],
    operand: Expression,
    part: str,
    escape: str | None,
    negated: bool,
) -> Expression:
    """`x CONTAINS 'part'` and its like. An absent property and an empty part are never a match."""
    evaluate = operand.evaluate
    is_text = operand.kind in _TEXTS

    def has(properties: Properties) -> bool:
        if not part:
            return False
        text: Any = evaluate(properties)
        return is_text and text is not None and has_part(text, part) is not negated

    weight = CONTAINS_TERMS if has_part is operator.contains else 1
    return predicate(has, operand, weight=weight)


def _equal(left: Expression, right: Expression, negated: bool) -> Expression:
    for operand in (left, right):
        if operand.literal and operand.value is None:
            raise OperandError("NULL cannot be compared; write IS NULL or IS NOT NULL")
    if left.literal and right.literal and left.kind is ValueKind.CONDITION is not right.kind:
        raise OperandError("TRUE and FALSE cannot be compared with a number or a text")
    if left.kind is ValueKind.PROPERTY and right.kind is ValueKind.TEXT:
        equals = _property_is(str(left.value), right.value)
    elif left.kind is ValueKind.PROPERTY and right.kind in _NUMBERS:
        equals = _property_to_number(left, operator.eq, right)
    else:
        equals = _values_are_equal(left, right)
    found = predicate(equals, left, right)
    return negation(found) if negated else found


def _values_are_equal(left: Expression, right: Expression) -> Evaluate:
    first, second = left.evaluate, right.evaluate
    compare = _comparison(left.kind, right.kind)

    def equals(properties: Properties) -> bool | None:
        a, b = first(properties), second(properties)
        if a is None:
            return True if b is None else None
        return b is not None and compare(a, b) == 0

    return equals


def _ordered(left: Expression, relation: Relation, right: Expression) -> Expression:
    """`x < y` and its like. Only numbers have an order."""
    for operand in (left, right):
        if operand.kind is ValueKind.TEXT or operand.kind is ValueKind.CONDITION:
            raise OperandError("only numbers and properties have an order")
    if left.kind is ValueKind.PROPERTY and right.kind in _NUMBERS:
        return predicate(_property_to_number(left, relation, right), left, right)
    first, second = left.evaluate, right.evaluate
    texts = left.kind is ValueKind.PROPERTY is right.kind
    compare = _compare_as_doubles if texts else _comparison(left.kind, right.kind)

    def compares(properties: Properties) -> bool | None:
        a = first(properties)
        if a is None:
            return None
        b = second(properties)
        return None if b is None else relation(compare(a, b), 0)

    return predicate(compares, left, right)


def _between(operand: Expression, low: Expression, high: Expression, negated: bool) -> Expression:
    if negated:
        outside = _ordered(operand, operator.lt, low), _ordered(operand, operator.gt, high)
        return joined(outside, True)
    constant = low.literal and high.literal and low.kind in _NUMBERS and high.kind in _NUMBERS
    if constant and _comparison(low.kind, high.kind)(low.value, high.value) > 0:
        raise OperandError(f"BETWEEN {low.value} AND {high.value} can never be true")
    inside = _ordered(operand, operator.ge, low), _ordered(operand, operator.le, high)
    return joined(inside, False)


def _property_is(name: str, wanted: Value) -> Evaluate:
    def is_(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else text == wanted

    return is_


def _property_to_number(left: Expression, relation: Relation, right: Expression) -> Evaluate:
    """A property against a constant number: what most filters are, so it has its own closures."""
    name, wanted, read = str(left.value), right.value, _READ[right.kind]

    def compares_whole(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else relation(read(text), wanted)

    def compares_double(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else relation(_compare_doubles(read(text), wanted), 0)

    return compares_double if right.kind is ValueKind.DOUBLE else compares_whole


def _comparison(left: ValueKind, right: ValueKind) -> Compare:
    """How two values of these kinds compare: negative, zero or positive, as in Java."""
    if left in _TEXTS and right in _NUMBERS:
        read, same = _READ[right], _comparison(right, right)
        return lambda a, b: same(read(a), b)
    if left in _NUMBERS and right in _TEXTS:
        read, same = _READ[left], _comparison(left, left)
        return lambda a, b: same(a, read(b))
    if left in _NUMBERS and right in _NUMBERS:
        return _compare_doubles if ValueKind.DOUBLE in (left, right) else _compare_plain
    if left in _TEXTS and right is ValueKind.CONDITION:
        return lambda a, b: _compare_plain(len(a) == 4 and a.lower() == "true", b)
    if left is ValueKind.CONDITION and right in _TEXTS:
        return _compare_condition_to_text
    if left is right or (left in _TEXTS and right in _TEXTS):
        return _compare_plain
    return lambda a, b: -1


def _compare_plain(a: Any, b: Any) -> int:
    return int(a > b) - int(a < b)


def _compare_doubles(a: Any, b: Any) -> int:
    """`Double.compareTo`: NaN is equal to itself and above all others, and -0.0 is below 0.0."""
    a, b = float(a), float(b)
    if a < b:
        return -1
    if a > b:
        return 1
    if a == b != 0.0:
        return 0
    return _compare_plain(
        (math.isnan(a), 0.0 if math.isnan(a) else math.copysign(1.0, a)),
        (math.isnan(b), 0.0 if math.isnan(b) else math.copysign(1.0, b)),
    )


def _compare_as_doubles(a: Any, b: Any) -> int:
    return _compare_doubles(_read_double(a), _read_double(b))


def _compare_condition_to_text(a: Any, b: Any) -> int:
    # RocketMQ casts the wrong operand here and fails; `a = TRUE` works, `TRUE = a` never has.
    raise ValueError("a condition on the left cannot be compared with a text")


_WHOLE = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(
    r"[\x00-\x20]*(?:([+-]?(?:NaN|Infinity))"
    r"|([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)[\x00-\x20]*"
)
"""What `Double.valueOf` takes: a name, a decimal or a hexadecimal number."""


def _read_whole(most: int, text: str) -> int:
    # Python's int() would also take blanks and underscores.
    if len(text) > NUMBER_CHARACTERS_MAX or _WHOLE.fullmatch(text) is None:
        raise ValueError("not a whole number")
    value = int(text)
    if not -most - 1 <= value <= most:
        raise ValueError(f"beyond {most}")
    return value


def _read_double(text: str) -> float:
    found = None if len(text) > NUMBER_CHARACTERS_MAX else _DOUBLE.fullmatch(text)
    if found is None:
        raise ValueError("not a number")
    if found[3] is None:
        return float(found[1] or found[2])
    try:
        return float.fromhex(found[3])
    except OverflowError:
        return -math.inf if found[3].startswith("-") else math.inf


_READ: dict[ValueKind, Callable[[str], int | float]] = {
    ValueKind.INT: partial(_read_whole, INT32_MAX),
    ValueKind.LONG: partial(_read_whole, INT64_MAX),
    ValueKind.DOUBLE: _read_double,
}

LANGUAGE = Language(
    name="filter",
    subject="property",
    token=re.compile(
        r"""(?P<blank>[ \t\n\r\f]+ | /\*.*?\*/)
          | (?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+
              | 0 | [1-9][0-9]*[lL]?)
          | (?P<text>'(?:''|[^'])*')
          | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
          | (?P<symbol><>|>=|<=|[=<>(),+-])""",
        re.VERBOSE | re.DOTALL,
    ),
    comment=re.compile(r"(?P<blank>--[^\n\r]*(?:\r\n|\n|\r))"),
    depth_max=100,
    limit_hint=f"BETWEEN counts for two, CONTAINS for {CONTAINS_TERMS}; "
    "IN takes many values of one property",
    in_takes_texts_only=True,
    number=_number,
    text=partial(_literal, ValueKind.TEXT),
    constant=partial(_literal, ValueKind.CONDITION),
    named=_named,
    condition=_condition,
    joined=_joined,
    negation=lambda operand: negation(_condition(operand)),
    negative=_negative,
    is_null=is_null,
    equal=_equal,
    ordered=_ordered,
    between=_between,
    one_of=_one_of,
    text_tests={
        "CONTAINS": partial(_text_test, operator.contains),
        "STARTSWITH": partial(_text_test, str.startswith),
        "ENDSWITH": partial(_text_test, str.endswith),
    },
)
"""The words of RocketMQ's SelectorParser."""
