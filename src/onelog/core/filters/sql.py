"""Conditions in SQL: one parser for RocketMQ's filters (`sql92`) and JMS selectors (`selectors`).

    from loose to tight:  OR | AND | NOT (JMS) | = <> != IS [NOT] NULL
        | > >= < <= [NOT] BETWEEN x AND y, [NOT] IN (...), [NOT] the language's tests of texts
        | + - (JMS) | * / % (JMS) | signs, NOT (RocketMQ)
        | text, number, TRUE, FALSE, NULL, name, "(" condition ")"

A `Language` says which words there are, and what they mean: each part of a condition becomes a
closure. Keywords ignore case, names do not; a quote inside a text is doubled.

Invariants: whatever the text, it is compiled or `FilterSyntaxError` says where it went wrong. To
evaluate a condition takes at most `TERMS_MAX` small steps, whatever the condition and the message.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from onelog.errors import FilterSyntaxError

CHARACTERS_MAX = 16_000
WORDS_MAX = 8_000
PARENTHESES_MAX = 100
TERMS_MAX = 500
"""Conditions that one message may have to be tested against. RocketMQ has no limit; there a filter
holds a thread, and here everybody."""

Value = str | int | float | None
Properties = Mapping[str, Any]
Evaluate = Callable[[Properties], Any]
Relation = Callable[[Any, Any], bool]

OR, AND, NOT, EQUALITY, COMPARISON, SUM, PRODUCT, SIGN = range(1, 9)

ORDERS: dict[str, Relation] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
}
_EQUALITIES = ("=", "<>", "!=")
_CONSTANTS: dict[str, bool | None] = {"TRUE": True, "FALSE": False, "NULL": None}
_KEYWORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "IS", *_CONSTANTS})


class OperandError(Exception):
    """Operands that an operator does not take. The parser adds where."""


class ValueKind(Enum):
    """What evaluating a part gives, if it gives anything, as far as that is known beforehand."""

    ANY = auto()
    PROPERTY = auto()
    TEXT = auto()
    INT = auto()
    LONG = auto()
    DOUBLE = auto()
    CONDITION = auto()
    NOTHING = auto()


@dataclass(frozen=True, slots=True)
class Expression:
    """A part of a condition. `value` is a constant's value or a property's name.

    `terms` is how many conditions are tested to evaluate it; a part that is evaluated twice counts
    twice. `depth` is how many closures call each other for that.
    """

    evaluate: Evaluate
    kind: ValueKind = ValueKind.ANY
    value: Value = None
    literal: bool = False
    depth: int = 1
    terms: int = 0


def node(
    evaluate: Evaluate, *parts: Expression, kind: ValueKind = ValueKind.ANY, weight: int = 1
) -> Expression:
    """A node that evaluates these parts, and counts as `weight` conditions itself."""
    depth = 1 + max(part.depth for part in parts)
    return Expression(evaluate, kind, depth=depth, terms=weight + sum(part.terms for part in parts))


def predicate(evaluate: Evaluate, *parts: Expression, weight: int = 1) -> Expression:
    """A node that is true, false or unknown."""
    return node(evaluate, *parts, kind=ValueKind.CONDITION, weight=weight)


# What all languages mean alike: True, False, and everything else, which is unknown.


def joined(conditions: Sequence[Expression], decisive: bool) -> Expression:
    """OR is decided by the first True, AND by the first False; else unknown if one is unknown."""
    tests = tuple(each.evaluate for each in conditions)
    other = not decisive

    def all_or_any(properties: Properties) -> bool | None:
        result: bool | None = other
        for each in tests:
            value: bool | None = each(properties)
            if value is decisive:
                return decisive
            if value is not other:
                result = None
        return result

    return predicate(all_or_any, *conditions, weight=0)


def negation(condition: Expression) -> Expression:
    """`NOT x`."""
    evaluate = condition.evaluate

    def not_(properties: Properties) -> bool | None:
        value = evaluate(properties)
        return value is False if value is True or value is False else None

    return predicate(not_, condition)


def is_null(operand: Expression, negated: bool) -> Expression:
    """`x IS [NOT] NULL`."""
    evaluate = operand.evaluate
    return predicate(lambda properties: (evaluate(properties) is None) is not negated, operand)


@dataclass(frozen=True, kw_only=True)
class Language:
    """The words of one language, and their meaning: functions that make nodes of nodes.

    They raise `OperandError` for operands that they do not take. What may be negated (`x <> y`,
    `x NOT IN (...)`) is told so as the last argument.
    """

    name: str
    subject: str
    """What names stand for, for error messages."""
    token: re.Pattern[str]
    """Its groups are blank, number, text, name, quoted (a name) and symbol."""
    comment: re.Pattern[str] | None = None
    """What `--` begins, as far as a line ends after it."""
    depth_max: int
    limit_hint: str
    """What counts for how many conditions, for error messages."""
    not_strength: int = SIGN
    in_takes_texts_only: bool = False
    number: Callable[[str], Expression]
    text: Callable[[str], Expression]
    constant: Callable[[bool | None], Expression]
    named: Callable[[str], Expression]
    condition: Callable[[Expression], Expression]
    """What a whole filter is made of."""
    joined: Callable[[Sequence[Expression], bool], Expression]
    """AND, decided by the first False, or OR, decided by the first True."""
    negation: Callable[[Expression], Expression]
    negative: Callable[[Expression], Expression]
    is_null: Callable[[Expression, bool], Expression]
    equal: Callable[[Expression, Expression, bool], Expression]
    ordered: Callable[[Expression, Relation, Expression], Expression]
    between: Callable[[Expression, Expression, Expression, bool], Expression]
    one_of: Callable[[Expression, Sequence[Expression], bool], Expression]
    text_tests: Mapping[str, Callable[[Expression, str, str | None, bool], Expression]]
    """`x LIKE text [ESCAPE text]` and its like."""
    arithmetic: Callable[[Expression, Callable[[Any, Any], Any], Expression], Expression] | None = (
        None
    )
    strengths: dict[str, int] = field(init=False)
    """How strongly each word binds that stands between or after its operands."""
    keywords: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        comparisons = (*ORDERS, "NOT", "BETWEEN", "IN", *self.text_tests)
        strengths = {
            "OR": OR,
            "AND": AND,
            **dict.fromkeys((*_EQUALITIES, "IS"), EQUALITY),
            **dict.fromkeys(comparisons, COMPARISON),
        }
        if self.arithmetic is not None:
            strengths |= {sign: SUM if sign in "+-" else PRODUCT for sign in ARITHMETIC}
        object.__setattr__(self, "strengths", strengths)
        escape = {"ESCAPE"} if "LIKE" in self.text_tests else set()
        object.__setattr__(self, "keywords", _KEYWORDS | self.text_tests.keys() | escape)


class _Token(NamedTuple):
    """`kind` is number, text, name or end; a keyword or symbol is its own kind."""

    kind: str
    text: str
    at: int


def parse(text: str, language: Language) -> Evaluate:
    """What a condition means, as one function of a message's properties."""
    if len(text) > CHARACTERS_MAX:
        raise FilterSyntaxError(
            f"the {language.name} has {len(text)} characters; the limit is {CHARACTERS_MAX}"
        )
    return _Parser(_tokens(text, language), language).parse().evaluate


