"""Kafka's rules for names, and the ids that it knows topics by.

A topic's id follows from its name and the time it came into being, so that one that is made again
has another, and nothing has to be kept.
"""

import hashlib
import re

from onelog.core.access import SELF, Principal
from onelog.core.broker import Broker
from onelog.core.catalog.topics import CLEANUP_POLICY, COMPACT, PERM_READ, TopicConfig
from onelog.errors import (
    InvalidRequestError,
    InvalidTopicError,
    SystemTopicError,
    TopicNotFoundError,
)
from onelog.names import OFFSETS_TOPIC, VIEW_PARTITIONS, VIEW_TOPICS

NAME_CHARS_MAX = 249
NO_ID = bytes(16)
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_CLUSTER_TOPIC = "__cluster_metadata"
"""Where Kafka's controllers keep what they agree on."""


def is_legal_topic(name: str) -> bool:
    """Whether Kafka would let a topic be called so."""
    return (
        len(name) <= NAME_CHARS_MAX
        and _NAME.fullmatch(name) is not None
        and name not in (".", "..")
    )


def check_topic(name: str) -> None:
    """`InvalidTopicError` if Kafka would not let a topic be called so."""
    if not is_legal_topic(name):
        raise InvalidTopicError(
            f"topic name {name[:60]!r} is not 1 to {NAME_CHARS_MAX} of the characters a-z, A-Z, "
            "0-9, '.', '_' and '-'"
        )


def check_new_topic(name: str) -> None:
    """The same, and `InvalidRequestError` for the topic that only Kafka itself can make."""
    check_topic(name)
    if name == _CLUSTER_TOPIC:
        raise InvalidRequestError(f"topic {name} is Kafka's own: nobody can make it")


def topic_id(config: TopicConfig) -> bytes:
    """The id of a topic, 16 bytes."""
    identity = f"{config.name}\0{config.created_ms}".encode()
    return hashlib.blake2b(identity, digest_size=16, person=b"onelog-topic").digest()


class TopicIds:
    """Which topic an id is of."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._names: dict[bytes, str] | None = None
        broker.topics.on_change.append(self._topic_changed)

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        self._names = None

    def name_of(self, id_: bytes) -> str | None:
        """The topic with this id, if there is one."""
        if self._names is None:
            _, configs = self._broker.topics.all(SELF)
            known = (*configs, *INTERNAL_TOPICS.values())
            self._names = {topic_id(config): config.name for config in known}
        return self._names.get(id_)


INTERNAL_TOPICS = {
    name: TopicConfig(
        name,
        VIEW_PARTITIONS,
        VIEW_PARTITIONS,
        PERM_READ,
        attributes={CLEANUP_POLICY: COMPACT, "segment.bytes": str(100 << 20)},
    )
    for name in VIEW_TOPICS
}
"""Kafka's own, which are views here (see `groups.offsets_topic`)."""


def visible_topics(broker: Broker, principal: Principal) -> list[TopicConfig]:
    """The topics that Kafka's clients are told of, and can change."""
    _, configs = broker.topics.all(principal)
    return [each for each in configs if is_visible(broker, each.name)]


def listed_topics(broker: Broker, principal: Principal) -> list[TopicConfig]:
    """The same, and of Kafka's own that of groups, once there is a group."""
    found = visible_topics(broker, principal)
    if broker.groups.coordinator.is_used and broker.users.may(
        principal, "describe", ("topic", OFFSETS_TOPIC)
    ):
        found.append(INTERNAL_TOPICS[OFFSETS_TOPIC])
    return found


def is_visible(broker: Broker, name: str) -> bool:
    """Whether a topic is one for users, and has a name that Kafka allows."""
    return is_legal_topic(name) and name not in VIEW_TOPICS and not broker.topics.is_system(name)


def require_topic(broker: Broker, principal: Principal, name: str) -> TopicConfig:
    """A topic's settings; those of the broker's own topics are not for Kafka's clients.

    `SystemTopicError` for Kafka's own, which are only read.
    """
    config = broker.topics.find(principal, name)
    if name in VIEW_TOPICS:
        raise SystemTopicError(f"topic {name} is Kafka's own: it can only be read")
    if config is None or not is_visible(broker, name):
        raise TopicNotFoundError(f"there is no topic {name[:60]!r}")
    return config


def require_readable(broker: Broker, principal: Principal, name: str) -> TopicConfig:
    """The settings of a topic that may be one of Kafka's own."""
    if name in VIEW_TOPICS:
        broker.users.check(principal, "describe", ("topic", name))
        return INTERNAL_TOPICS[name]
    return require_topic(broker, principal, name)
