"""Fetch: the next messages at some cursors, now or when there are enough. Nothing is leased by it.

A cursor is a place in a queue, with the filter of who reads there and, if it reads for a group, the
group. One fetch may have many: a RocketMQ pull has one, a Kafka fetch one per partition. Messages
that are there leave at once. Where there are too few, the fetch is held (see `pending_reads`) until
enough have arrived or its time is up; also records that must be read from the disk first, and
filters that must wait for their turn, are nobody else's concern.

Invariant: `on_fetched` is called exactly once, with one result per cursor, in their order: what was
fetched there, or the error that kept it from being; never, if the owner goes before that.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from onelog.config import BrokerConfig
from onelog.core.catalog.groups import Groups
from onelog.core.catalog.topics import Topics
from onelog.core.cursors.offsets import Offsets
from onelog.core.cursors.pending_reads import Hold, Missing, PendingRead, PendingReads
from onelog.core.cursors.reading import QueueReader, ReadRequest
from onelog.core.durable.storage import Storage
from onelog.core.filters.tags import Subscription
from onelog.core.stats import Stats
from onelog.errors import (
    FilterDisabledError,
    GroupPermissionError,
    InvalidQueueError,
    OnelogError,
    TopicPermissionError,
)
from onelog.store.reader import RANGES_MAX, Fetched, FetchStatus

BULK_COUNT_MAX = 1 << 16
"""Messages in one answer to a bulk reader."""
_NO_SQL_FILTERS = "The broker does not support consumer to filter message by SQL92"
_FOUND, _COLD, _LATER = FetchStatus.FOUND, FetchStatus.COLD, FetchStatus.LATER
_AT_END = FetchStatus.OFFSET_OVERFLOW_ONE
_ELSEWHERE = (FetchStatus.OFFSET_TOO_SMALL, FetchStatus.OFFSET_OVERFLOW_BADLY)
_EMPTY = (FetchStatus.NO_MATCHED_LOGIC_QUEUE, FetchStatus.NO_MESSAGE_IN_QUEUE)


class Cursor(NamedTuple):
    """A place to read from."""

    group: str | None
    topic: str
    queue_id: int
    offset: int
    subscription: Subscription | None = None
    committed: int = -1
    """A position of the group that is committed on the way; none if it is negative."""


class Limits(NamedTuple):
    """How much a fetch may take. The first message it finds, it takes in any case."""

    count_max: int
    """Messages of all cursors together."""
    cursor_bytes_max: int
    bytes_max: int
    bytes_min: int = 1
    """With less than that, it is held."""
    bulk: bool = False
    """Whether it may take from disk what it may take from memory."""
    as_stored: bool = False
    """Whether records of other forms than RocketMQ's are wanted as they are."""
    committed: bool = False
    """With that: whether it ends where the first transaction is open. Others always do."""
    unconverted: bool = False
    """Whether a bulk reader takes batches apart itself (see `QueueReader.unconverted`)."""


Result = Fetched | OnelogError
ViewReader = Callable[[int, int, int], Fetched]
"""Reads a view from a queue, at an offset, at most so many bytes; with 0 it is only asked for the
queue's bounds."""
OnFetched = Callable[[Any, Sequence[Result]], None]
"""Called with the token of a fetch and its results."""


def allowed(
    config: BrokerConfig,
    count_max: int,
    bytes_max: int,
    bulk_bytes: int = 0,
    unconverted: bool = False,
) -> Limits:
    """What one cursor may have of what it asked for; 0 bytes: as configured.

    Consumers get little at a time. Bulk readers, which take whole queues, get what they ask for,
    also from disk, up to limits of their own; nobody else gets records `unconverted`.
    """
    if bulk_bytes > 0 and config.pull_bulk_bytes_max:
        bulk_bytes = min(bulk_bytes, config.pull_bulk_bytes_max)
        count_max = min(count_max, BULK_COUNT_MAX)
        return Limits(count_max, bulk_bytes, bulk_bytes, 1, True, unconverted=unconverted)
    if not 0 < bytes_max < config.pull_bytes_max:
        bytes_max = config.pull_bytes_max
    count_max = min(count_max, config.pull_count_max)
    # What calling the class does, at half the price.
    return tuple.__new__(Limits, (count_max, bytes_max, bytes_max, 1, False, False, False, False))


