"""Administration: what people ask about topics and groups, and how they correct them.

Answers are values; gateways turn them into their protocol's words. The rules behind them (which
topics of a group are shown, what a reset may do) are those of RocketMQ's admin commands.

Questions may take long, and go to the disk for store times, so a worker may ask them: nothing here
looks at a table for longer than it takes to copy it. Corrections belong to the loop.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from onelog.clock import Clock
from onelog.core.catalog.groups import GroupConfig, Groups
from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.cursors.offsets import Offsets
from onelog.core.durable.writer import Writer
from onelog.core.membership.members import LiveGroup, Members
from onelog.core.stats import Statistic, Stats
from onelog.errors import (
    ConsumersOfflineError,
    GroupNotFoundError,
    InvalidGroupError,
    InvalidQueueError,
    OffsetOutOfRangeError,
    StatisticNotFoundError,
)
from onelog.names import LIGHT_QUEUE_PREFIX, OWN_PREFIX, check_name
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

OFFSET_MAX = (1 << 63) - 1


class QueueStats(NamedTuple):
    """What a queue holds; `last_ms` is when its last message was stored, 0 if there is none."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_ms: int


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


class TopicStats(NamedTuple):
    """What a topic holds, and how fast it grows."""

    topic: str
    queues: list[QueueStats]
    put_per_second: float


class ConsumeStats(NamedTuple):
    """How far, and how fast, a group consumes."""

    group: str
    queues: list[QueueProgress]
    get_per_second: float


