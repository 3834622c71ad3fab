"""From an exchange and a key to queues: the walk over bindings, and the routes that come of it.

An exchange that no binding leads on from hands over to its alternate exchange. Exchanges may lead
to one another, in circles, too: each is passed once. A queue that is reached on several ways gets
the message once.

Routes are kept at the exchange where the message came in, by key, unless something on the way
looked at more than the key, or there was nothing: keys that lead nowhere may be without end.
"""

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from onelog.core.catalog.topics import TopicConfig
from onelog.core.routing.exchanges import Destination, Exchange, RoutingKeys
from onelog.core.routing.names import queue_of, topic_of
from onelog.core.routing.targets import Group, RoutedTargets, Target
from onelog.core.routing.topology import Vhost
from onelog.errors import WireError
from onelog.record.dispatch import EXTRA_QUEUES_MAX
from onelog.record.forms import amqp
from onelog.record.forms.amqp_fields import NO_PROPERTIES, Table, headers_of

ROUTES_MAX = 20_000
"""Keys that an exchange remembers the way of."""
_NAMES_BYTES_MAX = 20_000
"""Of extra queues in one record: properties have 32,767, and each queue an offset beside its name.
"""
_OFFSET_BYTES = 12


class TopicTarget(NamedTuple):
    """A topic that messages are routed to, though it is nobody's queue."""

    name: str
    topic: str
    queue_id: int
    is_durable: bool = True
    levels: int = 0
    is_limited: bool = False

    def admits(self, body: bytes, form: int) -> bool:
        return True

    def put(self, body: bytes, form: int, priority: int) -> None:
        """Never called: it is in the log."""
        raise AssertionError("a topic is no queue in memory")

    def put_all(self, bodies: Sequence[bytes], form: int) -> None:
        """Never called, either."""
        raise AssertionError("a topic is no queue in memory")


class WalkResult(NamedTuple):
    """What a walk has come to."""

    targets: list[Target]
    delaying: list[Exchange]
    """Exchanges on the way at which the message has to wait; what is behind them is not found."""
    by_key: bool
    """Whether the next message with the same keys goes the same way."""


def walk(
    vhost: Vhost,
    exchange: Exchange,
    query: RoutingKeys,
    topic: Callable[[str], TopicConfig | None],
    *,
    delayed: bool = False,
    to_topics: bool = False,
    is_authorized: bool = True,
) -> WalkResult:
    """Where a message goes that comes in at an exchange; one that is `delayed` has to wait.

    With `to_topics` the default exchange leads to a topic, too, that the key names. Unless it was
    asked whether the message may go where the key says (`is_authorized`), it goes to no topic's
    queue.
    """
    targets: dict[Destination, Target] = {}
    delaying: list[Exchange] = []
    seen, left, by_key = {exchange.name}, [exchange], True
    while left:
        at = left.pop()
        if delayed and at.delays:
            delaying.append(at)
            continue
        if at.name:
            by_key &= at.matcher.by_key and not at.delays
            destinations = list(at.matcher.match(query))
        else:
            shared = () if is_authorized and at is exchange else vhost.shared
            destinations = [
                ("queue", key) for key in query.keys if key in vhost.queues and key not in shared
            ]
            if to_topics and at is exchange and is_topic(vhost, query.keys[0], topic):
                destinations.append(("topic", query.keys[0]))
        if not destinations and (alternate := at.alternate) is not None:
            destinations = [("exchange", alternate)]
        for destination in destinations:
            kind, name = destination
            if kind == "exchange":
                following = vhost.exchanges.get(name)
                if following is not None and name not in seen:
                    seen.add(name)
                    left.append(following)
            elif destination not in targets:
                target = _target(vhost, destination, query.keys[0], topic)
                if target is not None:
                    targets[destination] = target
    return WalkResult(list(targets.values()), delaying, by_key)


def is_topic(vhost: Vhost, key: str, topic: Callable[[str], TopicConfig | None]) -> bool:
    """Whether a key names a topic that nobody has declared as a queue."""
    return (
        key not in vhost.queues
        and topic(key) is not None
        and topic_of(vhost.name, key) == key
        and queue_of(key) == (vhost.name, key)
    )


def _target(
    vhost: Vhost, destination: Destination, key: str, topic: Callable[[str], TopicConfig | None]
) -> Target | None:
    kind, name = destination
    if kind == "queue":
        return vhost.queues.get(name)
    config = topic(name)
    if config is None or not config.writable or not config.write_queues:
        return None
    # The same key goes to the same queue, as with Kafka's and RocketMQ's own producers.
    queue_id = zlib.crc32(key.encode("utf-8", "surrogateescape")) % config.write_queues
    return TopicTarget(name, name, queue_id)


def headers_reader(properties: bytes) -> Callable[[], Table]:
    """Reads the headers when they are asked for; those that cannot be read are none."""

    def read() -> Table:
        try:
            return headers_of(properties)
        except WireError:
            return {}

    return read


NO_HEADERS = partial(headers_of, NO_PROPERTIES)


def groups_of(destinations: Sequence[tuple[str, int]]) -> list[Group]:
    """Topics and queue ids as records can name them: each has one id, and so many extra topics."""
    by_id: dict[int, list[str]] = {}
    for topic, queue_id in destinations:
        by_id.setdefault(queue_id, []).append(topic)
    groups: list[Group] = []
    for queue_id, topics in by_id.items():
        first, size = topics[0], 0
        extra: list[str] = []
        for topic in topics[1:]:
            size += len(topic.encode()) + _OFFSET_BYTES
            if size > _NAMES_BYTES_MAX or len(extra) == EXTRA_QUEUES_MAX:
                groups.append((first, queue_id, tuple(extra)))
                first, extra, size = topic, [], 0
            else:
                extra.append(topic)
        groups.append((first, queue_id, tuple(extra)))
    return groups


def log_queue_of(target: Target, priority: int) -> tuple[str, int]:
    """The topic and the queue id where a target in the log gets a message of that priority."""
    if isinstance(target, TopicTarget):
        return target.topic, target.queue_id
    return target.topic, min(priority, target.levels)


def route_of(exchange: str, key: str, targets: Sequence[Target]) -> RoutedTargets:
    groups = groups_of([log_queue_of(target, 0) for target in targets if target.topic])
    return RoutedTargets(amqp.head(exchange, key), targets, groups)