@dataclass(eq=False)
class Fetches:
    """Fetches for everybody who reads by cursors."""

    storage: Storage
    reader: QueueReader
    pending_reads: PendingReads
    topics: Topics
    groups: Groups
    offsets: Offsets
    stats: Stats
    settings: Callable[[], BrokerConfig]

    def __post_init__(self) -> None:
        self.store = self.storage.store
        self.follows = False
        """Whether this broker follows another one, which may have what it lacks."""
        self.is_current = self.storage.durability.is_current
        """Whether it is the master for certain: else the same holds."""
        self.views: dict[str, ViewReader] = {}
        """Topics without messages: who reads there is answered by somebody else."""

    def fetch(
        self,
        cursors: Sequence[Cursor],
        limits: Limits,
        wait_ms: int,
        on_fetched: OnFetched,
        owner: Hashable = None,
        token: Any = None,
    ) -> None:
        """Fetch; if that takes a while, and `owner` goes meanwhile, nobody is told."""
        found = self.read(cursors, limits, False, wait_ms <= 0)
        if isinstance(found, Missing):
            until_ms = self.storage.runtime.clock.now_ms() + wait_ms
            cursors = [cursor._replace(committed=-1) for cursor in cursors]  # That is done.
            read = PendingRead(
                partial(self.read, cursors, limits),
                partial(self._hold, cursors, limits),
                partial(_answer, on_fetched, token, len(cursors)),
                owner,
                until_ms,
            )
            self.pending_reads.make_later(read, found, last=wait_ms <= 0)
        else:
            on_fetched(token, found)

    def read(
        self, cursors: Sequence[Cursor], limits: Limits, cold_ok: bool, last: bool
    ) -> list[Result] | Missing:
        """What is there now, or what is lacking; in the end (`last`) nothing but time can be."""
        if len(cursors) == 1:
            return self._read_one(cursors[0], limits, cold_ok, last)
        count, cursor_bytes, room, bytes_min, *_ = limits
        results: list[Result] = []
        cold: list[tuple[int, int]] = []
        size = 0
        ranges_left = RANGES_MAX
        later = False
        for cursor in cursors:
            if size and (room <= 0 or count <= 0 or ranges_left <= 0):
                results.append(self._full(cursor))
                continue
            try:
                bytes_max = cursor_bytes if cursor_bytes < room else room
                result = self._read(cursor, count, bytes_max, limits, cold_ok)
            except OnelogError as error:
                results.append(error.with_traceback(None))  # It leads here, and so to itself.
                last = True
                continue
            status = result.status
            if status is _FOUND:
                if size and result.size > room:
                    result, room = self._full(cursor), 0
                else:
                    size += result.size
                    room -= result.size
                    count -= result.messages
                    ranges_left -= len(result.ranges)
            elif status is _COLD:
                cold += result.ranges
            elif status is _LATER:
                later = True
            elif status is not _AT_END and (cursor.offset or status not in _EMPTY):
                last = True  # There is news for the reader, although it is no message.
            results.append(result)
        if cold or later:
            return Missing(cold, later)
        if size < bytes_min and count > 0 and ranges_left > 0 and not last:
            return Missing(size=size)
        if size:
            self._count(cursors, results)
        return results

    def _read_one(
        self, cursor: Cursor, limits: Limits, cold_ok: bool, last: bool
    ) -> list[Result] | Missing:
        """`read` for one cursor, which most have."""
        count, cursor_bytes, room, bytes_min, *_ = limits
        try:
            result = self._read(
                cursor, count, cursor_bytes if cursor_bytes < room else room, limits, cold_ok
            )
        except OnelogError as error:
            return [error.with_traceback(None)]
        status, size, messages = result.status, result.size, result.messages
        if status is _FOUND:
            is_short = size < bytes_min and messages < count and len(result.ranges) < RANGES_MAX
            if is_short and not last:
                return Missing(size=size)
            self.stats.got(cursor.group, cursor.topic, messages, size)
        elif status is _COLD or status is _LATER:
            return Missing(result.ranges, status is _LATER)
        elif (
            not last
            and (status is _AT_END or (not cursor.offset and status in _EMPTY))
            and bytes_min > 0 < count
        ):
            return Missing()
        return [result]

    def _count(self, cursors: Sequence[Cursor], results: Sequence[Result]) -> None:
        """What leaves counts for the groups that get it."""
        for (group, topic, *_), result in zip(cursors, results):  # noqa: B905 - in a hurry
            if type(result) is Fetched and result.messages:
                self.stats.got(group, topic, result.messages, result.size)

    def _full(self, cursor: Cursor) -> Fetched:
        if cursor.topic in self.views:
            return self.views[cursor.topic](cursor.queue_id, cursor.offset, 0)
        start = self.store.min_offset(cursor.topic, cursor.queue_id)
        end = self.store.max_offset(cursor.topic, cursor.queue_id)
        return Fetched(FetchStatus.FULL, [], cursor.offset, start, end)

    def _read(
        self, cursor: Cursor, count_max: int, bytes_max: int, limits: Limits, cold_ok: bool
    ) -> Fetched:
        """What is at one cursor, if its reader may have it."""
        group, topic, queue_id, offset, subscription, committed = cursor
        if limits[5] and topic in self.views:
            return self.views[topic](queue_id, offset, bytes_max)
        if group is not None and not self.groups.require(group).consume_enable:
            raise GroupPermissionError(f"subscription group no permission, {group}")
        settings = self.topics.require(topic)
        if not settings.readable:
            raise TopicPermissionError(f"the topic[{topic}] pulling message is forbidden")
        if not 0 <= queue_id < settings.read_queues:
            raise InvalidQueueError(
                f"queueId[{queue_id}] is illegal, topic:[{topic}] readQueueNums:"
                f"[{settings.read_queues}]"
            )
        by_condition = subscription is not None and subscription.predicate is not None
        if by_condition and not self.settings().property_filter:
            raise FilterDisabledError(_NO_SQL_FILTERS)
        if group is not None:
            if committed >= 0:
                # Before the reset: one that this fetch hands out must not be overwritten.
                self.offsets.commit(group, topic, queue_id, committed)
            if self.offsets.has_resets:
                moved = self.offsets.take_reset(group, topic, queue_id)
                if moved is not None:
                    reset = FetchStatus.OFFSET_RESET
                    return self._full(cursor)._replace(status=reset, next_offset=moved)
        if limits[7]:
            where = topic, queue_id, offset, count_max, bytes_max, subscription
            result = self.reader.unconverted(ReadRequest(*where, cold_ok))
        else:
            result = self.reader.read(
                topic,
                queue_id,
                offset,
                count_max,
                bytes_max,
                subscription,
                cold_ok=cold_ok,
                bulk=limits[4],
                as_stored=limits[5],
                committed=limits[6],
            )
        if self.store.carried and (topic, queue_id) in self.store.carried:
            result = result._replace(min_offset=self.store.min_offset(topic, queue_id))
        status = result.status
        if status is _LATER:
            return result
        if (status in _ELSEWHERE or (offset and status in _EMPTY)) and (
            self.follows or not self.is_current()
        ):
            # Nobody is moved because of what a slave lacks: it may come, or the master has it.
            return Fetched(_AT_END, [], offset, result.min_offset, result.max_offset)
        if status is not _FOUND and status is not _COLD:
            self.stats.totals.missed += 1
        if group is not None:
            self.offsets.pulled(group, topic, queue_id, result.next_offset)
        return result

    def suggested_broker(self, group: str, fetched: Fetched, far_bytes: int) -> int:
        """The id of that broker of the set which a group should read from next.

        Who is so far behind that the disk has to be read would push from the page cache what all
        the others read.
        """
        config = self.groups.require(group)
        behind = self.store.log_end - sum(fetched.ranges[-1]) if fetched.ranges else 0
        return config.slow_broker_id if behind > far_bytes else config.broker_id

    def _hold(self, cursors: Sequence[Cursor], limits: Limits, missing: Missing) -> Hold:
        """What a fetch that found too little waits for."""
        keys = tuple(dict.fromkeys((cursor.topic, cursor.queue_id) for cursor in cursors))
        if limits.bytes_min > 1:
            store, begin = self.store, self.store.confirmed
            # A record may be in several queues; so much must be new before there can be enough.
            grown_min = (limits.bytes_min - missing.size) // len(cursors)
            return keys, lambda: store.confirmed - begin >= grown_min
        _, topic, queue_id, offset, subscription, _ = cursors[0]
        if subscription is None or len(cursors) > 1:
            return keys, None
        return keys, self.reader.watch(topic, queue_id, offset, subscription)


def _answer(on_fetched: OnFetched, token: Any, count: int, found: Any, is_refused: bool) -> None:
    """Answer a fetch of so many cursors."""
    on_fetched(token, [found] * count if isinstance(found, OnelogError) else found)
