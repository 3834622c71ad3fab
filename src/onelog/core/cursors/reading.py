"""Reading a queue: its next messages, as one subscription wants them.

Without a filter this is the store's read, and no message is looked at. Tags are compared by the
hash in the queue's entries, without touching the log; a SQL-92 condition needs the properties of
each record. Matching records that are neighbours in the log leave as one slice, and an inner batch,
which has an entry for each of its messages, leaves once.

The loop must not wait for the disk: where records are not in the page cache, the answer is COLD and
says which; a worker reads them, and the question is asked again with `cold_ok` (see
`pending_reads`). What the disk cannot read is an error; what lies before it is still to be had. Nor
must the loop wait for a condition: when the time of all filters is used up (see `filter_time`), a
read ends where it is, and one that has not begun is LATER.

Invariant: `next_offset` never passes over a message that matches and was not returned.
"""

import struct
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from onelog.clock import Clock
from onelog.core.compaction.compacted import (
    CompactedSegments,
    as_of_queue,
    found_in,
    moved_records,
    nothing_left,
)
from onelog.core.cursors.forms import Conversions, own_records
from onelog.core.cursors.unpacking import ColdError, Unpacking
from onelog.core.filters.filter_time import FilterTime
from onelog.core.filters.tags import Subscription
from onelog.errors import OffsetOutOfRangeError, StoreFailedError
from onelog.message import Message, decode_properties
from onelog.names import COMPACTED_TOPIC
from onelog.record.decode import decode_message, queue_offset_of
from onelog.record.entries import ENTRY, ENTRY_DTYPE, PADDING_SIZE
from onelog.record.forms import FORM_CODE, FORM_MASK
from onelog.store.mending import SearchNeededError
from onelog.store.message_store import MessageStore
from onelog.store.outcomes import Aborted
from onelog.store.reader import Fetched, FetchStatus

SCAN_MAX = 16_000
"""Entries that one pull looks at before it answers that none of them matched."""
_CODES_MAX = 500
"""Entries whose tags codes one pull holds against the log."""
_WARM_BYTES = 64 << 20
"""How close to the log's end nothing is asked about the page cache."""
_COLUMN_BYTES = 1_000 * ENTRY.size
_PROBE_SHIFT = 16
"""The page cache is asked about 64 KiB at a time: the kernel reads ahead, and evicts, in pieces."""
_PROBE_MS = 1_000
_PROBES_MAX = 4_096
_BLOCKS_MANY = 4
_NOT_YET = (FetchStatus.COLD, FetchStatus.LATER)
_LOOKED_AT_MAX, _LOOK_BYTES = 2 << 20, 4 << 10
"""Bytes of converted records that one read looks at, and what each counts for besides: a reader who
wants none of them goes on with the next."""


class OpenTransactions(Protocol):
    """Who knows of the transactions whose batches lie in queues, in their places."""

    def stable_end(self, topic: str, queue_id: int, end: int) -> int:
        """Where the first open one begins; `end`, if none is open."""

    def aborted_between(self, topic: str, queue_id: int, begin: int, end: int) -> list[Aborted]:
        """Those that failed, and have batches there."""


class ReadRequest(NamedTuple):
    """What somebody wants to read of a queue; see `QueueReader.read`."""

    topic: str
    queue_id: int
    offset: int
    count_max: int
    bytes_max: int
    subscription: Subscription | None = None
    cold_ok: bool = False
    bulk: bool = False
    as_stored: bool = False
    committed: bool = False


