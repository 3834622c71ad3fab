"""What the parts of a SQL-92 filter mean: each becomes a closure over a message's properties.

The meaning is RocketMQ's, surprises included, so that a filter selects the same messages here as
there (its `filter` module; checked against it with random filters and messages):

- A property is a text or absent. Compared with a number it is read as the number's own Java type:
  `a > 5` reads an int, so "5.5" and "3000000000" are no match; `a > 5.0` reads a double.
- What cannot be read fails the whole filter, also below NOT and OR: the message does not match.
  Here that is a `ValueError`, which only `sql92.compile_sql` catches.
- Absent properties make a condition unknown (None); AND, OR and NOT are three-valued; only True
  matches. Yet `x = a` with `a` absent is False, and `a = b` with both absent is True.
- NOT binds tighter than comparison: `NOT a = 1` compares the condition `NOT a` with 1.

Invariant: the kind of every node is known before any message is seen, so that the right comparison
is chosen once, when the filter is compiled.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

Properties = Mapping[str, str]
Value = str | int | float | None
Evaluate = Callable[[Properties], Value]
Order = Callable[[float, float], bool]

NESTING_MAX = 100
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class OperandError(Exception):
    """Operands that an operator does not take. The parser adds where."""


class Kind(Enum):
    """What evaluating a node gives, if it gives anything."""

    PROPERTY = auto()
    TEXT = auto()
    INT = auto()
    LONG = auto()
    DOUBLE = auto()
    CONDITION = auto()
    NOTHING = auto()


_TEXTS = (Kind.PROPERTY, Kind.TEXT)
_NUMBERS = (Kind.INT, Kind.LONG, Kind.DOUBLE)


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a filter. `value` is a constant's value or a property's name."""

    kind: Kind
    evaluate: Evaluate
    value: Value = None
    literal: bool = False
    depth: int = 1


def literal(kind: Kind, value: Value) -> Node:
    """A constant, as written in the filter."""
    return Node(kind, lambda properties: value, value, literal=True)


def number(text: str) -> Node:
    """A number: with a point or an exponent a double, otherwise an int, or a long if it must be."""
    if not text.rstrip("lL").isdigit():
        double = float(text)
        if math.isinf(double):
            raise OperandError(f"{text:.40} is beyond the range of a double")
        return literal(Kind.DOUBLE, double)
    # 19 digits are all that a long has; Python itself would read any number of them.
    whole = int(text.rstrip("lL")) if len(text) <= 20 else INT64_MAX + 1
    if whole > INT64_MAX:
        raise OperandError(f"{text:.40} is beyond the range of a long")
    return literal(Kind.INT if whole <= INT32_MAX else Kind.LONG, whole)


def named_property(name: str) -> Node:
    """The property of that name."""
    return Node(Kind.PROPERTY, lambda properties: properties.get(name), name)


def negated_number(node: Node) -> Node:
    """`-x`: the negative of a number, and nothing for everything else (also for properties)."""
    if node.kind in _NUMBERS:
        value = -node.value  # type: ignore[operator]
        return Node(node.kind, lambda properties: value, value)
    evaluate = node.evaluate

    def nothing(properties: Properties) -> None:
        evaluate(properties)  # It may fail, and then so must this.

    return _node(Kind.NOTHING, nothing, node)


def condition(node: Node) -> Node:
    """The node as a condition. A bare property is one, though it is never true."""
    if node.kind is Kind.CONDITION:
        return node
    if node.kind is not Kind.PROPERTY:
        raise OperandError("this is a value, not a condition")
    name = str(node.value)
    return _condition(lambda properties: None if properties.get(name) is None else False, node)


def negation(node: Node) -> Node:
    """`NOT x`."""
    inner = condition(node)
    evaluate = inner.evaluate

    def not_(properties: Properties) -> bool | None:
        value = evaluate(properties)
        return None if value is None else not value

    return _condition(not_, inner)


def all_of(nodes: Sequence[Node]) -> Node:
    """`x AND y AND ...`: false as soon as one is, unknown if one is unknown."""
    terms = tuple(condition(node) for node in nodes)
    tests = tuple(term.evaluate for term in terms)

    def and_(properties: Properties) -> bool | None:
        unknown = False
        for test in tests:
            value = test(properties)
            if value is None:
                unknown = True
            elif not value:
                return False
        return None if unknown else True

    return _condition(and_, *terms)


def any_of(nodes: Sequence[Node]) -> Node:
    """`x OR y OR ...`: true as soon as one is, unknown if one is unknown."""
    terms = tuple(condition(node) for node in nodes)
    tests = tuple(term.evaluate for term in terms)

    def or_(properties: Properties) -> bool | None:
        unknown = False
        for test in tests:
            value = test(properties)
            if value is None:
                unknown = True
            elif value:
                return True
        return None if unknown else False

    return _condition(or_, *terms)


def is_null(node: Node) -> Node:
    """`x IS NULL`."""
    evaluate = node.evaluate
    return _condition(lambda properties: evaluate(properties) is None, node)


def equal(left: Node, right: Node) -> Node:
    """`x = y`."""
    for operand in (left, right):
        if operand.literal and operand.value is None:
            raise OperandError("NULL cannot be compared; write IS NULL or IS NOT NULL")
    both_literal = left.literal and right.literal
    if both_literal and left.kind is Kind.CONDITION and right.kind is not Kind.CONDITION:
        raise OperandError("TRUE and FALSE cannot be compared with a number or a text")
    if left.kind is Kind.PROPERTY and right.kind is Kind.TEXT:
        return _condition(_property_is_text(str(left.value), right.value), left, right)
    if left.kind is Kind.PROPERTY and right.kind in _NUMBERS:
        return _condition(_property_to_number(left, operator.eq, right), left, right)
    first, second = left.evaluate, right.evaluate
    compare = _EQUALITY.get((left.kind, right.kind))
    if compare is None:
        compare = _equality(left.kind, right.kind)

    def equals(properties: Properties) -> bool | None:
        a, b = first(properties), second(properties)
        if a is None:
            return None if b is not None else True
        return b is not None and compare(a, b)

    return _condition(equals, left, right)


def ordered(left: Node, order: Order, right: Node) -> Node:
    """`x < y` and its like; `order` is the function of `operator`. Only numbers have an order."""
    for operand in (left, right):
        if operand.kind is Kind.CONDITION or operand.kind is Kind.TEXT:
            raise OperandError("only numbers and properties can be compared by < <= > >= BETWEEN")
    if left.kind is Kind.PROPERTY and right.kind in _NUMBERS:
        return _condition(_property_to_number(left, order, right), left, right)
    if left.kind in _NUMBERS and right.kind is Kind.PROPERTY:
        return _condition(_property_to_number(right, _MIRRORED[order], left), left, right)
    first, second = left.evaluate, right.evaluate
    # Two properties are read as doubles, and so are two constants without loss that matters:
    # of int and long, the generic comparison below keeps all digits.
    read: Callable[[Value], Value] = _read_double if left.kind is Kind.PROPERTY else _as_is

    def compares(properties: Properties) -> bool | None:
        a, b = first(properties), second(properties)
        if a is None or b is None:
            return None
        return order(_compare_numbers(read(a), read(b)), 0)

    return _condition(compares, left, right)