def _tokens(text: str, language: Language) -> list[_Token]:
    tokens = []
    at = 0
    # After the last line break, two minus signs are two minus signs.
    comments_end = max(text.rfind("\n"), text.rfind("\r")) if language.comment else 0
    while at < len(text):
        is_comment = at < comments_end and text.startswith("--", at)
        pattern = language.comment if is_comment and language.comment else language.token
        found = pattern.match(text, at)
        if found is None:
            is_open = text[at] == "'"
            reason = "a text that does not end" if is_open else f"no part of any {language.name}"
            raise FilterSyntaxError(f"at character {at + 1}: {text[at : at + 20]!r} is {reason}")
        kind, word = str(found.lastgroup), found[0]
        if kind == "symbol" or (kind == "name" and word.upper() in language.keywords):
            kind = word.upper()
        if kind != "blank":
            tokens.append(_Token("name" if kind == "quoted" else kind, word, at))
        if word == "0" and text[at + 1 : at + 2].isdigit():
            # Else a run of zeros would be gone through to its end for each of them.
            raise FilterSyntaxError(
                f"at character {at + 2}: expected an operator or the end, found {text[at + 1]}"
            )
        if len(tokens) > WORDS_MAX:
            raise FilterSyntaxError(f"at character {at + 1}: more than {WORDS_MAX} words and signs")
        at = found.end()
    tokens.append(_Token("end", "", at))
    # The parts are counted when they are built. So many need not be built to see that.
    tests = {word for word, strength in language.strengths.items() if strength > NOT} - {"NOT"}
    for counted in ({"AND", "OR"}, tests - {"+", "-"}):
        if sum(token.kind in counted for token in tokens) > TERMS_MAX:
            raise FilterSyntaxError(f"the {language.name} has {_too_many(language)}")
    return tokens


