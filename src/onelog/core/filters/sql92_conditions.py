"""What the parts of a SQL-92 filter mean: each becomes a closure over a message's properties.

The meaning is RocketMQ's, surprises included, so that a filter selects the same messages here as
there:

- A property is a text or absent. Compared with a number it is read as the number's own Java type:
  `a > 5` reads an int, so "5.5" and "3000000000" are no match; `a > 5.0` reads a double.
- What cannot be read fails the whole filter, also below NOT and OR: the message does not match.
  Here that is a `ValueError`, which only `sql92.compile_sql` catches.
- Absent properties make a condition unknown (None); AND, OR and NOT are three-valued; only True
  matches. Yet `'x' = a` with `a` absent is False, and `a = b` with both absent is True.
- NOT binds tighter than comparison: `NOT a = 1` compares the condition `NOT a` with 1.

Invariants: the kind of every node is known before any message is seen, so that the right comparison
is chosen once, when the filter is compiled. To evaluate a filter takes at most `TERMS_MAX` small
steps, whatever the filter and whatever the properties.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

Properties = Mapping[str, str]
Value = str | int | float | None
Evaluate = Callable[[Properties], Value]
Compare = Callable[[Any, Any], int]
Relation = Callable[[Any, Any], bool]

NESTING_MAX = 100
TERMS_MAX = 500
"""Conditions that one message may have to be tested against. RocketMQ has no limit; there a filter
holds a thread, and here everybody."""
CONTAINS_TERMS = 10
"""What CONTAINS counts for: it goes through all of a text, which may have 32 KB."""
NUMBER_CHARACTERS_MAX = 100
"""What a property may have to be read as a number: reading takes the longer the longer it is."""
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
    """A part of a filter. `value` is a constant's value or a property's name.

    `terms` is how many conditions are tested to evaluate it; a part that is evaluated twice counts
    twice.
    """

    kind: Kind
    evaluate: Evaluate
    value: Value = None
    literal: bool = False
    depth: int = 1
    terms: int = 0


def literal(kind: Kind, value: Value) -> Node:
    """A constant, as written in the filter."""
    return Node(kind, lambda properties: value, value, literal=True)


def number(text: str) -> Node:
    """A number: with point or exponent a double, otherwise an int, or a long if it must be."""
    digits = text.rstrip("lL")
    if not digits.isdigit():
        double = float(text)
        if math.isinf(double):
            raise OperandError("beyond the range of a double")
        return literal(Kind.DOUBLE, double)
    whole = int(digits) if len(digits) < 20 else INT64_MAX + 1
    if whole > INT64_MAX:
        raise OperandError("beyond the range of a long")
    return literal(Kind.INT if whole <= INT32_MAX else Kind.LONG, whole)


def named_property(name: str) -> Node:
    """The property of that name."""
    return Node(Kind.PROPERTY, lambda properties: properties.get(name), name)


def negated_number(node: Node) -> Node:
    """`-x`: the negative of a number, and nothing for everything else (also for properties)."""
    if isinstance(node.value, int | float) and node.kind in _NUMBERS:
        value = -node.value
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
        raise OperandError("this is a value, where a condition is needed")
    name = str(node.value)
    return _node(Kind.CONDITION, lambda properties: False if name in properties else None, node)


def negation(node: Node) -> Node:
    """`NOT x`."""
    inner = condition(node)
    evaluate = inner.evaluate

    def not_(properties: Properties) -> bool | None:
        value = evaluate(properties)
        return None if value is None else not value

    return _node(Kind.CONDITION, not_, inner)


def all_of(nodes: Sequence[Node]) -> Node:
    """`x AND y AND ...`: false as soon as one is, unknown if one is unknown."""
    return _joined(nodes, False)


def any_of(nodes: Sequence[Node]) -> Node:
    """`x OR y OR ...`: true as soon as one is, unknown if one is unknown."""
    return _joined(nodes, True)


def _joined(nodes: Sequence[Node], decisive: bool) -> Node:
    terms = [condition(node) for node in nodes]
    tests = tuple(term.evaluate for term in terms)

    def joined(properties: Properties) -> bool | None:
        result: bool | None = not decisive
        for test in tests:
            value = test(properties)
            if value is None:
                result = None
            elif value is decisive:
                return decisive
        return result

    return _node(Kind.CONDITION, joined, *terms, weight=0)


def is_null(node: Node) -> Node:
    """`x IS NULL`."""
    evaluate = node.evaluate
    return _node(Kind.CONDITION, lambda properties: evaluate(properties) is None, node)


def one_of(node: Node, texts: Sequence[str], *, negated: bool) -> Node:
    """`x IN ('a', 'b')`."""
    if node.kind is not Kind.PROPERTY:
        raise OperandError("only a property can be looked for by IN")
    name, known = str(node.value), frozenset(texts)

    def in_(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else (text in known) is not negated

    return _node(Kind.CONDITION, in_, node)


def text_test(node: Node, test: Callable[[str, str], bool], part: str, *, negated: bool) -> Node:
    """`x CONTAINS 'part'` and its like. An absent property and an empty part are never a match."""
    evaluate = node.evaluate
    is_text = node.kind in _TEXTS

    def has(properties: Properties) -> bool:
        if not part:
            return False
        text: Any = evaluate(properties)
        return is_text and text is not None and test(text, part) is not negated

    weight = CONTAINS_TERMS if test is operator.contains else 1
    return _node(Kind.CONDITION, has, node, weight=weight)


def equal(left: Node, right: Node) -> Node:
    """`x = y`."""
    for operand in (left, right):
        if operand.literal and operand.value is None:
            raise OperandError("NULL cannot be compared; write IS NULL or IS NOT NULL")
    if left.literal and right.literal and left.kind is Kind.CONDITION is not right.kind:
        raise OperandError("TRUE and FALSE cannot be compared with a number or a text")
    if left.kind is Kind.PROPERTY and right.kind is Kind.TEXT:
        return _node(Kind.CONDITION, _property_is(str(left.value), right.value), left, right)
    if left.kind is Kind.PROPERTY and right.kind in _NUMBERS:
        return _node(Kind.CONDITION, _property_to_number(left, operator.eq, right), left, right)
    first, second = left.evaluate, right.evaluate
    compare = _comparison(left.kind, right.kind)

    def equals(properties: Properties) -> bool | None:
        a, b = first(properties), second(properties)
        if a is None:
            return True if b is None else None
        return b is not None and compare(a, b) == 0

    return _node(Kind.CONDITION, equals, left, right)


def ordered(left: Node, relation: Relation, right: Node) -> Node:
    """`x < y` and its like; `relation` is that of `operator`. Only numbers have an order."""
    for operand in (left, right):
        if operand.kind is Kind.TEXT or operand.kind is Kind.CONDITION:
            raise OperandError("only numbers and properties have an order")
    if left.kind is Kind.PROPERTY and right.kind in _NUMBERS:
        return _node(Kind.CONDITION, _property_to_number(left, relation, right), left, right)
    first, second = left.evaluate, right.evaluate
    texts = left.kind is Kind.PROPERTY is right.kind
    compare = _compare_as_doubles if texts else _comparison(left.kind, right.kind)

    def compares(properties: Properties) -> bool | None:
        a = first(properties)
        if a is None:
            return None
        b = second(properties)
        return None if b is None else relation(compare(a, b), 0)

    return _node(Kind.CONDITION, compares, left, right)


def between(node: Node, low: Node, high: Node) -> Node:
    """`x BETWEEN low AND high`."""
    constant = low.literal and high.literal and low.kind in _NUMBERS and high.kind in _NUMBERS
    if constant and _comparison(low.kind, high.kind)(low.value, high.value) > 0:
        raise OperandError(f"BETWEEN {low.value} AND {high.value} can never be true")
    return all_of([ordered(node, operator.ge, low), ordered(node, operator.le, high)])


def not_between(node: Node, low: Node, high: Node) -> Node:
    """`x NOT BETWEEN low AND high`."""
    return any_of([ordered(node, operator.lt, low), ordered(node, operator.gt, high)])


def _node(kind: Kind, evaluate: Evaluate, *parts: Node, weight: int = 1) -> Node:
    depth = 1 + max(part.depth for part in parts)
    if depth > NESTING_MAX:
        raise OperandError(f"conditions are nested more than {NESTING_MAX} deep")
    terms = weight + sum(part.terms for part in parts)
    if terms > TERMS_MAX:
        raise OperandError(
            f"more than {TERMS_MAX} conditions (BETWEEN counts for two, CONTAINS for "
            f"{CONTAINS_TERMS}); IN takes many values of one property"
        )
    return Node(kind, evaluate, depth=depth, terms=terms)


def _property_is(name: str, wanted: Value) -> Evaluate:
    def is_(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else text == wanted

    return is_


def _property_to_number(left: Node, relation: Relation, right: Node) -> Evaluate:
    """A property against a constant number: what most filters are, so it has its own closures."""
    name, wanted, read = str(left.value), right.value, _READ[right.kind]

    def compares_whole(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else relation(read(text), wanted)

    def compares_double(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else relation(_compare_doubles(read(text), wanted), 0)

    return compares_double if right.kind is Kind.DOUBLE else compares_whole


def _comparison(left: Kind, right: Kind) -> Compare:
    """How two values of these kinds compare: negative, zero or positive, as in Java."""
    if left in _TEXTS and right in _NUMBERS:
        read, same = _READ[right], _comparison(right, right)
        return lambda a, b: same(read(a), b)
    if left in _NUMBERS and right in _TEXTS:
        read, same = _READ[left], _comparison(left, left)
        return lambda a, b: same(a, read(b))
    if left in _NUMBERS and right in _NUMBERS:
        return _compare_doubles if Kind.DOUBLE in (left, right) else _compare_plain
    if left in _TEXTS and right is Kind.CONDITION:
        return lambda a, b: _compare_plain(len(a) == 4 and a.lower() == "true", b)
    if left is Kind.CONDITION and right in _TEXTS:
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


_READ: dict[Kind, Callable[[str], int | float]] = {
    Kind.INT: partial(_read_whole, INT32_MAX),
    Kind.LONG: partial(_read_whole, INT64_MAX),
    Kind.DOUBLE: _read_double,
}