@dataclass(eq=False)
class QueueReader:
    """Reads queues for consumers.

    `_marked` are the topics with records of other forms, `_compacted` the queues of them of which a
    part was compacted.
    """

    _store: MessageStore
    _clock: Clock
    filter_time: FilterTime
    cold_count_max: int = 8
    cold_bytes_max: int = 64 << 10
    _marked: Set[str] = frozenset()
    _transactions: OpenTransactions | None = None
    _compacted: CompactedSegments = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._probed_ms: dict[int, int] = {}
        self.unpacking = Unpacking()
        self._conversions = Conversions(self.unpacking)

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int,
        subscription: Subscription | None = None,
        *,
        cold_ok: bool = False,
        bulk: bool = False,
        as_stored: bool = False,
        committed: bool = False,
    ) -> Fetched:
        """The next messages that the subscription wants; all of them if there is none.

        For a bulk reader a worker reads as much from disk as there would be in memory. Records of
        other forms become RocketMQ's, unless they are wanted `as_stored`; then `committed` says
        that the read ends where the first open transaction begins.
        """
        if offset < 0:
            return self._too_small(topic, queue_id)
        if topic in self._marked:
            if not as_stored or (self._compacted and self._is_compacted(topic, queue_id, offset)):
                limits = count_max, bytes_max
                how = cold_ok, bulk, as_stored, committed
                request = ReadRequest(topic, queue_id, offset, *limits, subscription, *how)
                return self._left(request) if as_stored else self._converted(request)
            if committed and not (count_max := self._decided(topic, queue_id, offset, count_max)):
                return self._at_end(topic, queue_id, offset)
        cold_count, cold_bytes = self.cold_count_max, self.cold_bytes_max
        if bulk:
            cold_count, cold_bytes = count_max, bytes_max
        elif cold_ok:
            count_max, bytes_max = min(count_max, cold_count), min(bytes_max, cold_bytes)
        try:
            if subscription is not None and (
                subscription.codes is not None or subscription.predicate is not None
            ):
                scan_max = cold_count if cold_ok and not bulk else SCAN_MAX
                pulled = self._filtered(
                    topic, queue_id, offset, count_max, bytes_max, subscription, cold_ok, scan_max
                )
                # The condition would have to read records; let a worker read the next ones first.
                return pulled or self._cold(topic, queue_id, offset, cold_count, cold_bytes)
            read = self._checked(topic, queue_id, offset, count_max, bytes_max, cold_ok)
            return read or self._cold(topic, queue_id, offset, cold_count, cold_bytes)
        except SearchNeededError as needed:
            return self._to_search(topic, queue_id, offset, needed)
        except StoreFailedError:
            if count_max <= 1:
                raise
            # One of them the disk cannot read: the others one by one, up to that.
            how = cold_ok, bulk, as_stored, committed
            return self.read_request(ReadRequest(topic, queue_id, offset, 1, 1, subscription, *how))

    def read_request(self, request: ReadRequest) -> Fetched:
        """`read`, as it was asked for."""
        cold_ok, bulk, as_stored, committed = request[6:]
        return self.read(
            *request[:6], cold_ok=cold_ok, bulk=bulk, as_stored=as_stored, committed=committed
        )

    def stretches(self, request: ReadRequest) -> Iterator[tuple[int, Fetched]]:
        """Each read, and where it began: on and on past what is damaged, deleted, hidden or not
        wanted, to the queue's end, or to what somebody has to be waited for."""
        while True:
            result = self.read_request(request)
            yield request.offset, result
            if result.status in _NOT_YET or result.next_offset <= request.offset:
                return
            request = request._replace(offset=result.next_offset)

    def _checked(
        self, topic: str, queue_id: int, offset: int, count_max: int, bytes_max: int, cold_ok: bool
    ) -> Fetched | None:
        """The next messages, whatever they are; None if they are on disk only.

        Entries that point elsewhere are mended first, and read again.
        """
        while True:
            read = self._store.read(topic, queue_id, offset, count_max, bytes_max, later=True)
            if cold_ok:
                self._store.wait_readable(read.ranges)
            elif read.ranges and self._is_cold(read.ranges):
                return None
            if not self._store.mend(topic, queue_id, offset, read, later=True):
                return read

    def end(self, topic: str, queue_id: int, committed: bool) -> int:
        """Where a queue ends for who reads all, or what is committed."""
        end = self._store.max_offset(topic, queue_id)
        if not committed or self._transactions is None:
            return end
        return self._transactions.stable_end(topic, queue_id, end)

    def aborted(self, topic: str, queue_id: int, begin: int, end: int) -> list[Aborted]:
        """The transactions that failed, and have batches there."""
        if self._transactions is None:
            return []
        return self._transactions.aborted_between(topic, queue_id, begin, end)

    def _decided(self, topic: str, queue_id: int, offset: int, count_max: int) -> int:
        """How many of so many messages are before the first open transaction of a queue."""
        if self._transactions is None:
            return count_max
        end = self._store.max_offset(topic, queue_id)
        stable = self._transactions.stable_end(topic, queue_id, end)
        if stable <= offset < end:
            return 0
        return min(count_max, stable - offset) if offset < stable else count_max

    def _is_compacted(self, topic: str, queue_id: int, offset: int) -> bool:
        left = self._compacted.get((topic, queue_id))
        return left is not None and found_in(left, self._store, topic, queue_id, offset)

    def _left(self, request: ReadRequest) -> Fetched:
        """`read` where a queue was compacted: what is left lies in another queue."""
        request = request._replace(subscription=None)
        store, key, offset = self._store, request[:2], request.offset
        left = self._compacted[key]
        if offset < store.min_offset(*key):
            return self._too_small(*key)
        number = left.number_at(store, offset)
        if number >= left.last:
            if left.end >= store.max_offset(*key):
                return nothing_left(store, key, left.end)
            return self.read_request(request._replace(offset=left.end))
        found = self.read_request(
            request._replace(
                topic=COMPACTED_TOPIC,
                queue_id=left.queue_id,
                offset=number,
                count_max=min(request.count_max, left.last - number),
                committed=False,
            )
        )
        if found.status is FetchStatus.FOUND:
            return as_of_queue(found, left, store, key)
        if found.status is FetchStatus.MESSAGE_WAS_REMOVING:  # Damage.
            at = left.next_offset(store, found.next_offset)
            return nothing_left(store, key, at, lost=True)
        return found._replace(next_offset=offset)

    def _converted(self, request: ReadRequest) -> Fetched:
        """`read` from a topic that may have records of other forms: each record is looked at."""
        topic, queue_id, offset, count_max, bytes_max, subscription = request[:6]
        pulled = self.read_request(
            request._replace(subscription=None, as_stored=True, committed=True)
        )
        if pulled.status is not FetchStatus.FOUND:
            return pulled
        if subscription is not None and subscription.predicate and not self.filter_time.left():
            return pulled._replace(status=FetchStatus.LATER, slices=[], next_offset=offset)
        slices: list[memoryview] = []
        offsets: list[int] = []
        count = size = looked_at = 0
        next_offset = pulled.next_offset
        aborted: list[Aborted] = []
        if self._transactions is not None:
            aborted = self._transactions.aborted_between(topic, queue_id, offset, next_offset)
        reached = offset
        try:
            for piece in self._conversions.pieces(topic, queue_id, pulled.slices, aborted, offset):
                end = piece.offset + piece.messages
                if end <= offset:
                    continue
                if self._is_enough(looked_at, subscription):
                    next_offset = reached
                    break
                is_wanted = subscription is None or subscription.wants(piece.message.properties)
                looked_at += _LOOK_BYTES + len(piece.record)
                if is_wanted:
                    if slices and (count >= count_max or size + len(piece.record) > bytes_max):
                        next_offset = piece.offset
                        break
                    slices.append(memoryview(piece.record))
                    offsets.append(piece.offset)
                    count += piece.messages
                    size += len(piece.record)
                reached = end
        except ColdError as cold:
            if reached == offset:
                return pulled._replace(
                    status=FetchStatus.COLD, slices=[], next_offset=offset, ranges=list(cold.ranges)
                )
            next_offset = reached
        status = FetchStatus.FOUND if slices else FetchStatus.NO_MATCHED_MESSAGE
        extent = pulled.min_offset, pulled.max_offset
        return Fetched(status, slices, next_offset, *extent, count, size, pulled.ranges, offsets)

    def unconverted(self, request: ReadRequest) -> Fetched:
        """`read` for bulk readers who take batches apart themselves.

        Where there may be records of other forms, they choose by tags themselves, too. They get
        nothing of failed transactions, and what is left of a compacted queue as that queue's own.
        """
        topic, queue_id, offset = request[:3]
        if topic not in self._marked:
            return self.read_request(request._replace(bulk=True))
        pulled = self.read_request(
            request._replace(subscription=None, bulk=True, as_stored=True, committed=True)
        )
        if pulled.status is not FetchStatus.FOUND:
            return pulled
        aborted = self.aborted(topic, queue_id, offset, pulled.next_offset)
        if not aborted and (topic, queue_id) not in self._compacted:
            return pulled
        slices = [*own_records(topic, queue_id, pulled.slices, aborted)]
        status = FetchStatus.FOUND if slices else FetchStatus.NO_MATCHED_MESSAGE
        return pulled._replace(status=status, slices=slices, size=sum(map(len, slices)))

    def _is_enough(self, looked_at: int, subscription: Subscription | None) -> bool:
        """Whether a read of converted records ends here, whatever it has found."""
        if looked_at > _LOOKED_AT_MAX:
            return True
        time, has_condition = self.filter_time, subscription and subscription.predicate
        return bool(looked_at and has_condition) and time.seconds() >= time.deadline

    def carried(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, int] | None:
        """Where the batch with a message lies that is left of a compacted queue."""
        if not self._compacted or not self._is_compacted(topic, queue_id, offset):
            return None
        left = self._compacted[topic, queue_id]
        number = left.number_at(self._store, offset)
        found = self._store.entry_at(COMPACTED_TOPIC, left.queue_id, number)
        # As an entry of a batch: who has a filter has to look.
        return None if found is None or number >= left.last else (*found[:2], FORM_CODE)

    def message_in(
        self, topic: str, queue_id: int, offset: int, record: memoryview, *, now: bool = False
    ) -> tuple[Message, memoryview]:
        """The message that an entry of a queue stands for, from the record that it names.

        `ColdError` if a worker has to unpack it first, unless it is needed `now`;
        `OffsetOutOfRangeError` if it is not there.
        """
        if topic in self._marked:
            if now and decode_message(record).sys_flag & FORM_MASK:
                self.unpacking.unpack_now(decode_message(record))
            is_left = bool(self._compacted) and decode_message(record).topic == COMPACTED_TOPIC
            if is_left:
                record = moved_records(record)[0]
            for piece in self._conversions.pieces(topic, queue_id, [record], (), offset):
                if piece.offset <= offset < piece.offset + piece.messages:
                    return piece.message, memoryview(piece.record)
                if piece.offset > offset:
                    break
            raise OffsetOutOfRangeError(
                f"message {offset} of topic {topic} was compacted, or cannot be read"
            )
        return decode_message(record), record

    def record_in(self, offset: int, record: memoryview) -> memoryview:
        """A record as it was stored, from the one that an entry names; see `message_in`."""
        if self._compacted and decode_message(record).topic == COMPACTED_TOPIC:
            record = moved_records(record)[0]
            if queue_offset_of(record) > offset:  # This is what follows.
                raise OffsetOutOfRangeError(f"message {offset} was compacted")
        return record

    def _cold(
        self, topic: str, queue_id: int, offset: int, count_max: int, bytes_max: int
    ) -> Fetched:
        """Where in the log the next few messages lie, for a worker to read."""
        read = self._store.read(topic, queue_id, offset, count_max, bytes_max, later=True)
        return read._replace(status=FetchStatus.COLD, slices=[], next_offset=offset)

    def _to_search(
        self, topic: str, queue_id: int, offset: int, needed: SearchNeededError
    ) -> Fetched:
        """The answer while a worker searches the log: it is had with what is cold."""
        start = self._store.min_offset(topic, queue_id)
        end = self._store.max_offset(topic, queue_id)
        where = [(needed.log_offset, 1)]
        return Fetched(FetchStatus.COLD, [], offset, start, end, ranges=where)

    def _at_end(self, topic: str, queue_id: int, offset: int) -> Fetched:
        """The answer if what follows is not decided yet: as if nothing followed."""
        start = self._store.min_offset(topic, queue_id)
        end = self._store.max_offset(topic, queue_id)
        return Fetched(FetchStatus.OFFSET_OVERFLOW_ONE, [], offset, start, end)

    def _too_small(self, topic: str, queue_id: int) -> Fetched:
        """The answer to a negative offset, which the store itself would refuse."""
        start = self._store.min_offset(topic, queue_id)
        end = self._store.max_offset(topic, queue_id)
        status = FetchStatus.OFFSET_TOO_SMALL if end else FetchStatus.NO_MATCHED_LOGIC_QUEUE
        return Fetched(status, [], start, start, end)

    def _is_cold(self, ranges: Sequence[tuple[int, int]]) -> bool:
        store = self._store
        first = ranges[0][0]
        if first >= store.opened_end and first >= store.log.end - _WARM_BYTES:
            return False
        last = sum(ranges[-1]) - 1
        blocks: Collection[int] = range(first >> _PROBE_SHIFT, (last >> _PROBE_SHIFT) + 1)
        if len(blocks) > _BLOCKS_MANY * len(ranges) and self._are_warm(ranges):
            return False  # Much in one piece: to ask about it costs less than to remember it.
        if len(blocks) > len(ranges):
            blocks = {
                block
                for at, size in ranges
                for block in range(at >> _PROBE_SHIFT, (at + size - 1 >> _PROBE_SHIFT) + 1)
            }
        now = self._clock.now_ms()
        known = self._probed_ms
        unknown = [at for at in blocks if now - known.get(at, -_PROBE_MS) >= _PROBE_MS]
        if not unknown or self._are_warm_blocks(sorted(unknown), now):
            return False
        # What lies beside them may be on the disk without being needed.
        return not self._are_warm(ranges)

    def _are_warm(self, ranges: Sequence[tuple[int, int]]) -> bool:
        return all(self._is_warm(at, at + size) for at, size in ranges)

    def _are_warm_blocks(self, blocks: list[int], now: int) -> bool:
        """Whether all of some blocks are in the page cache, which is remembered for a moment."""
        store = self._store
        run_at = run_end = int(store.log_min)
        for block in blocks:
            at = max(block << _PROBE_SHIFT, store.log_min)
            if at != run_end:  # One question for blocks that lie side by side.
                if not self._is_warm(run_at, run_end):
                    return False
                run_at = at
            run_end = min(block + 1 << _PROBE_SHIFT, store.log_end)
        if not self._is_warm(run_at, run_end):
            return False
        if len(self._probed_ms) >= _PROBES_MAX:
            self._probed_ms.clear()
        self._probed_ms.update(dict.fromkeys(blocks, now))
        return True

    def _is_warm(self, at: int, end: int) -> bool:
        """Whether a stretch of the log is in the page cache; it may reach into the next segment."""
        segment_bytes = self._store.log.segment_bytes
        while at < end:
            stop = min(end, (at // segment_bytes + 1) * segment_bytes)
            if not self._store.is_warm(at, stop - at):
                return False
            at = stop
        return True

    def warm(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Bring ranges of the log into the page cache, and look there; for a worker thread."""
        self._store.mending.search()
        for each in ranges:
            try:
                self._store.wait_readable([each])
            except (OffsetOutOfRangeError, StoreFailedError):
                continue  # The read that follows says what is wrong.

    # -- filters -------------------------------------------------------------------------------

    def _filtered(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int,
        subscription: Subscription,
        cold_ok: bool,
        entries_max: int,
    ) -> Fetched | None:
        """None if a condition is on records that are not in memory."""
        head = self._store.read(topic, queue_id, offset, 1, 1, later=True)
        if head.status is not FetchStatus.FOUND:
            return head
        start, end = head.min_offset, head.max_offset
        if subscription.predicate is not None and not self.filter_time.left():
            return Fetched(FetchStatus.LATER, [], offset, start, end)
        store = self._store
        if subscription.codes is not None:
            entries_max = self._mend_codes(topic, queue_id, offset, entries_max)
        scan = _QueueScan(store, subscription, count_max, bytes_max, cold_ok, self.filter_time)
        next_offset = scan.run(topic, queue_id, offset, entries_max)
        if next_offset == offset:
            return None
        if self._mend_scanned(topic, queue_id, offset, next_offset, scan, cold_ok):
            return self._filtered(
                topic,
                queue_id,
                offset,
                count_max,
                bytes_max,
                subscription,
                cold_ok,
                entries_max,
            )
        try:
            slices = [self._store.record(at, size) for at, size in scan.ranges]
        except OffsetOutOfRangeError:
            return Fetched(FetchStatus.MESSAGE_WAS_REMOVING, [], offset + 1, start, end)
        status = FetchStatus.FOUND if slices else FetchStatus.NO_MATCHED_MESSAGE
        if cold_ok:
            self._store.wait_readable(scan.ranges)
        elif slices and self._is_cold(scan.ranges):
            status, slices, next_offset = FetchStatus.COLD, [], offset
        count, size = scan.count, scan.size
        return Fetched(status, slices, next_offset, start, end, count, size, scan.ranges)

    def _mend_scanned(
        self, topic: str, queue_id: int, begin: int, end: int, scan: "_QueueScan", cold_ok: bool
    ) -> bool:
        """Look at the entries that a scan went by, where it has read records; whether to go again.

        A condition has read all of them, of which those that lead elsewhere may have met it not.
        """
        store = self._store
        if scan.subscription.predicate is not None and store.mend_stretch(
            topic, queue_id, begin, end, later=True
        ):
            return True
        if not scan.places or (not cold_ok and self._is_cold(scan.ranges)):
            return False
        if cold_ok:
            store.wait_readable([each for each in scan.ranges if each[1] > 0])
        return store.mend_some(topic, queue_id, scan.places, later=True)

    def _mend_codes(self, topic: str, queue_id: int, offset: int, entries_max: int) -> int:
        """Hold tags codes of before the start against the log, where that is in memory.

        Once, and so many that it is no long wait: a filter looks at no more of them then.
        """
        queue = self._store.queue_table.find(topic, queue_id)
        if queue is None or offset >= queue.opened_end:
            return entries_max
        begin, end = queue.passed_over
        if begin <= offset < end:
            return min(entries_max, end - offset)
        count = min(_CODES_MAX, entries_max, queue.opened_end - offset)
        spans = [
            (at, size)
            for at, size, _ in (queue.entry(offset), queue.entry(offset + count - 1))
            if size != PADDING_SIZE and self._store.log_min <= at < self._store.log_end
        ]
        if not spans:
            return entries_max
        first, stop = spans[0][0], sum(spans[-1])
        if not first < stop <= self._store.log_end or self._is_cold([(first, stop - first)]):
            return entries_max
        while self._store.mending.mend_passed_over(queue, offset, count, first, stop):
            pass
        return count

    def watch(
        self, topic: str, queue_id: int, offset: int, subscription: Subscription
    ) -> "Watch | None":
        """Whether a held pull has something to wake up for; None if any message will do."""
        if subscription.codes is None and subscription.predicate is None:
            return None
        if topic in self._marked:
            return None  # Only a pull can tell what is in such records.
        return Watch(self._store, topic, queue_id, offset, subscription, self.filter_time)


class _QueueScan:
    """One walk over a queue's entries, collecting the ranges of the records that match."""

    def __init__(
        self,
        store: MessageStore,
        subscription: Subscription,
        count_max: int,
        bytes_max: int,
        cold_ok: bool,
        filter_time: FilterTime,
    ) -> None:
        self._store = store
        self.subscription = subscription
        self._time = filter_time
        # From here on records are in the page cache, or may be waited for.
        self._warm_from = 0 if cold_ok else max(store.log_end - _WARM_BYTES, store.opened_end)
        self._count_max = max(1, count_max)
        self._bytes_max = bytes_max
        self.ranges: list[tuple[int, int]] = []
        self.places: list[int] = []
        """The offsets of what is in them."""
        self.count = 0
        self.size = 0

    def run(self, topic: str, queue_id: int, offset: int, entries_max: int) -> int:
        """Walk; the answer is the offset at which the next walk goes on.

        It stops before a record that a condition needs and that is not in the page cache, and when
        there is no more time for conditions; one is tested in any case.
        """
        store, subscription = self._store, self.subscription
        seconds, deadline = self._time.seconds, self._time.deadline
        record_at = key = -1
        wanted = tested = False
        for key, at, size in candidates(
            store, topic, queue_id, offset, entries_max, subscription.codes
        ):
            if at == record_at:
                self.count += wanted
                if wanted:
                    self.places.append(key)  # Unless it is no batch, but a wrong entry.
                continue
            if self.count >= self._count_max:
                return key
            wanted = True
            if subscription.predicate is not None:
                if at < self._warm_from and _is_cold_record(store, at, size):
                    return key
                if tested and seconds() >= deadline:
                    return key
                tested = True
                wanted = _satisfies(store, at, size, subscription)
            if wanted and not self._add(at, size):
                return key
            if wanted:
                self.places.append(key)
            record_at = at
        end = min(offset + entries_max, store.max_offset(topic, queue_id))
        if wanted and key == end - 1:
            return self._past_batch(topic, queue_id, end, record_at)
        return end

    def _add(self, at: int, size: int) -> bool:
        if size == PADDING_SIZE:
            return True
        if self.size and self.size + size > self._bytes_max:
            return False
        if self.ranges and sum(self.ranges[-1]) == at:
            start, length = self.ranges[-1]
            self.ranges[-1] = (start, length + size)
        else:
            self.ranges.append((at, size))
        self.size += size
        self.count += 1
        return True

    def _past_batch(self, topic: str, queue_id: int, offset: int, record_at: int) -> int:
        """The walk ended, maybe inside an inner batch that was taken whole: step over its rest."""
        end = self._store.max_offset(topic, queue_id)
        for at, _, _ in self._store.entries(topic, queue_id, offset, end - offset):
            if at != record_at:
                break
            self.count += 1
            offset += 1
        return offset


def candidates(
    store: MessageStore,
    topic: str,
    queue_id: int,
    offset: int,
    entries_max: int,
    codes: frozenset[int] | None,
) -> Iterator[tuple[int, int, int]]:
    """Queue offset, log offset and size of the entries with one of these codes; None: of all.

    Codes are compared a thousand entries at a time, as columns: where few messages match, looking
    at the others costs next to nothing.
    """
    queue = store.queue_table.find(topic, queue_id)
    if queue is None:
        return
    key = max(offset, queue.start)
    wanted = None if codes is None else np.sort(np.fromiter(codes, np.int64, len(codes)))
    for raw in queue.raw_entries(key, entries_max):
        if wanted is None:
            for at, size, _ in ENTRY.iter_unpack(raw):
                yield key, at, size
                key += 1
            continue
        for begin in range(0, len(raw), _COLUMN_BYTES):
            part = raw[begin : begin + _COLUMN_BYTES]
            column = np.frombuffer(part, ENTRY_DTYPE)["code"].astype(np.int64)
            # Not np.isin, which for some hundred codes takes a millisecond per thousand entries.
            nearest = np.searchsorted(wanted, column).clip(max=len(wanted) - 1)
            for index in np.flatnonzero(wanted[nearest] == column).tolist():
                at, size, _ = ENTRY.unpack_from(part, index * ENTRY.size)
                yield key + index, at, size
            key += len(part) // ENTRY.size


def _satisfies(store: MessageStore, at: int, size: int, subscription: Subscription) -> bool:
    """Whether a record's properties meet the subscription's condition."""
    assert subscription.predicate is not None
    if size == PADDING_SIZE:
        return False
    try:
        found = decode_message(store.read_record(at, size))
    except (OffsetOutOfRangeError, IndexError, struct.error):
        return False  # It is gone, or its entry is wrong, which is looked at when all were tested.
    return subscription.predicate(decode_properties(found.properties))


def _is_cold_record(store: MessageStore, at: int, size: int) -> bool:
    try:
        return not store.is_warm(at, size)
    except OffsetOutOfRangeError:
        return False


@dataclass(slots=True, eq=False)
class Watch:
    """Looks at what arrived since it looked last, until something matches the subscription."""

    _store: MessageStore
    _topic: str
    _queue_id: int
    _offset: int
    _subscription: Subscription
    _time: FilterTime
    _began: int = field(init=False)

    def __post_init__(self) -> None:
        self._began = self._offset

    def __call__(self) -> bool:
        """True if something matches, or if so much did not that the consumer should move on.

        Where the time for conditions does not suffice, the queue is looked at again later.
        """
        store, subscription = self._store, self._subscription
        for key, at, size in candidates(
            store, self._topic, self._queue_id, self._offset, SCAN_MAX, subscription.codes
        ):
            if subscription.predicate is None:
                return True
            if not self._time.left():
                self._offset = key
                self._time.look_later(self._topic, self._queue_id)
                return False
            if _satisfies(store, at, size, subscription):
                return True
        end = int(store.max_offset(self._topic, self._queue_id))
        self._offset = min(self._offset + SCAN_MAX, end)
        return self._offset - self._began >= SCAN_MAX
