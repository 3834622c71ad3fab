"""What a broker calls the topics that it makes for groups, and which names are not for users.

Whoever assembles a broker hands this in: the names are a protocol's (RocketMQ's are in
`rocketmq.profile`), what is done with them is the core's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onelog.config import BrokerConfig
from onelog.names import OWN_PREFIX, fitting

if TYPE_CHECKING:
    from onelog.core.catalog.topics import TopicConfig


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of one broker. The defaults are OneLog's own."""

    retry_prefix: str = "onelog_retry/"
    dead_letter_prefix: str = "onelog_dead/"
    default_topic: str = "onelog_default"
    """The topic whose settings a new one inherits, if topics may be made by their first message."""
    system_topics: "Callable[[BrokerConfig], list[TopicConfig]]" = lambda _: []
    """Topics that are there from the start."""
    reserved_topics: frozenset[str] = frozenset()
    """Further names that users may not give to a topic."""
    reserved_prefix: str = "onelog_"
    unsendable_topics: frozenset[str] = frozenset()
    """Further topics that nobody may send to."""
    system_groups: tuple[str, ...] = ()
    """Groups that are there from the start."""
    reserved_groups: frozenset[str] = frozenset()
    """Groups that come into being when they are used, even if others may not."""
    reserved_group_prefix: str = OWN_PREFIX

    def retry_topic(self, group: str) -> str:
        """Where a group's failed messages wait for their next delivery."""
        return fitting(self.retry_prefix + group)

    def lease_retry_topic(self, group: str, topic: str) -> str:
        """Where the messages of a topic wait that a group leased and did not acknowledge."""
        return fitting(f"{self.retry_prefix}{group}_{topic}")

    def dead_letter_topic(self, group: str) -> str:
        """Where a group's messages end that failed too often."""
        return fitting(self.dead_letter_prefix + group)

    def is_retry(self, topic: str) -> bool:
        """Whether messages wait in this topic for their next delivery."""
        return topic.startswith(self.retry_prefix)
