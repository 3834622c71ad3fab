"""Administration: what people ask about topics and groups, and how they correct them.

Answers are values; gateways turn them into their protocol's words. The rules behind them (which
topics of a group are shown, what a reset may do) are those of RocketMQ's admin commands.

Questions may take long, and go to the disk for store times, so a worker may ask them: nothing here
looks at a table for longer than it takes to copy it. Corrections belong to the loop.

It is a part of the door: who asks is the first argument, as everywhere in `broker`.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from onelog.clock import Clock
from onelog.core.access import Access, Kind, Principal
from onelog.core.catalog.groups import GroupConfig, Groups
from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.cursors.offsets import Offsets
from onelog.core.durable.tables import Change, DataVersion, Tables, Versions
from onelog.core.durable.writer import OnStored, Writer
from onelog.core.filters.tags import Subscription
from onelog.core.membership.assignment import RequestMode, RequestModes
from onelog.core.membership.members import Member, Members
from onelog.core.schedule.levels import Delay
from onelog.core.schedule.timers import OnCounted, Timers
from onelog.core.stats import Counter, Statistic, Stats, Totals
from onelog.core.transactions.checkback import CheckBack
from onelog.errors import (
    GroupNotFoundError,
    InvalidGroupError,
    InvalidQueueError,
    OffsetOutOfRangeError,
    StatisticNotFoundError,
    StoreError,
)
from onelog.message import Message
from onelog.metrics import Histogram
from onelog.names import LIGHT_QUEUE_PREFIX, OWN_PREFIX, TIMER_TOPIC, check_name
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

OFFSET_MAX = (1 << 63) - 1


_Named = TypeVar("_Named", TopicConfig, GroupConfig)


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


class QueueEntries(NamedTuple):
    """Entries of a queue as they are on disk, and where it begins and ends."""

    data: bytes
    min_offset: int
    max_offset: int


class LogState(NamedTuple):
    """The log on its disk; `first_ms` is when its oldest message was stored, -1 if it has none."""

    folder: Path
    disk_percent: float
    min_offset: int
    end: int
    flushed: int
    first_ms: int


class BrokerState(NamedTuple):
    """How the broker runs: its counters, what waits for its time, what is not as it should be."""

    started_ms: int
    totals: Totals
    yesterday_morning: Totals
    today_morning: Totals
    rates: dict[str, tuple[float, float, float]]
    delayed: dict[int, tuple[int, int]]
    """How far each delay level has been delivered, and where its queue ends."""
    timed_count: int
    timed_behind: int
    """Timed messages that wait, and those that were not looked at yet."""
    mismatched_groups: list[str]
    mismatches_total: int
    damaged_sizes: list[int]
    """What recovery had to leave out of the log."""
    entries_mended: int
    """How many entries of queues were wrong since the start, and were written anew."""
    set_aside: list[str]
    """What is recorded, and cannot be read: entries of tables, and why."""


class Measures(NamedTuple):
    """What is measured all the time: how long things took, and counts since the start."""

    append_seconds: Histogram
    confirm_seconds: Histogram
    flush_seconds: Histogram
    topic_put: Counter
    group_get: Counter
    sent_back: Counter


@dataclass(slots=True, eq=False)
class Admin:
    """Questions and corrections."""

    access: Access
    name: str
    """The broker's."""
    store: MessageStore
    writer: Writer
    clock: Clock
    tables: Tables
    lease_tables: Tables
    versions: Versions
    topic_table: Topics
    group_table: Groups
    members: Members
    offsets: Offsets
    stats: Stats
    delay: Delay
    timers: Timers
    checkback: CheckBack
    modes: RequestModes

    # -- topics --------------------------------------------------------------------------------

    def create_topic(self, principal: Principal, config: TopicConfig) -> None:
        """Create a topic, or change its settings."""
        self.access.check(principal, "create", ("topic", config.name))
        self.topic_table.put(config)

    def delete_topic(self, principal: Principal, topic: str, also: Sequence[Change] = ()) -> None:
        """Forget a topic, every group's position in it, and its queues; and make these changes."""
        self.access.check(principal, "delete", ("topic", topic))
        self.topic_table.delete(topic, [*self.offsets.removal(topic=topic), *also])
        self.writer.delete_topic(topic)
        self.stats.forget(topic)

    def delete_queues(self, principal: Principal, topic: str) -> None:
        """Remove the queues of a topic that does not exist any more."""
        self.access.check(principal, "delete", ("topic", topic))
        self.writer.delete_topic(topic)

    def unused_topics(self, principal: Principal) -> list[str]:
        """The topics that do not exist any more, but have queues.

        The broker's own topics, and light queues, have queues without having settings.
        """
        self.access.check(principal, "describe", ("broker", "names"))
        kept = (OWN_PREFIX, self.topic_table.naming.reserved_prefix, LIGHT_QUEUE_PREFIX)
        return [
            topic
            for topic in sorted(self.store.queue_table.by_topic)
            if self.topic_table.get(topic) is None and not topic.startswith(kept)
        ]

    def system_topics(self, principal: Principal) -> list[str]:
        """The topics that are the broker's own, also those that are created on demand only."""
        self.access.check(principal, "describe", ("broker", self.name))
        topics = self.topic_table
        names = {config.name for config in topics.all() if topics.is_system(config.name)}
        return sorted(topics.system_names | names)

    def is_system_topic(self, topic: str) -> bool:
        """Whether a name is one of the broker's own."""
        return self.topic_table.is_system(topic)

    def _seen(self, principal: Principal, kind: Kind, found: list[_Named]) -> list[_Named]:
        """Those that they may know of."""
        if self.access.is_open:
            return found
        return [each for each in found if self.access.may(principal, "describe", (kind, each.name))]

    def _check_topic(self, principal: Principal, group: str, topic: str) -> None:
        """They must be allowed to know of it; a group's retry topic is its own."""
        if topic != self.topic_table.naming.retry_topic(group):
            self.access.check(principal, "describe", ("topic", topic))

    def _known(self, principal: Principal, kind: Kind, names: list[str]) -> list[str]:
        """Those of some names that they may know of."""
        if self.access.is_open:
            return names
        return [each for each in names if self.access.may(principal, "describe", (kind, each))]

    def topics(self, principal: Principal) -> tuple[DataVersion, list[TopicConfig]]:
        """Every topic, in the order of creation, and the version of the whole set."""
        self.access.check(principal, "describe", ("broker", self.name))
        return self.topic_table.version, self._seen(principal, "topic", self.topic_table.all())

    def topic_stats(self, principal: Principal, topic: str) -> TopicStats:
        """Every queue of a topic, the empty ones too."""
        self.access.check(principal, "describe", ("topic", topic))
        config = self.topic_table.require(topic)
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

    def groups_of_topic(self, principal: Principal, topic: str) -> list[str]:
        """Who consumes a topic, now or by a position it keeps."""
        self.access.check(principal, "describe", ("topic", topic))
        found = sorted(self.members.groups_of_topic(topic) | set(self.offsets.groups_of(topic)))
        return self._known(principal, "group", found)

    def unread(
        self, principal: Principal, deleted: Mapping[tuple[str, int], int]
    ) -> dict[str, int]:
        """Of messages that retention just deleted, how many each group had not read yet."""
        self.access.check(principal, "describe", ("broker", "names"))
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

    def update_group(self, principal: Principal, config: GroupConfig) -> None:
        """Create a group, or change its settings."""
        self.access.check(principal, "create", ("group", config.name))
        self.group_table.put(config)

    def delete_group(self, principal: Principal, group: str, *, clean_offsets: bool) -> None:
        """Forget a group, if there is one; with `clean_offsets`, its positions as well."""
        self.access.check(principal, "delete", ("group", group))
        positions = self.offsets.removal(group=group) if clean_offsets else []
        if self.group_table.get(group) is not None:
            self.group_table.delete(group, positions)
            self.stats.forget(group)
        elif positions:
            self.tables.write(positions)

    def groups(self, principal: Principal) -> tuple[DataVersion, list[GroupConfig]]:
        """Every consumer group, in the order of creation, and the version of the whole set."""
        self.access.check(principal, "describe", ("broker", self.name))
        return self.group_table.version, self._seen(principal, "group", self.group_table.all())

    def topics_of_group(self, principal: Principal, group: str) -> list[str]:
        """The topics in which a group has a position."""
        self.access.check(principal, "describe", ("group", group))
        return self._known(principal, "topic", self.offsets.topics_of(group))

    def subscription(self, principal: Principal, group: str, topic: str) -> Subscription | None:
        """What a live group subscribes to."""
        self.access.check(principal, "describe", ("group", group))
        return self.members.subscription(group, topic)

    def producers(self, principal: Principal) -> dict[str, list[Member]]:
        """The live members of every producer group, in the order they came."""
        self.access.check(principal, "describe", ("broker", "names"))
        return {group: self.members.producers(group) for group in self.members.producer_groups()}

    def request_modes(self, principal: Principal) -> dict[tuple[str, str], RequestMode]:
        """How groups consume topics, by topic and group, where that is not the default."""
        self.access.check(principal, "describe", ("broker", "names"))
        return self.modes.all()

    def set_request_mode(
        self, principal: Principal, group: str, topic: str, mode: RequestMode
    ) -> None:
        """Choose how a group consumes a topic from now on."""
        self.access.check(principal, "alter", ("group", group))
        self._check_topic(principal, group, topic)
        self.modes.set(group, topic, mode)

    def consume_stats(
        self, principal: Principal, group: str, topic: str | None = None, topics: Iterable[str] = ()
    ) -> ConsumeStats:
        """How far a group is: in `topics`, else in `topic`, else wherever it has a position.

        Unless `topics` are named, those are left out to which no live member subscribes any more.
        """
        self.access.check(principal, "describe", ("group", group))
        named = [topic] if topic else list(topics)
        for each in named:
            self._check_topic(principal, group, each)
        if not named and not self.access.is_open:
            known = self._known(principal, "topic", self.offsets.topics_of(group))
            stats = self._consume_stats(group)
            return stats._replace(queues=[each for each in stats.queues if each.topic in known])
        return self._consume_stats(group, topic, topics)

    def _consume_stats(
        self, group: str, topic: str | None = None, topics: Iterable[str] = ()
    ) -> ConsumeStats:
        wanted = list(topics)
        if not wanted:
            live = self.members.group(group)
            wanted = [topic] if topic else self.offsets.topics_of(group)
            if live is not None and live.subscriptions:
                wanted = [each for each in wanted if each in live.subscriptions]
        queues: list[QueueProgress] = []
        rate = 0.0
        for each in wanted:
            config = self.topic_table.get(each)
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

    def all_consume_stats(
        self, principal: Principal, *, ordered_only: bool = False
    ) -> list[ConsumeStats]:
        """How far every group is, one entry per group and topic."""
        self.access.check(principal, "describe", ("broker", "names"))
        found = []
        topics = self.offsets.topics_by_group()
        for group in self.group_table.all():
            for topic in topics.get(group.name, ()):
                config = self.topic_table.get(topic)
                if config is not None and (config.order or not ordered_only):
                    stats = self._consume_stats(group.name, topic)
                    if stats.queues:
                        found.append(stats)
        return found

    def consume_time_spans(
        self, principal: Principal, group: str, topic: str
    ) -> list[ConsumeTimeSpan]:
        """Per queue, from when to when its messages are and how far in time the group is."""
        self.access.check(principal, "describe", ("group", group))
        self._check_topic(principal, group, topic)
        config = self.topic_table.require(topic)
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
        principal: Principal,
        group: str,
        topic: str,
        time_ms: int,
        *,
        queue_id: int = -1,
        offset: int | None = None,
        starts: Mapping[int, int] | None = None,
    ) -> dict[int, int]:
        """Move a group to a time (-1: to the end), or one queue of it to an offset.

        The answer is the new position of each queue. Live members go there with their next pull.
        `starts` is what `offsets_at` found, for those who had a worker look.
        """
        self.access.check(principal, "alter", ("group", group))
        self._check_topic(principal, group, topic)
        config = self.topic_table.require(topic)
        if self.group_table.get(group) is None:
            raise GroupNotFoundError(f"group {group} does not exist")
        if queue_id >= config.queues:
            raise InvalidQueueError(f"queueId[{queue_id}] is illegal, {config}")
        if queue_id < 0 or offset is None or offset == -1:
            queues = range(config.read_queues) if queue_id < 0 else (queue_id,)
            moved = dict(starts or self._offsets_at(topic, queues, time_ms))
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

    def offsets_at(
        self, principal: Principal, topic: str, queues: Iterable[int], time_ms: int
    ) -> dict[int, int]:
        """Where in each queue a time is; -1 is the end."""
        self.access.check(principal, "describe", ("topic", topic))
        return self._offsets_at(topic, queues, time_ms)

    def _offsets_at(self, topic: str, queues: Iterable[int], time_ms: int) -> dict[int, int]:
        store = self.store
        if time_ms < 0:
            return {each: store.max_offset(topic, each) for each in queues}
        return {each: store.offset_by_time(topic, each, time_ms) for each in queues}

    def move_back(
        self, principal: Principal, group: str, topic: str, starts: Mapping[int, int]
    ) -> dict[int, int]:
        """Move queues to these places, except those that are not there yet; where each is then."""
        self.access.check(principal, "alter", ("group", group))
        if self.group_table.get(group) is None:
            raise GroupNotFoundError(f"Group {group} does not exist")
        positions: dict[int, int] = {}
        for each, wanted in starts.items():
            current = self.offsets.get(group, topic, each)
            if current is not None and current <= wanted:
                positions[each] = current
            else:
                positions |= self.reset_offsets(
                    principal, group, topic, 0, queue_id=each, offset=wanted
                )
        return positions

    def clone_offsets(
        self,
        principal: Principal,
        source: str,
        target: str,
        topic: str = "",
        *,
        offline: bool = False,
    ) -> list[str]:
        """Put a group where another is, in one topic or in all of its topics; which they were."""
        self.access.check(principal, "alter", ("group", target))
        cloned = self.topics_to_clone(principal, source, target, topic, offline=offline)
        for each in cloned:
            self.offsets.clone(source, target, each)
        return cloned

    def topics_to_clone(
        self,
        principal: Principal,
        source: str,
        target: str,
        topic: str = "",
        *,
        offline: bool = False,
    ) -> list[str]:
        """In which topics `clone_offsets` would put a group where another is."""
        self.access.check(principal, "describe", ("group", source))
        check_name(target, "group", InvalidGroupError)
        topics = [topic] if topic else self.offsets.topics_of(source)
        live = self.members.group(source)
        if live is not None and live.subscriptions and not offline:
            topics = [each for each in topics if each in live.subscriptions]
        there = [each for each in topics if self.topic_table.get(each) is not None]
        return self._known(principal, "topic", there)

    def least_offsets(
        self,
        principal: Principal,
        topic: str,
        compare_group: str = "",
        without_groups: Iterable[str] = (),
    ) -> dict[int, int]:
        """Per queue, the position of the group that is furthest behind.

        A queue in which `compare_group` is behind that one gets the largest offset there is.
        """
        self.access.check(principal, "describe", ("topic", topic))
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

    def positions(
        self, principal: Principal
    ) -> tuple[DataVersion, dict[tuple[str, str], dict[int, int]]]:
        """The positions of all groups, by group and topic, and the version of the whole set."""
        self.access.check(principal, "describe", ("broker", "names"))
        return self.versions[self.offsets.name], self.offsets.all()

    # -- messages ------------------------------------------------------------------------------

    def queue_entries(
        self, principal: Principal, topic: str, queue_id: int, offset: int, count: int
    ) -> QueueEntries | None:
        """Entries of a queue, none if they would begin outside of it; None if there is no queue."""
        self.access.check(principal, "describe", ("topic", topic))
        queue = self.store.queue_table.find(topic, queue_id)
        if queue is None:
            return None
        start, end = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        first = max(start, queue.start)  # What was compacted has no entries.
        data = queue.read_entries(offset, count) if first <= offset < end else b""
        return QueueEntries(data, start, end)

    def delayed(self, principal: Principal) -> tuple[DataVersion, dict[int, tuple[int, int]]]:
        """How far each delay level has been delivered and where it ends, and their version."""
        self.access.check(principal, "describe", ("broker", self.name))
        return self.versions[self.delay.name], self.delay.progress()

    def timer_checkpoint(self, principal: Principal) -> tuple[int, int]:
        """How far timed messages are delivered; see `Timers.checkpoint`."""
        self.access.check(principal, "describe", ("broker", self.name))
        return self.timers.checkpoint

    def count_timed(self, principal: Principal, on_counted: OnCounted) -> None:
        """Call back with how many timed messages of each topic wait."""
        self.access.check(principal, "describe", ("broker", "names"))
        self.timers.count_by_topic(on_counted)

    def half_offsets(self, principal: Principal) -> list[int]:
        """Where the half messages are that are open, the oldest first."""
        self.access.check(principal, "describe", ("broker", "names"))
        return list(self.checkback.log_offsets.values())

    def open_halves(
        self, principal: Principal, log_offsets: Iterable[int]
    ) -> list[tuple[Message, int]]:
        """These half messages, each with how often producers were asked; from the disk."""
        self.access.check(principal, "describe", ("broker", "names"))
        return self.checkback.open_halves(log_offsets)

    def find_given_up(self, principal: Principal, message_id: str) -> Message:
        """A transaction that was put away; it may have to be read from the disk."""
        self.access.check(principal, "alter", ("broker", self.name))
        return self.checkback.find_given_up(message_id)

    def resume_check(
        self, principal: Principal, message_id: str, on_stored: OnStored, token: Any = None
    ) -> None:
        """Begin again to ask about a transaction that was put away."""
        self.access.check(principal, "alter", ("broker", self.name))
        self.checkback.resume(message_id, on_stored, token)

    # -- the broker ----------------------------------------------------------------------------

    def state(self, principal: Principal) -> BrokerState:
        self.access.check(principal, "describe", ("broker", self.name))
        stats, wheel, members = self.stats, self.timers.wheel, self.members
        return BrokerState(
            stats.started_ms,
            stats.totals,
            stats.yesterday_morning,
            stats.today_morning,
            stats.rates(),
            self.delay.progress(),
            wheel.count,
            self.store.max_offset(TIMER_TOPIC, 0) - wheel.end,
            self._known(principal, "group", members.mismatched_groups()),
            members.mismatches_total,
            [each.size for each in self.store.damage],
            self.store.mending.mended,
            self.tables.aside() + self.lease_tables.aside(),
        )

    def measures(self, principal: Principal) -> Measures:
        """What is measured all the time, to be read and not changed."""
        self.access.check(principal, "describe", ("broker", "names"))
        writer, stats = self.writer, self.stats
        return Measures(
            writer.append_seconds,
            writer.confirm_seconds,
            self.store.flush_seconds,
            stats.topic_put,
            stats.group_get,
            stats.sent_back,
        )

    def refusal(self, principal: Principal) -> str:
        """Why messages are refused now; empty if they are not."""
        self.access.check(principal, "describe", ("broker", self.name))
        found = self.store.refusal
        return "" if found is None else str(found)

    def log_state(self, principal: Principal) -> LogState:
        """How the log is on its disk."""
        self.access.check(principal, "describe", ("broker", self.name))
        store = self.store
        try:
            first_ms = store.message_at(store.log_min).store_ms
        except (OffsetOutOfRangeError, StoreError):
            first_ms = -1
        percent = store.retention.disk(store.folder)
        return LogState(
            store.folder, percent, store.log_min, store.log_end, store.log.flushed, first_ms
        )

    def statistic(
        self, principal: Principal, name: str, key: str
    ) -> tuple[Statistic, Statistic, Statistic]:
        """A counter by RocketMQ's name, over a minute, an hour and a day."""
        self.access.check(principal, "describe", ("broker", "names"))
        found = self.stats.find(name, key)
        if found is None:
            raise StatisticNotFoundError(f"the stats <{name}> <{key}> not exist")
        return found
