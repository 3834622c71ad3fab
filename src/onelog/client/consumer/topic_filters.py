"""What a consumer wants of a topic: some tags, or what meets a SQL-92 condition, or everything.

Brokers filter by the hash of the tags, which different tags may share, so tags are compared here
once more. Conditions are the broker's business alone.

Invariant: a `TopicFilter` that exists is one that brokers can read, as far as that can be known
without asking them.
"""

import time
from dataclasses import dataclass

from onelog.client.message import check_topic
from onelog.errors import FilterSyntaxError
from onelog.message import Message as Record
from onelog.message import property_bytes, tags_code
from onelog.wire.remoting.clients import SubscriptionData

ALL = "*"
_TAGS = b"TAGS\x01"


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """A subscription to one topic. Made by `topic_filter`."""

    topic: str
    expression: str
    is_sql: bool
    tags: frozenset[bytes]
    """The wanted tags, encoded; empty means that tags do not matter."""
    version: int
    """Grows when a consumer changes its mind; brokers refuse pulls that know better than they."""

    @property
    def kind(self) -> str:
        """What brokers call the kind of filter."""
        return "SQL92" if self.is_sql else "TAG"

    @property
    def is_everything(self) -> bool:
        """Whether every message is wanted."""
        return not self.is_sql and not self.tags

    def data(self) -> SubscriptionData:
        """The subscription as heartbeats carry it."""
        tags = sorted(tag.decode() for tag in self.tags)
        return SubscriptionData(
            code_set=[tags_code(tag) for tag in tags],
            expression_type=self.kind,
            sub_string=self.expression,
            sub_version=self.version,
            tags_set=tags,
            topic=self.topic,
        )

    def wanted(self, messages: list[Record]) -> list[Record]:
        """Those messages whose tags are wanted, not only their hash."""
        tags = self.tags
        if not tags:
            return messages
        return [each for each in messages if property_bytes(each.properties, _TAGS) in tags]


def topic_filter(topic: str, tags: str = ALL, *, sql: str | None = None) -> TopicFilter:
    """A filter from what users write: `tags` as `a || b`, or a condition."""
    check_topic(topic)
    version = time.time_ns() // 1_000_000
    if sql is not None:
        if tags != ALL:
            raise FilterSyntaxError(f"a filter on {topic} has tags or a condition, but not both")
        if not sql.strip():
            raise FilterSyntaxError(f"the condition on {topic} is empty")
        return TopicFilter(topic, sql, True, frozenset(), version)
    expression = tags.strip()
    if not expression or expression == ALL:
        return TopicFilter(topic, ALL, False, frozenset(), version)
    wanted = frozenset(part.strip().encode() for part in expression.split("||")) - {b""}
    if not wanted:
        raise FilterSyntaxError(f"there is no tag in {tags[:40]!r}; write * for every message")
    return TopicFilter(topic, expression, False, wanted, version)
