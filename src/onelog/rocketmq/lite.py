"""Lite topics: thousands of small queues of one topic, made by being written to.

The messages of lite topic `l` of topic `t` are stored once, in a queue of `t`, and entered in the
light queue `%LMQ%$t$l`, which is read by those who want that lite topic.

A lite topic to which nothing came for as many minutes as its topic says (`lite.topic.expiration`),
and for a quarter of an hour at least, is forgotten, with the positions of groups in it, read or
not. The messages stay in the topic's own queues. Should something come again, it begins anew.
"""

import re

from onelog.core.access import SELF
from onelog.core.broker import Broker
from onelog.names import LIGHT_QUEUE_PREFIX

EXPIRATION = "lite.topic.expiration"
EXPIRATION_MINUTES_MAX = 30 * 24 * 60
EXPIRED_MS_MIN = 15 * 60_000
CHECK_MS = 120_000
FORGOTTEN_MAX = 20
"""Lite topics that are forgotten at a time."""
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def queue_name(topic: str, lite_topic: str) -> str:
    """The light queue of a lite topic."""
    return f"{LIGHT_QUEUE_PREFIX}${topic}${lite_topic}"


def is_legal(name: str, characters_max: int) -> bool:
    """Whether a lite topic may be called so."""
    return len(name) <= characters_max and _NAME.fullmatch(name) is not None


def lifetimes(broker: Broker) -> dict[str, int]:
    """How many milliseconds the lite topics of each topic last; those that last for ever are not
    there."""
    found = {}
    for config in broker.topics.all(SELF)[1]:
        minutes = int((config.attributes or {}).get(EXPIRATION, "-1"))
        if minutes > 0:
            found[config.name] = max(minutes * 60_000, EXPIRED_MS_MIN)
    return found


def expired(broker: Broker, now_ms: int, lifetimes_ms: dict[str, int]) -> list[tuple[str, int]]:
    """The light queues to which nothing came for too long, and their ends. It reads the disk."""

    def topic_of(name: str) -> str:
        return name.partition("$")[2].partition("$")[0]

    return [
        (name, end)
        for name, end, last_ms in broker.queues.light(
            SELF, lambda name: topic_of(name) in lifetimes_ms
        )
        if now_ms - last_ms > lifetimes_ms[topic_of(name)]
    ]


def forget_some(broker: Broker, found: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Forget some lite topics, unless something came meanwhile; those that are left."""
    for name, end in found[:FORGOTTEN_MAX]:
        if broker.topics.max_offset(SELF, name, 0) == end:
            broker.queues.delete_light(SELF, name)
    return found[FORGOTTEN_MAX:]
