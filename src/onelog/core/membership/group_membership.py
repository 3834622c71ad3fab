"""Consumer groups, as clients see them: their settings, their live members, and how far they are.

Each method says who asks, and asks whether they may.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from onelog.core.access import Principal
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.durable.tables import DataVersion
from onelog.core.filters.tags import Subscription
from onelog.core.membership.assignment import RequestMode
from onelog.core.membership.locks import Queue
from onelog.core.membership.members import Client, ConsumerData, LiveGroup, Member
from onelog.errors import (
    GroupNotFoundError,
    GroupPermissionError,
    InvalidGroupError,
    SubscriptionNotFoundError,
    SubscriptionOutdatedError,
)

if TYPE_CHECKING:
    from onelog.core.assembly import Assembly
    from onelog.core.catalog.topic_catalog import TopicCatalog
    from onelog.core.membership.coordinator import Coordinator

log = logging.getLogger(__name__)

UNIT_SUBSCRIBED_FLAG = 2
"""The sys flag of the retry topic of a group in unit mode."""


class QueueProgress(NamedTuple):
    """How far a group is in a queue; `last_ms` is when the last consumed message was stored."""

    topic: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_ms: int

    @property
    def lag(self) -> int:
        """Messages that are not consumed yet."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """Messages that were handed out and are not consumed yet."""
        return self.pull_offset - self.consumer_offset


class ConsumeTimeSpan(NamedTuple):
    """From when to when a queue's messages are, how far in time a group is, and how late."""

    queue_id: int
    min_ms: int
    max_ms: int
    consumed_ms: int
    delay_ms: int


class ConsumeStats(NamedTuple):
    """How far, and how fast, a group consumes."""

    group: str
    queues: list[QueueProgress]
    get_per_second: float


