"""Selectors: conditions on a message's headers in the grammar of JMS, as ActiveMQ has it.

    selector    = and { OR and }
    and         = not { AND not }
    not         = NOT not | comparison
    comparison  = sum [ ("=" | "<>" | "!=" | ">" | ">=" | "<" | "<=") sum | IS [NOT] NULL
                      | [NOT] BETWEEN sum AND sum | [NOT] IN "(" sum { "," sum } ")"
                      | [NOT] LIKE text [ESCAPE text] ]
    sum         = product { ("+" | "-") product }
    product     = factor { ("*" | "/" | "%") factor }
    factor      = { "+" | "-" } (text | number | TRUE | FALSE | NULL | name | "(" selector ")")

Keywords ignore case, names do not; a name with other signs stands in double quotes. The meaning is
that of SQL: a header that is absent makes a condition unknown, and what is unknown is no match.

Headers are texts. One that is compared or reckoned with a number is read as a number; if it is none
the condition is unknown. (ActiveMQ refuses that; its prefix `convert_string_expressions:` is
understood here, and changes nothing.) RocketMQ's filters are another language: `sql92`.

Invariant: whatever the text, it is compiled or `FilterSyntaxError` says where it went wrong; to
evaluate a selector takes at most `TERMS_MAX` small steps.
"""

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from onelog.errors import FilterSyntaxError

CHARACTERS_MAX = 16_000
NESTING_MAX = 30
TERMS_MAX = 500
NUMBER_CHARACTERS_MAX = 100
_CONVERTING = "convert_string_expressions:"

Headers = Mapping[str, Any]
Selector = Callable[[Headers], bool]
_Evaluate = Callable[[Headers], Any]
"""A text, a number, True, False, or None for what is unknown."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?)[lLfFdD]?
      | (?P<text>'(?:''|[^'])*')
      | (?P<quoted>"(?:""|[^"])+")
      | (?P<name>[^\W0-9][\w$.]*)
      | (?P<symbol><>|!=|>=|<=|[=<>(),+*/%-]))""",
    re.VERBOSE,
)
_KEYWORDS = {"NOT", "AND", "OR", "BETWEEN", "IN", "IS", "LIKE", "ESCAPE", "NULL", "TRUE", "FALSE"}
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_SUMS: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "*": operator.mul, "/": operator.truediv, "%": operator.mod,
}  # fmt: skip


@functools.lru_cache(maxsize=256)
def compile_selector(text: str) -> Selector:
    """A function that tells whether a message with these headers is selected."""
    if len(text) > CHARACTERS_MAX:
        raise FilterSyntaxError(f"the selector has more than {CHARACTERS_MAX} characters")
    evaluate = _Parser(text.strip().removeprefix(_CONVERTING)).parse()

    def is_selected(headers: Headers) -> bool:
        return evaluate(headers) is True

    return is_selected


