"""Which messages of a topic a consumer wants: by tags, or by a SQL-92 condition on properties.

Tags are compared by their hash, which each queue entry holds, so that a message that is not wanted
is never read. Different tags may share a hash: the consumer compares the tags themselves again.
A condition needs the message's properties.

Invariant: a `Subscription` that exists was understood; what cannot be is a `FilterSyntaxError`.
"""

from dataclasses import dataclass, field
from typing import Literal

from onelog.core.filters.sql import CHARACTERS_MAX
from onelog.core.filters.sql92 import Predicate, compile_sql
from onelog.errors import FilterSyntaxError
from onelog.message import TAGS, decode_properties, property_bytes, tags_code

__all__ = ["FilterKind", "Predicate", "Subscription", "compile_sql", "parse_tags", "subscribe"]

FilterKind = Literal["TAG", "SQL92"]

ALL_TAGS = "*"
_TAGS_NEEDLE = TAGS.encode() + b"\x01"
_BLANK = "".join(map(chr, range(33)))
"""What Java trims."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member of a group wants of one topic. Made by `subscribe`.

    `codes` are the hashes of `tags`, or None for every message. `version` is the consumer's: it
    grows when the consumer changes its mind.
    """

    topic: str
    expression: str = ALL_TAGS
    kind: FilterKind = "TAG"
    version: int = 0
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] | None = None
    predicate: Predicate | None = field(default=None, compare=False, repr=False)

    def wants_code(self, code: int) -> bool:
        """Whether a message with this tag hash can be wanted, judged by its queue entry alone."""
        return self.codes is None or code in self.codes

    def wants(self, properties: bytes) -> bool:
        """Whether a message is wanted, judged by its encoded properties."""
        tags = property_bytes(properties, _TAGS_NEEDLE)
        return self.wants_code(tags_code(tags) if tags else 0) and (
            self.predicate is None or self.predicate(decode_properties(properties))
        )


def subscribe(
    topic: str, expression: str = ALL_TAGS, kind: str | None = "TAG", version: int = 0
) -> Subscription:
    """A subscription, from the texts a consumer sends; no kind means tags."""
    if kind == "SQL92":
        if not expression.strip(_BLANK):
            raise FilterSyntaxError(f"the SQL92 filter on topic {topic} is empty")
        predicate = compile_sql(expression)
        return Subscription(topic, expression, "SQL92", version, predicate=predicate)
    if kind not in (None, "", "TAG"):
        raise FilterSyntaxError(f"there is no kind of filter {kind:.40}; there are TAG and SQL92")
    tags = _tags(expression)
    return Subscription(
        topic, expression or ALL_TAGS, "TAG", version, tags or frozenset(), parse_tags(expression)
    )


def parse_tags(expression: str) -> frozenset[int] | None:
    """The hashes of the tags in `a || b`; None, which means every message, for `*` or nothing."""
    tags = _tags(expression)
    return None if tags is None else frozenset(map(tags_code, tags))


def _tags(expression: str) -> frozenset[str] | None:
    if expression in ("", ALL_TAGS):
        return None
    if len(expression) > CHARACTERS_MAX:
        raise FilterSyntaxError(
            f"the tags have {len(expression)} characters; the limit is {CHARACTERS_MAX}"
        )
    tags = frozenset(tag.strip(_BLANK) for tag in expression.split("||")) - {""}
    if not tags:
        # RocketMQ takes blanks for a subscription to nothing at all; nobody means that.
        raise FilterSyntaxError(
            f"there is no tag in {expression[:40]!r}; write * for every message"
        )
    return tags
