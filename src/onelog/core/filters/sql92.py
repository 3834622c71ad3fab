"""The grammar of SQL-92 filters, in RocketMQ's dialect (its SelectorParser).

    filter      = and { OR and }
    and         = equality { AND equality }
    equality    = comparison { ("=" | "<>") comparison | IS [NOT] NULL }
    comparison  = unary { (">" | ">=" | "<" | "<=") unary
                        | [NOT] BETWEEN unary AND unary | [NOT] IN "(" text { "," text } ")"
                        | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text }
    unary       = { "+" | "-" | NOT } (text | number | TRUE | FALSE | NULL | name | "(" filter ")")

Keywords ignore case, names do not; a quote inside a text is doubled; `--` comments end with a line
break. Other than there, words after the end of a filter are an error, so that `a LIKE 'x'` is
refused instead of selecting nothing; and 0.0 is a number like any other.

Invariant: whatever the text, it is compiled or `FilterSyntaxError` says where it went wrong.
"""

import functools
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

from onelog.core.filters import sql92_conditions as conditions
from onelog.core.filters.sql92_conditions import (
    NESTING_MAX,
    TERMS_MAX,
    Kind,
    Node,
    OperandError,
    Properties,
    Relation,
)
from onelog.errors import FilterSyntaxError

EXPRESSION_CHARACTERS_MAX = 16_000
WORDS_MAX = 8_000

Predicate = Callable[[Properties], bool]

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\n\r\f]+ | /\*.*?\*/)
      | (?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+
          | 0 | [1-9][0-9]*[lL]?)
      | (?P<text>'(?:''|[^'])*')
      | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<symbol><>|>=|<=|[=<>(),+-])""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"(?P<blank>--[^\n\r]*(?:\r\n|\n|\r))")
_ORDERS: dict[str, Relation] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_WORDS: dict[str, bool | None] = {"TRUE": True, "FALSE": False, "NULL": None}
_KEYWORDS = {"NOT", "AND", "OR", "BETWEEN", "IN", "IS", *_WORDS, *_TEXT_TESTS}
_CONNECTIVES = {"AND", "OR"}
_COMPARISONS = {"NOT", "IN", "BETWEEN", *_ORDERS, *_TEXT_TESTS}
_TESTS = {"=", "<>", "IS", "IN", "BETWEEN", *_ORDERS, *_TEXT_TESTS}


class _Token(NamedTuple):
    """`kind` is number, text, name or end; a keyword or symbol is its own kind."""

    kind: str
    text: str
    at: int