class _Parser:
    """Reads from left to right; a method is named after the rule of the grammar that it reads."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0
        self._terms = 0

    def parse(self) -> _Evaluate:
        found = self._selector()
        if self._kind != "end":
            raise self._expected("an operator or the end")
        return found

    def _selector(self) -> _Evaluate:
        return self._joined("OR", self._and, True)

    def _and(self) -> _Evaluate:
        return self._joined("AND", self._not, False)

    def _joined(self, word: str, part: Callable[[], _Evaluate], decisive: bool) -> _Evaluate:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]

        def joined(headers: Headers) -> bool | None:
            found: bool | None = not decisive
            for each in parts:
                value = each(headers)
                if value is decisive:
                    return bool(value)
                if value is not (not decisive):
                    found = None
            return found

        return joined

    def _not(self) -> _Evaluate:
        count = 0
        while self._take("NOT"):
            count += 1
        part = self._comparison()
        if not count:
            return part
        is_odd = count % 2 == 1

        def negated(headers: Headers) -> bool | None:
            value = part(headers)
            return value is not is_odd if value is True or value is False else None

        return negated

    def _comparison(self) -> _Evaluate:
        left = self._sum()
        if word := self._take("=", "<>", "!=", *_ORDERS):
            self._count()
            return _compared(left, word, self._sum())
        if self._take("IS"):
            wanted = self._take("NOT") is None
            self._require("NULL")
            self._count()
            return lambda headers: (left(headers) is None) is wanted
        is_wanted = self._take("NOT") is None
        if self._take("BETWEEN"):
            low = self._sum()
            self._require("AND")
            found = _between(left, low, self._sum())
        elif self._take("IN"):
            found = self._one_of(left)
        elif self._take("LIKE"):
            found = self._like(left)
        elif is_wanted:
            return left
        else:
            raise self._expected("BETWEEN, IN or LIKE")
        self._count()

        def tested(headers: Headers) -> bool | None:
            value = found(headers)
            return None if value is None else value is is_wanted

        return tested

    def _one_of(self, left: _Evaluate) -> _Evaluate:
        self._require("(")
        choices = [self._sum()]
        while self._take(","):
            self._count()
            choices.append(self._sum())
        self._require(")")

        def is_one(headers: Headers) -> bool | None:
            value = left(headers)
            if value is None:
                return None
            return any(_equal(value, choice(headers)) is True for choice in choices)

        return is_one

    def _like(self, left: _Evaluate) -> _Evaluate:
        pattern = self._text()
        escape = ""
        if self._take("ESCAPE"):
            escape = self._text()
            if len(escape) != 1:
                raise self._expected("one character after ESCAPE")
        # It goes through all of a text; for `_`, that far from each of its places.
        self._count(10 + (len(pattern) if "_" in pattern and "%" in pattern else 0))
        compare = _like(pattern, escape)

        def is_like(headers: Headers) -> bool | None:
            value = left(headers)
            return compare(value) if isinstance(value, str) else None

        return is_like

    def _sum(self) -> _Evaluate:
        return self._reckoned(_SUMS, self._product)

    def _product(self) -> _Evaluate:
        return self._reckoned(_PRODUCTS, self._factor)

    def _reckoned(
        self, signs: Mapping[str, Callable[[Any, Any], Any]], part: Callable[[], _Evaluate]
    ) -> _Evaluate:
        found = part()
        while sign := self._take(*signs):
            self._count(2)
            found = _reckon(found, signs[sign], part())
        return found

    def _factor(self) -> _Evaluate:
        is_negative = False
        while sign := self._take("+", "-"):
            is_negative ^= sign == "-"
        found = self._primary()
        return _reckon(lambda headers: 0, operator.sub, found) if is_negative else found

    def _primary(self) -> _Evaluate:
        kind, text, _ = self._tokens[self._next]
        if kind == "(":
            self._next += 1
            self._depth += 1
            if self._depth > NESTING_MAX:
                raise self._expected(f"at most {NESTING_MAX} open parentheses")
            found = self._selector()
            self._require(")")
            self._depth -= 1
            return found
        if kind not in ("number", "text", "name", *_CONSTANTS):
            raise self._expected("a header, a number, a text or '('")
        self._next += 1
        if kind == "name":
            return lambda headers: headers.get(text)
        value = _CONSTANTS[kind] if kind in _CONSTANTS else text if kind == "text" else _read(text)
        return lambda headers: value

    def _text(self) -> str:
        return self._require("text")

    @property
    def _kind(self) -> str:
        return self._tokens[self._next][0]

    def _take(self, *kinds: str) -> str | None:
        """The next token's kind, if it is one of these."""
        kind = self._kind
        if kind not in kinds:
            return None
        self._next += 1
        return kind

    def _require(self, kind: str) -> str:
        if self._kind != kind:
            raise self._expected(kind)
        self._next += 1
        return self._tokens[self._next - 1][1]

    def _count(self, terms: int = 1) -> None:
        self._terms += terms
        if self._terms > TERMS_MAX:
            raise FilterSyntaxError(
                f"the selector has more than {TERMS_MAX} conditions (LIKE counts for 10; with % "
                "and _ for as many more as it has characters)"
            )

    def _expected(self, expected: str) -> FilterSyntaxError:
        kind, text, at = self._tokens[self._next]
        found = "the end" if kind == "end" else f"{text:.40}"
        return FilterSyntaxError(f"at character {at + 1}: expected {expected}, found {found}")


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """Kind, text and place of each word and sign; keywords and signs are their own kind."""
    found: list[tuple[str, str, int]] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise FilterSyntaxError(
                f"at character {at + 1}: {text[at : at + 20]!r} is no part of any selector"
            )
        kind = str(match.lastgroup)
        word = match[kind]
        begin = match.start(kind)
        if kind == "symbol" or (kind == "name" and word.upper() in _KEYWORDS):
            found.append((word.upper(), word, begin))
        elif kind == "quoted":
            found.append(("name", word[1:-1].replace('""', '"'), begin))
        else:
            plain = word[1:-1].replace("''", "'") if kind == "text" else word
            found.append((kind, plain, begin))
        at = match.end()
    found.append(("end", "", end))
    return found


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


def _equal(left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        texts = [str(each).lower() for each in (left, right)]
        return texts[0] == texts[1]
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    one, other = _read(left), _read(right)
    return None if one is None or other is None else one == other


def _compared(left: _Evaluate, sign: str, right: _Evaluate) -> _Evaluate:
    if sign in ("=", "<>", "!="):
        is_wanted = sign == "="

        def equals(headers: Headers) -> bool | None:
            found = _equal(left(headers), right(headers))
            return None if found is None else found is is_wanted

        return equals
    return functools.partial(_ordered, left, _ORDERS[sign], right)


def _ordered(
    left: _Evaluate, relation: Callable[[Any, Any], bool], right: _Evaluate, headers: Headers
) -> bool | None:
    one, other = _read(left(headers)), _read(right(headers))
    return None if one is None or other is None else relation(one, other)


def _between(value: _Evaluate, low: _Evaluate, high: _Evaluate) -> _Evaluate:
    def is_between(headers: Headers) -> bool | None:
        numbers = [_read(each(headers)) for each in (low, value, high)]
        if any(each is None for each in numbers):
            return None
        least, found, most = numbers
        return bool(least <= found <= most)  # type: ignore[operator]

    return is_between


def _reckon(left: _Evaluate, operation: Callable[[Any, Any], Any], right: _Evaluate) -> _Evaluate:
    def reckoned(headers: Headers) -> Any:
        one, other = _read(left(headers)), _read(right(headers))
        if one is None or other is None:
            return None
        try:
            return operation(one, other)
        except (ZeroDivisionError, OverflowError):
            return None

    return reckoned


def _like(pattern: str, escape: str) -> Callable[[str], bool]:
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