class GroupMembership:
    """`Broker.groups`."""

    coordinator: "Coordinator"
    """Groups of Kafka's kinds."""

    def __init__(self, core: "Assembly", topic_catalog: "TopicCatalog") -> None:
        self._access = core.access
        self._broker_name = core.config.name
        self._naming = core.naming
        self._durability = core.durability
        self._groups = core.groups
        self._topics = core.topics
        self._topic_catalog = topic_catalog
        self._members = core.members
        self._offsets = core.offsets
        self._locks = core.locks
        self._request_modes = core.request_modes
        self._tables = core.tables
        self._stats = core.stats
        self._store = core.store
        self._clock = core.clock
        self.on_change = core.groups.on_change
        """Called with the name of a consumer group that was created, changed or deleted."""
        self.on_members_change = core.members.on_group_change
        """Called with a group and its members when one came or left, or topics came or went."""
        self.on_channel_expired: list[Callable[[Hashable], None]] = []
        """Called with the channel of a client that was silent for too long."""
        self.on_channel_closed: list[Callable[[Hashable], None]] = []
        """The parts that keep something for a connection, in the order in which they let it go."""

    def require(self, principal: Principal, name: str) -> GroupConfig:
        """A consumer group's settings; created on first use where that is allowed."""
        self._access.check(principal, "describe", ("group", name))
        return self._groups.require(name)

    def find(self, principal: Principal, name: str) -> GroupConfig | None:
        """A consumer group's settings, if it exists."""
        if not self._access.is_open:
            self._access.check(principal, "describe", ("group", name))
        return self._groups.get(name)

    def all(self, principal: Principal) -> tuple[DataVersion, list[GroupConfig]]:
        """Every consumer group, in the order of creation, and the version of the whole set."""
        self._access.check(principal, "describe", ("broker", self._broker_name))
        return self._groups.version, self._access.seen(principal, "group", self._groups.all())

    def put(self, principal: Principal, config: GroupConfig) -> None:
        """Create a group, or change its settings."""
        self._access.check(principal, "create", ("group", config.name))
        self._groups.put(config)

    def delete(self, principal: Principal, group: str, *, clean_offsets: bool) -> None:
        """Forget a group, if there is one; with `clean_offsets`, its positions as well."""
        self._access.check(principal, "delete", ("group", group))
        positions = self._offsets.removal(group=group) if clean_offsets else []
        if self._groups.get(group) is not None:
            self._groups.delete(group, positions)
            self._stats.forget(group)
        elif positions:
            self._tables.write(positions)

    def of_topic(self, principal: Principal, topic: str) -> list[str]:
        """Who consumes a topic, now or by a position it keeps."""
        self._access.check(principal, "describe", ("topic", topic))
        found = sorted(self._members.groups_of_topic(topic) | set(self._offsets.groups_of(topic)))
        return self._access.known(principal, "group", found)

    def topics_of(self, principal: Principal, group: str) -> list[str]:
        """The topics in which a group has a position."""
        self._access.check(principal, "describe", ("group", group))
        return self._access.known(principal, "topic", self._offsets.topics_of(group))

    def request_modes(self, principal: Principal) -> dict[tuple[str, str], RequestMode]:
        """How groups consume topics, by topic and group, where that is not the default."""
        self._access.check(principal, "describe", ("broker", "names"))
        return self._request_modes.all()

    def request_mode(self, principal: Principal, group: str, topic: str) -> RequestMode:
        """How a group shall consume a topic."""
        self._access.check(principal, "consume", ("group", group))
        return self._request_modes.of(group, topic)

    def set_request_mode(
        self, principal: Principal, group: str, topic: str, mode: RequestMode
    ) -> None:
        """Choose how a group consumes a topic from now on."""
        self._access.check(principal, "alter", ("group", group))
        self._access.check_group_topic(principal, group, topic, self._naming)
        self._request_modes.set(group, topic, mode)

    # -- members ----------------------------------------------------------------------------------

    def heartbeat(
        self,
        principal: Principal,
        client: Client,
        consumers: Sequence[ConsumerData],
        producer_groups: Sequence[str],
    ) -> bool:
        """A client is alive, in these groups. True if a consumer group changed by that."""
        self._check_member(principal, [data.group for data in consumers], producer_groups)
        changed = False
        for data in consumers:
            try:
                group = self._groups.require(data.group)
            except (GroupNotFoundError, InvalidGroupError) as error:
                log.warning("heartbeat of %r: %s", client.client_id, error)
                continue
            ordered = any(self._is_ordered(sub.topic) for sub in data.subscriptions)
            sys_flag = UNIT_SUBSCRIBED_FLAG if data.unit_mode else 0
            queues = group.retry_queues
            retry = self._naming.retry_topic(group.name)
            self._topics.ensure(
                TopicConfig(retry, queues, queues, order=ordered, sys_flag=sys_flag)
            )
            changed |= self._members.consumer_seen(client, data, notify=group.notify_members)
        for name in producer_groups:
            self._members.producer_seen(client, name)
        return changed

    def _check_member(
        self, principal: Principal, consumer_groups: Iterable[str], producer_groups: Iterable[str]
    ) -> None:
        for group in consumer_groups:
            self._access.check(principal, "consume", ("group", group))
        for group in producer_groups:
            self._access.check(principal, "publish", ("group", group))

    def _is_ordered(self, topic: str) -> bool:
        config = self._topics.get(topic)
        return config is not None and config.order

    def refresh_membership(self, principal: Principal, client: Client, group: str) -> bool:
        """A client is alive, as it was; False if the consumer group does not know it."""
        self._access.check(principal, "consume", ("group", group))
        return self._members.refresh_consumer(client, group)

    def unregister(
        self,
        principal: Principal,
        channel: Hashable,
        consumer_group: str | None,
        producer_group: str | None,
    ) -> None:
        """A client leaves its groups."""
        self._check_member(
            principal, filter(None, [consumer_group]), filter(None, [producer_group])
        )
        if consumer_group:
            group = self._groups.get(consumer_group)
            notify = group is None or group.notify_members
            self._members.consumer_left(channel, consumer_group, notify=notify)
        if producer_group:
            self._members.producer_left(channel, producer_group)

    def channel_closed(self, channel: Hashable) -> None:
        """A connection is gone, and with it everything that hung on it."""
        for forget in self.on_channel_closed:
            forget(channel)

    def forget_after(self, retention_ms: int) -> None:
        """How long positions of Kafka groups without members are kept."""
        self.coordinator.uses.retention_ms = retention_ms

    def live(self, principal: Principal, group: str) -> LiveGroup | None:
        """A group's live members and how they consume; None if there are none."""
        self._access.check(principal, "describe", ("group", group))
        return self._members.group(group)

    def find_client(self, principal: Principal, client_id: str) -> Client | None:
        """A live client by its id: a producer, or one that is only known to consume."""
        self._access.check(principal, "describe", ("broker", self._broker_name))
        member = self._members.producer_by_id(client_id)
        for group in self._members.live_groups():
            member = member or group.find(client_id)
        return None if member is None else member.client

    def producers(self, principal: Principal) -> dict[str, list[Member]]:
        """The live members of every producer group, in the order they came."""
        self._access.check(principal, "describe", ("broker", "names"))
        return {group: self._members.producers(group) for group in self._members.producer_groups()}

    def subscription(self, principal: Principal, group: str, topic: str) -> Subscription | None:
        """What a live group subscribes to."""
        self._access.check(principal, "describe", ("group", group))
        return self._members.subscription(group, topic)

    def pull_subscription(
        self,
        principal: Principal,
        group: str,
        topic: str,
        channel: Hashable = None,
        version: int = 0,
    ) -> Subscription:
        """What a consumer's pull is filtered by; it must be at least as young as the consumer's."""
        self._access.check_consumer(principal, group, topic, self._naming)
        config = self._groups.require(group)
        self._topics.require(topic)
        found = self._members.subscription(group, topic, channel)
        if found is None:
            raise SubscriptionNotFoundError(
                f"the consumer's subscription not exist: group {group}, topic {topic}"
            )
        if found.version < version:
            raise SubscriptionOutdatedError("the consumer's subscription not latest")
        live = self._members.group(group)
        broadcasts = live is not None and live.message_model == "BROADCASTING"
        if broadcasts and not config.consume_broadcast_enable:
            raise GroupPermissionError(
                f"the consumer group[{group}] can not consume by broadcast way"
            )
        return found

    def lock(
        self, principal: Principal, group: str, client_id: str, queues: Iterable[Queue]
    ) -> list[Queue]:
        """Give queues to one member of a group for itself; those that it has then."""
        self._durability.require_served()
        self._access.check(principal, "consume", ("group", group))
        return self._locks.lock(group, client_id, queues)

    def unlock(
        self, principal: Principal, group: str, client_id: str, queues: Iterable[Queue]
    ) -> None:
        """Take queues back from a member."""
        self._access.check(principal, "consume", ("group", group))
        self._locks.unlock(group, client_id, queues)

    # -- progress ---------------------------------------------------------------------------------

    def consume_stats(
        self, principal: Principal, group: str, topic: str | None = None, topics: Iterable[str] = ()
    ) -> ConsumeStats:
        """How far a group is: in `topics`, else in `topic`, else wherever it has a position.

        Unless `topics` are named, those are left out to which no live member subscribes any more.
        """
        self._access.check(principal, "describe", ("group", group))
        named = [topic] if topic else list(topics)
        for each in named:
            self._access.check_group_topic(principal, group, each, self._naming)
        if not named and not self._access.is_open:
            known = self._access.known(principal, "topic", self._offsets.topics_of(group))
            stats = self._consume_stats(group)
            return stats._replace(queues=[each for each in stats.queues if each.topic in known])
        return self._consume_stats(group, topic, topics)

    def _consume_stats(
        self, group: str, topic: str | None = None, topics: Iterable[str] = ()
    ) -> ConsumeStats:
        wanted = list(topics)
        if not wanted:
            live = self._members.group(group)
            wanted = [topic] if topic else self._offsets.topics_of(group)
            if live is not None and live.subscriptions:
                wanted = [each for each in wanted if each in live.subscriptions]
        queues: list[QueueProgress] = []
        rate = 0.0
        for each in wanted:
            config = self._topics.get(each)
            if config is not None:
                queues += [
                    self._progress(group, each, queue_id) for queue_id in range(config.read_queues)
                ]
                rate += self._stats.get_rate(group, each)
        return ConsumeStats(group, queues, rate)

    def _progress(self, group: str, topic: str, queue_id: int) -> QueueProgress:
        consumed = self._offsets.get(group, topic, queue_id) or 0
        pulled = self._offsets.pulled_up_to(group, topic, queue_id) or 0
        return QueueProgress(
            topic,
            queue_id,
            self._store.max_offset(topic, queue_id),
            consumed,
            max(consumed, pulled),
            self._topic_catalog.store_time(topic, queue_id, consumed - 1),
        )

    def all_consume_stats(
        self, principal: Principal, *, ordered_only: bool = False
    ) -> list[ConsumeStats]:
        """How far every group is, one entry per group and topic."""
        self._access.check(principal, "describe", ("broker", "names"))
        found = []
        topics = self._offsets.topics_by_group()
        for group in self._groups.all():
            for topic in topics.get(group.name, ()):
                config = self._topics.get(topic)
                if config is not None and (config.order or not ordered_only):
                    stats = self._consume_stats(group.name, topic)
                    if stats.queues:
                        found.append(stats)
        return found

    def consume_time_spans(
        self, principal: Principal, group: str, topic: str
    ) -> list[ConsumeTimeSpan]:
        """Per queue, from when to when its messages are and how far in time the group is."""
        self._access.check(principal, "describe", ("group", group))
        self._access.check_group_topic(principal, group, topic, self._naming)
        config = self._topics.require(topic)
        spans = []
        for queue_id in range(config.write_queues):
            start = self._store.min_offset(topic, queue_id)
            end = self._store.max_offset(topic, queue_id)
            first_ms = self._topic_catalog.store_time(topic, queue_id, start)
            consumed = self._offsets.get(group, topic, queue_id) or 0
            next_ms = (
                self._topic_catalog.store_time(topic, queue_id, consumed) if consumed < end else 0
            )
            spans.append(
                ConsumeTimeSpan(
                    queue_id,
                    first_ms,
                    self._topic_catalog.store_time(topic, queue_id, end - 1),
                    self._topic_catalog.store_time(topic, queue_id, consumed - 1)
                    if consumed
                    else first_ms,
                    self._clock.now_ms() - next_ms if next_ms else 0,
                )
            )
        return spans