@dataclass(slots=True, eq=False)
class Admin:
    """Questions and corrections."""

    store: MessageStore
    writer: Writer
    clock: Clock
    topics: Topics
    groups: Groups
    members: Members
    offsets: Offsets
    stats: Stats

    # -- topics --------------------------------------------------------------------------------

    def create_topic(self, config: TopicConfig) -> None:
        """Create a topic, or change its settings."""
        self.topics.put(config)

    def delete_topic(self, topic: str) -> None:
        """Forget a topic, every group's position in it, and its queues."""
        self.topics.delete(topic, self.offsets.removal(topic=topic))
        self.writer.delete_topic(topic)
        self.stats.forget(topic)

    def delete_unused_topics(self) -> list[str]:
        """Remove the queues of topics that do not exist any more."""
        unused = self.unused_topics()
        for topic in unused:
            self.writer.delete_topic(topic)
        return unused

    def unused_topics(self) -> list[str]:
        """The topics that do not exist any more, but have queues.

        The broker's own topics, and light queues, have queues without having settings.
        """
        kept = (OWN_PREFIX, self.topics.naming.reserved_prefix, LIGHT_QUEUE_PREFIX)
        return [
            topic
            for topic in sorted(self.store.queue_table.by_topic)
            if self.topics.get(topic) is None and not topic.startswith(kept)
        ]

    def system_topics(self) -> list[str]:
        """The topics that are the broker's own."""
        return [config.name for config in self.topics.all() if self.topics.is_system(config.name)]

    def topic_stats(self, topic: str) -> TopicStats:
        """Every queue of a topic, the empty ones too."""
        config = self.topics.require(topic)
        queues = []
        for queue_id in range(config.queues):
            end = self.store.max_offset(topic, queue_id)
            last_ms = self._store_time(topic, queue_id, end - 1)
            queues.append(
                QueueStats(queue_id, self.store.min_offset(topic, queue_id), end, last_ms)
            )
        return TopicStats(topic, queues, self.stats.put_rate(topic))

    def _store_time(self, topic: str, queue_id: int, offset: int) -> int:
        if offset < 0:
            return 0
        return self.store.store_time(topic, queue_id, offset) or 0

    def groups_of_topic(self, topic: str) -> list[str]:
        """Who consumes a topic, now or by a position it keeps."""
        return sorted(self.members.groups_of_topic(topic) | set(self.offsets.groups_of(topic)))

    def unread(self, deleted: Mapping[tuple[str, int], int]) -> dict[str, int]:
        """Of messages that retention just deleted, how many each group had not read yet."""
        lost: dict[str, int] = {}
        for (topic, queue_id), count in deleted.items():
            start = self.store.min_offset(topic, queue_id)
            for group in self.offsets.groups_of(topic):
                position = self.offsets.get(group, topic, queue_id)
                if position is not None and position < start:
                    missed = min(count, start - position)
                    lost[group] = lost.get(group, 0) + missed
        return lost

    # -- groups --------------------------------------------------------------------------------

    def update_group(self, config: GroupConfig) -> None:
        """Create a group, or change its settings."""
        self.groups.put(config)

    def delete_group(self, group: str, *, clean_offsets: bool) -> None:
        """Forget a group; with `clean_offsets`, its positions as well."""
        self.groups.delete(group, self.offsets.removal(group=group) if clean_offsets else [])
        self.stats.forget(group)

    def topics_of_group(self, group: str) -> list[str]:
        """The topics in which a group has a position."""
        return self.offsets.topics_of(group)

    def connections(self, group: str) -> LiveGroup:
        """A group's live members, and how they consume."""
        found = self.members.group(group)
        if found is None:
            raise ConsumersOfflineError(f"the consumer group[{group}] not online")
        return found

    def consume_stats(
        self, group: str, topic: str | None = None, topics: Iterable[str] = ()
    ) -> ConsumeStats:
        """How far a group is: in `topics`, else in `topic`, else wherever it has a position.

        Unless `topics` are named, those are left out to which no live member subscribes any more.
        """
        wanted = list(topics)
        if not wanted:
            live = self.members.group(group)
            wanted = [topic] if topic else self.offsets.topics_of(group)
            if live is not None and live.subscriptions:
                wanted = [each for each in wanted if each in live.subscriptions]
        queues: list[QueueProgress] = []
        rate = 0.0
        for each in wanted:
            config = self.topics.get(each)
            if config is not None:
                queues += [
                    self._progress(group, each, queue_id) for queue_id in range(config.read_queues)
                ]
                rate += self.stats.get_rate(group, each)
        return ConsumeStats(group, queues, rate)

    def _progress(self, group: str, topic: str, queue_id: int) -> QueueProgress:
        consumed = self.offsets.get(group, topic, queue_id) or 0
        pulled = self.offsets.pulled_up_to(group, topic, queue_id) or 0
        return QueueProgress(
            topic,
            queue_id,
            self.store.max_offset(topic, queue_id),
            consumed,
            max(consumed, pulled),
            self._store_time(topic, queue_id, consumed - 1),
        )

    def all_consume_stats(self, *, ordered_only: bool = False) -> list[ConsumeStats]:
        """How far every group is, one entry per group and topic."""
        found = []
        topics = self.offsets.topics_by_group()
        for group in self.groups.all():
            for topic in topics.get(group.name, ()):
                config = self.topics.get(topic)
                if config is not None and (config.order or not ordered_only):
                    stats = self.consume_stats(group.name, topic)
                    if stats.queues:
                        found.append(stats)
        return found

    def consume_time_spans(self, group: str, topic: str) -> list[ConsumeTimeSpan]:
        """Per queue, from when to when its messages are and how far in time the group is."""
        config = self.topics.require(topic)
        spans = []
        for queue_id in range(config.write_queues):
            start = self.store.min_offset(topic, queue_id)
            end = self.store.max_offset(topic, queue_id)
            first_ms = self._store_time(topic, queue_id, start)
            consumed = self.offsets.get(group, topic, queue_id) or 0
            next_ms = self._store_time(topic, queue_id, consumed) if consumed < end else 0
            spans.append(
                ConsumeTimeSpan(
                    queue_id,
                    first_ms,
                    self._store_time(topic, queue_id, end - 1),
                    self._store_time(topic, queue_id, consumed - 1) if consumed else first_ms,
                    self.clock.now_ms() - next_ms if next_ms else 0,
                )
            )
        return spans

    # -- positions -----------------------------------------------------------------------------

    def reset_offsets(
        self,
        group: str,
        topic: str,
        time_ms: int,
        *,
        queue_id: int = -1,
        offset: int | None = None,
        places: Mapping[int, int] | None = None,
    ) -> dict[int, int]:
        """Move a group to a time (-1: to the end), or one queue of it to an offset.

        The answer is the new position of each queue. Live members go there with their next pull.
        `places` is what `offsets_at` found, for those who had a worker look.
        """
        config = self.topics.require(topic)
        if self.groups.get(group) is None:
            raise GroupNotFoundError(f"group {group} does not exist")
        if queue_id >= config.queues:
            raise InvalidQueueError(f"queueId[{queue_id}] is illegal, {config}")
        if queue_id < 0 or offset is None or offset == -1:
            queues = range(config.read_queues) if queue_id < 0 else (queue_id,)
            moved = dict(places or self.offsets_at(topic, queues, time_ms))
        else:
            start = self.store.min_offset(topic, queue_id)
            end = self.store.max_offset(topic, queue_id)
            if not start <= offset <= end + 1:
                raise OffsetOutOfRangeError(
                    f"target offset {offset} not in consume queue range [{start}-{end}]"
                )
            moved = {queue_id: offset}
        if not moved:
            raise InvalidQueueError(f"topic {topic} has no queues to reset")
        self.offsets.reset(group, topic, moved)
        log.info("group %s was moved in topic %s to %s", group, topic, moved)
        return moved

    def offsets_at(self, topic: str, queues: Iterable[int], time_ms: int) -> dict[int, int]:
        """Where in each queue a time is; -1 is the end."""
        store = self.store
        if time_ms < 0:
            return {each: store.max_offset(topic, each) for each in queues}
        return {each: store.offset_by_time(topic, each, time_ms) for each in queues}

    def clone_offsets(
        self, source: str, target: str, topic: str = "", *, offline: bool = False
    ) -> list[str]:
        """Put a group where another is, in one topic or in all of its topics; which they were."""
        cloned = self.topics_to_clone(source, target, topic, offline=offline)
        for each in cloned:
            self.offsets.clone(source, target, each)
        return cloned

    def topics_to_clone(
        self, source: str, target: str, topic: str = "", *, offline: bool = False
    ) -> list[str]:
        """In which topics `clone_offsets` would put a group where another is."""
        check_name(target, "group", InvalidGroupError)
        topics = [topic] if topic else self.offsets.topics_of(source)
        live = self.members.group(source)
        if live is not None and live.subscriptions and not offline:
            topics = [each for each in topics if each in live.subscriptions]
        return [each for each in topics if self.topics.get(each) is not None]

    def least_offsets(
        self, topic: str, compare_group: str = "", without_groups: Iterable[str] = ()
    ) -> dict[int, int]:
        """Per queue, the position of the group that is furthest behind.

        A queue in which `compare_group` is behind that one gets the largest offset there is.
        """
        excluded = set(without_groups)
        least: dict[int, int] = {}
        for group in self.offsets.groups_of(topic):
            if group not in excluded:
                for queue_id, offset in self.offsets.of(group, topic).items():
                    if offset >= self.store.min_offset(topic, queue_id):
                        least[queue_id] = min(offset, least.get(queue_id, OFFSET_MAX))
        for queue_id, offset in self.offsets.of(compare_group, topic).items():
            if least.get(queue_id, OFFSET_MAX) > offset:
                least[queue_id] = OFFSET_MAX
        return least

    # -- counters ------------------------------------------------------------------------------

    def statistic(self, name: str, key: str) -> tuple[Statistic, Statistic, Statistic]:
        """A counter by RocketMQ's name, over a minute, an hour and a day."""
        found = self.stats.find(name, key)
        if found is None:
            raise StatisticNotFoundError(f"the stats <{name}> <{key}> not exist")
        return found
