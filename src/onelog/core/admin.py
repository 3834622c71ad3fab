"""Administration: how the broker runs, and what waits in it.

Answers are values; gateways turn them into their protocol's words. Questions may take long, and go
to the disk, so a worker may ask them: nothing here looks at a table for longer than it takes to
copy it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from onelog.core.access import Principal
from onelog.core.catalog.topics import TopicConfig
from onelog.core.durable.tables import DataVersion
from onelog.core.routing.names import named_for_access
from onelog.core.schedule.timers import OnCounted
from onelog.core.stats import Counter, Statistic, Totals
from onelog.errors import OffsetOutOfRangeError, StatisticNotFoundError, StoreError
from onelog.metrics import Histogram
from onelog.names import TIMER_TOPIC

if TYPE_CHECKING:
    from onelog.core.assembly import Assembly
    from onelog.core.queues.retention_holds import RetentionHold
    from onelog.core.transactions.transactional_ids import InPlaceTransaction


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


class Admin:
    """`Broker.admin`."""

    def __init__(self, core: "Assembly") -> None:
        self.config = core.config
        self._access = core.access
        self._broker_name = core.config.name
        self._store = core.store
        self._writer = core.writer
        self._tables, self._lease_tables = core.tables, core.lease_tables
        self._versions = core.versions
        self._members = core.members
        self._stats = core.stats
        self._delay = core.delay
        self._timers = core.timers
        self._retention_holds = core.retention_holds
        self._coordinator = core.coordinator
        self._in_place = core.in_place
        self._batch_producers = core.batch_producers
        self.kafka_settings = core.kafka_settings
        self.is_follower = False
        """Whether another broker writes the log."""

    def state(self, principal: Principal) -> BrokerState:
        self._access.check(principal, "describe", ("broker", self._broker_name))
        stats, wheel, members = self._stats, self._timers.wheel, self._members
        return BrokerState(
            stats.started_ms,
            stats.totals,
            stats.yesterday_morning,
            stats.today_morning,
            stats.rates(),
            self._delay.progress(),
            wheel.count,
            self._store.max_offset(TIMER_TOPIC, 0) - wheel.end,
            self._access.known(principal, "group", members.mismatched_groups()),
            members.mismatches_total,
            [each.size for each in self._store.damage],
            self._store.mending.mended,
            self._tables.aside() + self._lease_tables.aside(),
        )

    def measures(self, principal: Principal) -> Measures:
        """What is measured all the time, to be read and not changed."""
        self._access.check(principal, "describe", ("broker", "names"))
        writer, stats = self._writer, self._stats
        return Measures(
            writer.append_seconds,
            writer.confirm_seconds,
            self._store.flush_seconds,
            stats.topic_put,
            stats.group_get,
            stats.sent_back,
        )

    def refusal(self, principal: Principal) -> str:
        """Why messages are refused now; empty if they are not."""
        self._access.check(principal, "describe", ("broker", self._broker_name))
        found = self._store.refusal
        return "" if found is None else str(found)

    def statistic(
        self, principal: Principal, name: str, key: str
    ) -> tuple[Statistic, Statistic, Statistic]:
        """A counter by RocketMQ's name, over a minute, an hour and a day."""
        self._access.check(principal, "describe", ("broker", "names"))
        found = self._stats.find(name, key)
        if found is None:
            raise StatisticNotFoundError(f"the stats <{name}> <{key}> not exist")
        return found

    def log_state(self, principal: Principal) -> LogState:
        """How the log is on its disk."""
        self._access.check(principal, "describe", ("broker", self._broker_name))
        store = self._store
        try:
            first_ms = store.message_at(store.log_min).store_ms
        except (OffsetOutOfRangeError, StoreError):
            first_ms = -1
        percent = store.retention.disk(store.folder)
        return LogState(
            store.folder, percent, store.log_min, store.log_end, store.log.flushed, first_ms
        )

    def log_holds(self, principal: Principal) -> "list[RetentionHold]":
        """The declared queues that the log has to be kept for, however old it is."""
        self._access.check(principal, "describe", ("broker", self._broker_name))
        holds = self._retention_holds.holds()
        may = self._access.may
        return [
            pin
            for pin in holds
            if may(principal, "describe", ("queue", named_for_access(pin.vhost, pin.queue)))
        ]

    @property
    def log_end(self) -> int:
        return self._store.log_end

    @property
    def last_append_ms(self) -> int:
        """When the last message was stored."""
        return self._store.last_append_ms

    def queue_entries(
        self, principal: Principal, topic: str, queue_id: int, offset: int, count: int
    ) -> QueueEntries | None:
        """Entries of a queue, none if they would begin outside of it; None if there is no queue."""
        self._access.check(principal, "describe", ("topic", topic))
        queue = self._store.queue_table.find(topic, queue_id)
        if queue is None:
            return None
        start, end = (
            self._store.min_offset(topic, queue_id),
            self._store.max_offset(topic, queue_id),
        )
        first = max(start, queue.start)  # What was compacted has no entries.
        data = queue.read_entries(offset, count) if first <= offset < end else b""
        return QueueEntries(data, start, end)

    def delayed(self, principal: Principal) -> tuple[DataVersion, dict[int, tuple[int, int]]]:
        """How far each delay level has been delivered and where it ends, and their version."""
        self._access.check(principal, "describe", ("broker", self._broker_name))
        return self._versions[self._delay.name], self._delay.progress()

    def timer_checkpoint(self, principal: Principal) -> tuple[int, int]:
        """How far timed messages are delivered; see `Timers.checkpoint`."""
        self._access.check(principal, "describe", ("broker", self._broker_name))
        return self._timers.checkpoint

    def count_timed(self, principal: Principal, on_counted: OnCounted) -> None:
        """Call back with how many timed messages of each topic wait."""
        self._access.check(principal, "describe", ("broker", "names"))
        self._timers.count_by_topic(on_counted)

    def join_cluster(
        self,
        node_id: int,
        require_coordinator: Callable[[str], None],
        partitions: Callable[[TopicConfig], int],
        tell_others: "Callable[[InPlaceTransaction], bool]",
    ) -> None:
        """Other brokers look after some groups and transactional ids, and have a part in what is
        shared out, and in transactions: how to know of that, and to tell them of an end."""
        self._coordinator.guard, self._coordinator.count = require_coordinator, partitions
        self._in_place.guard, self._in_place.tell_others = require_coordinator, tell_others
        self._batch_producers.first_id = node_id << 40