@functools.lru_cache(maxsize=256)
def compile_sql(expression: str) -> Predicate:
    """A function that tells whether a message with these properties matches the filter."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise FilterSyntaxError(
            f"the filter has {len(expression)} characters; the limit is {EXPRESSION_CHARACTERS_MAX}"
        )
    evaluate = _Parser(_tokens(expression)).parse().evaluate

    def matches(properties: Properties) -> bool:
        try:
            return evaluate(properties) is True
        except ValueError:
            # A property that is not the number the filter compares it with.
            return False

    return matches


def _tokens(expression: str) -> list[_Token]:
    tokens = []
    at = 0
    # After the last line break, two minus signs are two minus signs.
    comments_end = max(expression.rfind("\n"), expression.rfind("\r"))
    while at < len(expression):
        is_comment = at < comments_end and expression.startswith("--", at)
        found = (_COMMENT if is_comment else _TOKEN).match(expression, at)
        if found is None:
            reason = (
                "a text that does not end" if expression[at] == "'" else "no part of any filter"
            )
            raise FilterSyntaxError(
                f"at character {at + 1}: {expression[at : at + 20]!r} is {reason}"
            )
        kind, text = str(found.lastgroup), found[0]
        if kind == "symbol" or (kind == "name" and text.upper() in _KEYWORDS):
            kind = text.upper()
        if kind != "blank":
            tokens.append(_Token(kind, text, at))
        if text == "0" and expression[at + 1 : at + 2].isdigit():
            # Else a run of zeros would be gone through to its end for each of them.
            raise FilterSyntaxError(
                f"at character {at + 2}: expected an operator or the end, "
                f"found {expression[at + 1]}"
            )
        if len(tokens) > WORDS_MAX:
            raise FilterSyntaxError(f"at character {at + 1}: more than {WORDS_MAX} words and signs")
        at = found.end()
    tokens.append(_Token("end", "", at))
    # The parts are counted when they are built. So many need not be built to see that.
    for counted in (_CONNECTIVES, _TESTS):
        if sum(token.kind in counted for token in tokens) > TERMS_MAX:
            raise FilterSyntaxError(
                f"the filter has more than {TERMS_MAX} conditions; IN takes many values of one "
                "property"
            )
    return tokens


class _Parser:
    """Reads tokens from left to right; a method is named after the rule of the grammar it reads."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._open = 0

    def parse(self) -> Node:
        """All of the filter, as a condition."""
        node = self._filter()
        if self._peek().kind != "end":
            raise self._expected("an operator or the end")
        return self._build(self._tokens[0], conditions.condition, node)

    def _filter(self) -> Node:
        return self._chain("OR", self._and, conditions.any_of)

    def _and(self) -> Node:
        return self._chain("AND", self._equality, conditions.all_of)

    def _chain(self, word: str, part: Callable[[], Node], make: Callable[..., Node]) -> Node:
        nodes = [part()]
        first = self._peek()
        while self._take(word):
            nodes.append(part())
        return nodes[0] if len(nodes) == 1 else self._build(first, make, nodes)

    def _equality(self) -> Node:
        node = self._comparison()
        while token := self._take("=", "<>", "IS"):
            negated = token.kind == "<>" or (token.kind == "IS" and self._take("NOT") is not None)
            if token.kind == "IS":
                self._require("NULL", "NULL or NOT NULL")
                node = self._build(token, conditions.is_null, node)
            else:
                node = self._build(token, conditions.equal, node, self._comparison())
            if negated:
                node = self._build(token, conditions.negation, node)
        return node

    def _comparison(self) -> Node:
        node = self._unary()
        while self._peek().kind in _COMPARISONS:
            negated = self._take("NOT") is not None
            if not negated and (token := self._take(*_ORDERS)):
                node = self._build(
                    token, conditions.ordered, node, _ORDERS[token.kind], self._unary()
                )
            elif token := self._take("BETWEEN"):
                low = self._unary()
                self._require("AND", "AND")
                make = conditions.not_between if negated else conditions.between
                node = self._build(token, make, node, low, self._unary())
            elif token := self._take("IN"):
                node = self._build(token, conditions.one_of, node, self._texts(), negated=negated)
            elif token := self._take(*_TEXT_TESTS):
                test, part = _TEXT_TESTS[token.kind], self._text()
                node = self._build(token, conditions.text_test, node, test, part, negated=negated)
            else:
                raise self._expected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
        return node

    def _unary(self) -> Node:
        signs = []
        while token := self._take("+", "-", "NOT"):
            signs.append(token)
        node = self._primary()
        for sign in reversed(signs):
            if sign.kind == "NOT":
                node = self._build(sign, conditions.negation, node)
            elif sign.kind == "-":
                node = self._build(sign, conditions.negated_number, node)
        return node

    def _primary(self) -> Node:
        token = self._take("name", "number", "text", "(", *_WORDS)
        if token is None:
            raise self._expected("a property, a number, a text or '('")
        if token.kind == "name":
            return conditions.named_property(token.text)
        if token.kind == "number":
            return self._build(token, conditions.number, token.text)
        if token.kind == "text":
            return conditions.literal(Kind.TEXT, _unquoted(token.text))
        if token.kind in _WORDS:
            return conditions.literal(Kind.CONDITION, _WORDS[token.kind])
        self._open += 1
        if self._open > NESTING_MAX:
            raise FilterSyntaxError(
                f"at character {token.at + 1}: more than {NESTING_MAX} open parentheses"
            )
        node = self._filter()
        self._require(")", "an operator or ')'")
        self._open -= 1
        return node

    def _texts(self) -> list[str]:
        self._require("(", "'('")
        texts = [self._text()]
        while self._take(","):
            texts.append(self._text())
        self._require(")", "',' or ')'")
        return texts

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
        token = self._take(kind)
        if token is None:
            raise self._expected(expected)
        return token

    def _expected(self, expected: str) -> FilterSyntaxError:
        token = self._peek()
        found = "the end" if token.kind == "end" else f"{token.text:.40}"
        return FilterSyntaxError(f"at character {token.at + 1}: expected {expected}, found {found}")

    def _build(
        self, token: _Token, make: Callable[..., Node], *operands: object, **options: object
    ) -> Node:
        """A node; if the operands do not fit, the error names the operator and its place."""
        try:
            return make(*operands, **options)
        except OperandError as error:
            at = f"at character {token.at + 1}, {token.text:.40}" if token.text else "at the end"
            raise FilterSyntaxError(f"{at}: {error}") from None


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")