def _too_many(language: Language) -> str:
    return f"more than {TERMS_MAX} conditions ({language.limit_hint})"


class _Parser:
    """Reads tokens from left to right."""

    def __init__(self, tokens: list[_Token], language: Language) -> None:
        self._tokens = tokens
        self._language = language
        self._next = 0
        self._open = 0

    def parse(self) -> Expression:
        found = self._parse(OR)
        if self._peek().kind != "end":
            raise self._expected("an operator or the end")
        return self._build(self._tokens[0], self._language.condition, found)

    def _parse(self, strength_min: int) -> Expression:
        """What comes next, up to the first word that binds less than so."""
        left = self._operand(strength_min)
        strengths, most = self._language.strengths, SIGN
        # What has a weaker word in it cannot be the left operand of a stronger one.
        while strength_min <= (strength := strengths.get(self._peek().kind, 0)) <= most:
            token = self._peek()
            self._next += 1
            if strength <= AND:
                left = self._chain(token, left, strength)
            elif strength == EQUALITY:
                left = self._equality(token, left)
            elif strength == COMPARISON:
                left = self._comparison(token, left)
            else:
                assert self._language.arithmetic is not None
                sign, right = ARITHMETIC[token.kind], self._parse(strength + 1)
                left = self._build(token, self._language.arithmetic, left, sign, right)
            most = strength
        return left

    def _chain(self, token: _Token, left: Expression, strength: int) -> Expression:
        parts = [left, self._parse(strength + 1)]
        while self._take(token.kind):
            parts.append(self._parse(strength + 1))
        return self._build(token, self._language.joined, parts, token.kind == "OR")

    def _equality(self, token: _Token, left: Expression) -> Expression:
        if token.kind == "IS":
            negated = self._take("NOT") is not None
            self._require("NULL", "NULL or NOT NULL")
            return self._build(token, self._language.is_null, left, negated)
        right = self._parse(COMPARISON)
        return self._build(token, self._language.equal, left, right, token.kind != "=")

    def _comparison(self, token: _Token, left: Expression) -> Expression:
        language = self._language
        if token.kind in ORDERS:
            return self._build(token, language.ordered, left, ORDERS[token.kind], self._parse(SUM))
        negated = token.kind == "NOT"
        if negated:
            words = ["BETWEEN", "IN", *language.text_tests]
            token = self._require_one_of(words, f"{', '.join(words[:-1])} or {words[-1]}")
        if token.kind == "BETWEEN":
            low = self._parse(SUM)
            self._require("AND", "AND")
            return self._build(token, language.between, left, low, self._parse(SUM), negated)
        if token.kind == "IN":
            return self._build(token, language.one_of, left, self._choices(), negated)
        text = self._text()
        escape = self._text() if self._take("ESCAPE") else None
        return self._build(token, language.text_tests[token.kind], left, text, escape, negated)

    def _choices(self) -> list[Expression]:
        self._require("(", "'('")
        choices = [self._choice()]
        while self._take(","):
            choices.append(self._choice())
        self._require(")", "',' or ')'")
        return choices

    def _choice(self) -> Expression:
        if self._language.in_takes_texts_only:
            return self._language.text(self._text())
        return self._parse(SUM)

    def _operand(self, strength_min: int) -> Expression:
        language = self._language
        if language.not_strength < SIGN:
            return self._loosely_negated(strength_min)
        return self._signed("+", "-", "NOT")

    def _loosely_negated(self, strength_min: int) -> Expression:
        """What is negated as a whole comparison, by any number of NOTs."""
        count, token = 0, self._peek()
        while strength_min <= NOT and self._take("NOT"):
            count += 1
        if not count:
            return self._signed("+", "-")
        found = self._parse(EQUALITY)
        # Two of them are not nothing: what is no condition is unknown.
        for _ in range(2 - count % 2):
            found = self._build(token, self._language.negation, found)
        return found

    def _signed(self, *kinds: str) -> Expression:
        signs = []
        while token := self._take(*kinds):
            signs.append(token)
        found = self._primary()
        for sign in reversed(signs):
            if sign.kind == "NOT":
                found = self._build(sign, self._language.negation, found)
            elif sign.kind == "-":
                found = self._build(sign, self._language.negative, found)
        return found

    def _primary(self) -> Expression:
        language = self._language
        token = self._take("name", "number", "text", "(", *_CONSTANTS)
        if token is None:
            raise self._expected(f"a {language.subject}, a number, a text or '('")
        if token.kind == "name":
            name = token.text
            return language.named(name[1:-1].replace('""', '"') if name[0] == '"' else name)
        if token.kind == "number":
            return self._build(token, language.number, token.text)
        if token.kind == "text":
            return language.text(_unquoted(token.text))
        if token.kind in _CONSTANTS:
            return language.constant(_CONSTANTS[token.kind])
        self._open += 1
        if self._open > PARENTHESES_MAX:
            raise FilterSyntaxError(
                f"at character {token.at + 1}: more than {PARENTHESES_MAX} open parentheses"
            )
        found = self._parse(OR)
        self._require(")", "an operator or ')'")
        self._open -= 1
        return found

    def _text(self) -> str:
        return _unquoted(self._require("text", "a text in quotes").text)

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *kinds: str) -> _Token | None:
        """The next token, if it is of one of these kinds."""
        token = self._tokens[self._next]
        if token.kind not in kinds:
            return None
        self._next += 1
        return token

    def _require(self, kind: str, expected: str) -> _Token:
        return self._require_one_of((kind,), expected)

    def _require_one_of(self, kinds: Sequence[str], expected: str) -> _Token:
        token = self._take(*kinds)
        if token is None:
            raise self._expected(expected)
        return token

    def _expected(self, expected: str) -> FilterSyntaxError:
        token = self._peek()
        found = "the end" if token.kind == "end" else f"{token.text:.40}"
        return FilterSyntaxError(f"at character {token.at + 1}: expected {expected}, found {found}")

    def _build(
        self, token: _Token, make: Callable[..., Expression], *operands: object
    ) -> Expression:
        """A node; if the operands do not fit, the error names the operator and its place."""
        try:
            made = make(*operands)
            if made.depth > self._language.depth_max:
                most = self._language.depth_max
                raise OperandError(f"conditions are nested more than {most} deep")
            if made.terms > TERMS_MAX:
                raise OperandError(_too_many(self._language))
        except OperandError as error:
            at = f"at character {token.at + 1}, {token.text:.40}" if token.text else "at the end"
            raise FilterSyntaxError(f"{at}: {error}") from None
        return made


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")
