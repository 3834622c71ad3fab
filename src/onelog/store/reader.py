"""Reading a store: by queue offset, log offset, id, key and time. Never a copy, never a write.

Messages come out as runs of whole records, as slices of the log's own memory: records that are
neighbours in the log leave as one slice. A slice stays good for as long as it is held, also when
its segment is deleted meanwhile.
"""

import enum
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onelog.errors import MessageError, OffsetOutOfRangeError, StoreFailedError
from onelog.message import LogOffset, Message, QueueOffset, parse_message_id
from onelog.record.decode import decode_messages, store_time_ms
from onelog.record.dispatch import TagsCodes
from onelog.record.entries import ENTRY, ENTRY_DTYPE, PADDING_SIZE
from onelog.record.layout import RECORD_BYTES_MIN, STORE_TIME_END
from onelog.store.commitlog import CommitLog
from onelog.store.consumequeue import ConsumeQueue, Entry
from onelog.store.keyindex import KeyIndex, message_keys
from onelog.store.mending import Mending
from onelog.store.queues import Queues

OFFSET_MAX = (1 << 63) - 1
COLUMNS_MIN = 256
"""Reads of at least so many messages look at their entries as columns."""
COLUMNS_LOOK = 2_048
"""Entries that are looked at first; how many more it takes, their records tell."""
BATCH_LONG, SHORT_MAX = 64, 16
"""Entries of a batch that are worth skipping, and how many shorter ones may be between such."""
RANGES_MAX = 4_000
"""Places in the log that one read leads to, of small records among those of others: each is some
microseconds of work. What follows comes with the next read."""
_SAME_LOG_OFFSET = np.dtype([("log", "u8"), ("rest", "V12")])
"""An entry whose place is only compared."""
_UNREADABLE_S = 10.0
_UNREADABLE_MAX = 1_000
_WARM_TAIL_BYTES = 64 << 20
"""What was appended last is in the page cache; asking the kernel would cost more than it tells."""


class FetchStatus(enum.Enum):
    """Why a read returned what it did; the first nine have RocketMQ's names.

    Of these, the store knows all but NO_MATCHED_MESSAGE and OFFSET_RESET. The others are for those
    who read for somebody.
    """

    FOUND = enum.auto()
    NO_MATCHED_MESSAGE = enum.auto()
    MESSAGE_WAS_REMOVING = enum.auto()
    NO_MATCHED_LOGIC_QUEUE = enum.auto()
    NO_MESSAGE_IN_QUEUE = enum.auto()
    OFFSET_TOO_SMALL = enum.auto()
    OFFSET_OVERFLOW_ONE = enum.auto()
    OFFSET_OVERFLOW_BADLY = enum.auto()
    OFFSET_RESET = enum.auto()
    COLD = enum.auto()
    LATER = enum.auto()
    """Nothing was looked at: ask again when `FilterTime.later` calls."""
    FULL = enum.auto()
    """Nothing was looked at: other queues have used up what a fetch may take."""


class Fetched(NamedTuple):
    """A run of messages of one queue.

    `ranges` says where in the log the slices lie. Ask `is_warm` about them before touching the
    slices on a thread that must not wait for the disk; if it says no, call `wait_readable` on
    another one first, which also finds out whether the disk can read them at all.
    """

    status: FetchStatus
    slices: list[memoryview]
    next_offset: int
    min_offset: int
    max_offset: int
    messages: int = 0
    size: int = 0
    ranges: Sequence[tuple[int, int]] = ()
    offsets: Sequence[int] = ()
    """Of each slice the offset of its message, where records were converted."""


class StoreReader:
    """The reading side of a store."""

    def __init__(self, folder: Path, log: CommitLog, queues: Queues, index: KeyIndex) -> None:
        self.folder = folder
        self.log = log
        self.queue_table = queues
        self.index = index
        self.mending = Mending(log, TagsCodes(""))
        queues.check_with(self.mending)
        self.opened_end = int(log.end)
        """Where the log ended when the store was opened: what is before it may be on disk only."""
        self._unreadable: dict[tuple[int, int], tuple[float, str]] = {}
        self.carried: dict[tuple[str, int], tuple[int, int]] = {}
        """Queues whose first messages are kept elsewhere, by the owner: from where to where."""

    # -- queues --------------------------------------------------------------------------------

    def queues(self) -> dict[str, list[int]]:
        """The ids of the queues that have messages or had some, by topic."""
        by_topic = self.queue_table.by_topic
        return {topic: sorted(queues) for topic, queues in sorted(by_topic.items())}

    def min_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """The oldest message still there; 0 for a queue that was never written to."""
        queues = self.queue_table.by_topic.get(topic)
        queue = queues.get(queue_id) if queues else None
        if queue is None:
            return QueueOffset(0)
        if self.carried:
            start, end = self.carried.get((topic, queue_id), (0, -1))
            if queue.start <= end:
                return QueueOffset(start)
        return QueueOffset(queue.start)

    def max_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """The offset that the next message that can be read will have."""
        queue = self.queue_table.find(topic, queue_id)
        return QueueOffset(queue.end if queue else 0)

    def next_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """The same, also where messages before it wait to be confirmed, and nobody sees them."""
        return self.max_offset(topic, queue_id)

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> Iterator[Entry]:
        """(log offset, size, tags code) of up to `count` messages from `offset` on."""
        queue = self.queue_table.find(topic, queue_id)
        return queue.entries(offset, count) if queue else iter(())

    def log_offset_of(self, topic: str, queue_id: int, offset: int) -> int:
        """Where in the log the message at a queue offset is, or the first one after it.

        The end of what is confirmed if there is none.
        """
        queue = self.queue_table.find(topic, queue_id)
        if queue is not None and offset < queue.end:
            offset = max(offset, queue.start)
            for at, size, _ in queue.entries(offset, queue.end - offset):
                if size != PADDING_SIZE:  # Otherwise it stands for a message that is not there.
                    return at
        return self.confirmed

    def entry_at(self, topic: str, queue_id: int, offset: int) -> Entry | None:
        """The entry of one message; None if it is not there: deleted, lost, or yet to come."""
        queue = self.queue_table.find(topic, queue_id)
        if queue is None or not queue.start <= offset < queue.end:
            return None
        found = queue.entry(offset)
        at = found[0]
        is_there = self.log.start <= at < self.log.end
        if not is_there or self.is_warm(at, 1):
            # What is cold is looked at when it is asked for again.
            self.mending.mend(queue, offset, 1)
            found = queue.entry(offset)
        return None if found[1] == PADDING_SIZE or found[0] < self.log.start else found

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int = 32,
        bytes_max: int = 256 * 1024,
        *,
        later: bool = False,
    ) -> Fetched:
        """Messages of a queue from `offset` on: at least one if there is any, up to the limits.

        An inner batch is returned whole, also if the offset is in the middle of it. Who says that
        a search can be `later` may get a `SearchNeededError`; see `mending`.
        """
        _check_offset(offset)
        queue = self.queue_table.find(topic, queue_id)
        if queue is None:
            return _nothing(FetchStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        start, end = queue.start, queue.end
        if end == 0:
            return _nothing(FetchStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        if offset < start:
            return _nothing(FetchStatus.OFFSET_TOO_SMALL, start, start, end)
        if offset == end:
            return _nothing(FetchStatus.OFFSET_OVERFLOW_ONE, offset, start, end)
        if offset > end:
            return _nothing(FetchStatus.OFFSET_OVERFLOW_BADLY, end, start, end)
        collect = _collect if count_max < COLUMNS_MIN else _collect_many
        ranges, count, size, last_at = collect(queue, offset, count_max, bytes_max)
        if offset + count < end and queue.entry(offset + count)[0] == last_at:
            count = _end_of_batch(queue, offset + count) - offset
        try:
            if min(ranges)[0] < self.log.start or min(size for _, size in ranges) <= 0:
                raise OffsetOutOfRangeError(f"an entry of {queue.topic} leads nowhere")
            slices = self.log.slices(ranges)
        except OffsetOutOfRangeError:
            if self.mending.mend(queue, offset, count, surely=True, later=later):
                return self.read(topic, queue_id, offset, count_max, bytes_max, later=later)
            # Deleted or lost between the look at the queue and the look at the log.
            following = queue.next_real(offset + 1, end, int(self.log.start))
            if self.mending.mend_padding(queue, offset + count, following, later):
                return self.read(topic, queue_id, offset, count_max, bytes_max, later=later)
            return _nothing(FetchStatus.MESSAGE_WAS_REMOVING, following, start, end)
        return Fetched(FetchStatus.FOUND, slices, offset + count, start, end, count, size, ranges)

    def read_now(
        self, topic: str, queue_id: int, offset: int, count_max: int, bytes_max: int
    ) -> Fetched:
        """`read` for those who can wait for the disk: the slices may be touched at once."""
        while True:
            found = self.read(topic, queue_id, offset, count_max, bytes_max)
            self.wait_readable(found.ranges)
            if not self.mend(topic, queue_id, offset, found):
                return found

    def mend(
        self, topic: str, queue_id: int, offset: int, found: Fetched, *, later: bool = False
    ) -> bool:
        """Look at the entries of a read whose records are in memory; whether to read again."""
        queue = self.queue_table.find(topic, queue_id) if found.slices else None
        if queue is None or (
            time.perf_counter() < self.mending.next_check
            if offset >= queue.opened_end
            else queue.checked[0] <= offset and found.next_offset <= queue.checked[1]
        ):
            return False
        return self.mending.mend(queue, offset, found.next_offset - offset, later=later)

    def mend_some(
        self, topic: str, queue_id: int, offsets: Sequence[int], *, later: bool = False
    ) -> bool:
        """The same for some entries of a queue."""
        queue = self.queue_table.find(topic, queue_id)
        if queue is None:
            return False
        return sum(self.mending.mend(queue, offset, 1, later=later) for offset in offsets) > 0

    def mend_stretch(
        self, topic: str, queue_id: int, begin: int, end: int, *, later: bool = False
    ) -> bool:
        """The same for a stretch of a queue whose records are in memory."""
        queue = self.queue_table.find(topic, queue_id)
        if queue is None or begin >= queue.opened_end:
            return False
        if queue.checked[0] <= begin and end <= queue.checked[1]:
            return False
        mended = False
        while self.mending.mend(queue, begin, end - begin, later=later):
            mended = True
        return mended

    def messages(self, topic: str, queue_id: int, offset: int, count_max: int) -> list[Message]:
        """Decoded messages of a queue from `offset` on."""
        found: list[Message] = []
        while len(found) < count_max:
            result = self.read_now(topic, queue_id, offset, count_max - len(found), 1 << 20)
            if result.status is FetchStatus.MESSAGE_WAS_REMOVING and result.next_offset > offset:
                offset = result.next_offset
                continue
            if result.status is not FetchStatus.FOUND:
                break
            for piece in result.slices:
                found.extend(decode_messages(piece))
            offset = result.next_offset
        return found

    # -- single messages -----------------------------------------------------------------------

    @property
    def log_min(self) -> LogOffset:
        """The first byte of the log that is still there."""
        return self.log.start

    @property
    def log_end(self) -> LogOffset:
        """The byte after the last record."""
        return self.log.end

    @property
    def confirmed(self) -> int:
        """Queues and index know all records below this log offset."""
        return int(self.log.end)

    def record(self, log_offset: int, size: int) -> memoryview:
        return self.log.slice(log_offset, size)

    def read_record(self, log_offset: int, size: int) -> memoryview:
        """The same, for those who can wait for the disk: `StoreError` if that cannot read them."""
        found = self.log.slice(log_offset, size)
        self.wait_readable([(log_offset, size)])
        return found

    def message_at(self, log_offset: int) -> Message:
        """The message whose record starts at a log offset."""
        _check_offset(log_offset)
        return self.log.message_at(log_offset)

    def message_by_id(self, message_id: str) -> Message:
        """The message with an offset message id (the one in hex, with the store's address)."""
        try:
            _, log_offset = parse_message_id(message_id)
        except ValueError as error:
            raise MessageError(f"{message_id!r} is not a message id: {error}") from error
        return self.message_at(log_offset)

    def find_by_key(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = OFFSET_MAX, count_max: int = 64
    ) -> list[LogOffset]:
        """Where messages of a topic with this key (or unique key) lie, newest first."""
        found: dict[LogOffset, None] = {}
        for at in self.index.find(topic, key, begin_ms, end_ms):
            if len(found) >= count_max:
                break
            if not self.log.start <= at < self.log.end:
                continue
            message = self.log.look_at(at)
            if not isinstance(message, Message):
                continue  # An entry that is older, or more damaged, than its record.
            in_time = begin_ms <= message.store_ms <= end_ms
            if (
                in_time
                and message.topic == topic
                and key.encode() in message_keys(message.properties)
            ):
                found[LogOffset(at)] = None
        return list(found)

    # -- time ----------------------------------------------------------------------------------

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When the message at a queue offset was stored; None if it is not there."""
        _check_offset(offset)
        queue = self.queue_table.find(topic, queue_id)
        if queue is None or not queue.start <= offset < queue.end:
            return None
        found = queue.read_entry(offset)
        is_there = found[1] != PADDING_SIZE and found[0] >= self.log.start
        return self._entry_time(found) if is_there else None

    def offset_by_time(
        self, topic: str, queue_id: int, time_ms: int, upper: bool = False
    ) -> QueueOffset:
        """The first message stored at or after a time; with `upper`, the last one at or before it.

        Where there is no such message: one past the last, or, with `upper`, the first.
        """
        queue = self.queue_table.find(topic, queue_id)
        if queue is None:
            return QueueOffset(0)
        if upper:
            after = queue.first_not_before(lambda entry: self._entry_time(entry) <= time_ms)
            return QueueOffset(max(queue.start, after - 1))
        return QueueOffset(queue.first_not_before(lambda e: self._entry_time(e) < time_ms))

    def _entry_time(self, entry: Entry) -> int:
        if entry[0] < self.log.start:
            return -1  # Deleted: before everything that is there.
        # A copy: a search by time goes all over the log, and most of it is on the disk only.
        try:
            return store_time_ms(memoryview(self.log.read_cold(entry[0], STORE_TIME_END)))
        except OffsetOutOfRangeError:
            if entry[0] < self.log.start:
                return -1
            return OFFSET_MAX  # The entry is wrong, which shows when the search ends there.

    # -- warm and cold -------------------------------------------------------------------------

    def wait_readable(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Have ranges of the log in memory, so that their slices can be touched.

        `StoreError` if the disk cannot read them: then a touch would end the process. A disk that
        fails takes its time, so it is not asked again at once.
        """
        for at, size in ranges:
            if self.is_warm(at, size):
                continue
            failed = self._unreadable.get((at, size))
            if failed is not None and time.monotonic() < failed[0]:
                raise StoreFailedError(failed[1])
            try:
                self.log.read_cold(at, size)
            except StoreFailedError as error:
                if len(self._unreadable) >= _UNREADABLE_MAX:
                    self._unreadable.clear()
                self._unreadable[at, size] = time.monotonic() + _UNREADABLE_S, str(error)
                raise

    def is_warm(self, log_offset: int, size: int) -> bool:
        """Whether a range can be read without waiting for the disk."""
        end = self.log.end
        if log_offset >= self.opened_end and end - log_offset <= _WARM_TAIL_BYTES:
            return True
        return self.log.is_warm(log_offset, size)

    def is_record_warm(self, log_offset: int) -> bool:
        """Whether the record at a log offset, if there is one, can be read without waiting."""
        return not self.log.start <= log_offset < self.log.end or self.is_warm(log_offset, 1)

    def read_cold(self, log_offset: int, size: int) -> bytes:
        """A copy of a range, for a worker thread: the others run while the disk works."""
        return self.log.read_cold(log_offset, size)


def _collect(
    queue: ConsumeQueue, offset: int, count_max: int, bytes_max: int
) -> tuple[list[tuple[int, int]], int, int, int]:
    """Where in the log the next messages lie: ranges, entries, bytes, start of the last record."""
    ranges: list[tuple[int, int]] = []
    run_at = run_end = record_at = -1
    size_total = count = 0
    for raw in queue.raw_entries(offset, max(1, count_max)):
        for at, size, _ in ENTRY.iter_unpack(raw):
            if at != record_at:  # Entries of one inner batch share a record.
                if size_total + size > bytes_max and size_total:
                    break
                if at != run_end:
                    if run_end >= 0:
                        ranges.append((run_at, run_end - run_at))
                    run_at = at
                record_at = at
                run_end = at + size
                size_total += size
            count += 1
        else:
            continue
        break
    ranges.append((run_at, run_end - run_at))
    return ranges, count, size_total, record_at


def _collect_many(
    queue: ConsumeQueue, offset: int, count_max: int, bytes_max: int
) -> tuple[list[tuple[int, int]], int, int, int]:
    """The same for many entries. Of long batches only the ends are looked for."""
    ranges: list[tuple[int, int]] = []
    here, stop = offset, min(offset + count_max, queue.end)
    size_total = short = record_at = 0
    while here < stop:
        at, size, _ = queue.entry(here)
        if size_total and size_total + size > bytes_max:
            break
        end = _end_of_batch(queue, here)
        if end - here < BATCH_LONG:
            short += 1
            if here == offset or short > SHORT_MAX:
                return _collect_columns(queue, offset, count_max, bytes_max)
        if size == PADDING_SIZE:  # There may be more of them behind what is there.
            return _collect_columns(queue, offset, count_max, bytes_max)
        if ranges and at == sum(ranges[-1]):
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + size)
        else:
            ranges.append((at, size))
        here, record_at, size_total = end, at, size_total + size
    return ranges, here - offset, size_total, record_at


def _collect_columns(
    queue: ConsumeQueue, offset: int, count_max: int, bytes_max: int
) -> tuple[list[tuple[int, int]], int, int, int]:
    """The same as columns: a tenth of the time where records adjoin."""
    # No more entries need be looked at than there can be records in so many bytes.
    count_max = min(count_max, max(COLUMNS_MIN, bytes_max // RECORD_BYTES_MIN))
    look = min(count_max, COLUMNS_LOOK)
    while True:
        parts = [np.frombuffer(raw, ENTRY_DTYPE) for raw in queue.raw_entries(offset, look)]
        entries = np.concatenate(parts)
        # Entries of one inner batch share a record. To see that, no number has to be made of them.
        log_offsets = entries.view(_SAME_LOG_OFFSET)["log"]
        first = np.flatnonzero(log_offsets[1:] != log_offsets[:-1]) + 1
        first = np.concatenate(([0], first))
        record_size = entries["size"][first].astype(np.int64)
        size = int(record_size.sum())
        if size > bytes_max or look == count_max or len(entries) < look:
            break
        look = min(count_max, max(2 * look, look * bytes_max // size))
    record_at = entries["log"][first].astype(np.int64)
    totals = record_size.cumsum()
    records = max(1, int(totals.searchsorted(bytes_max, "right")))
    if records < len(totals):
        count = int(first[records])
        record_at, record_size = record_at[:records], record_size[:records]
    else:
        count = len(entries)
    ends = record_at + record_size
    breaks = (record_at[1:] != ends[:-1]).nonzero()[0] + 1
    if len(breaks) >= RANGES_MAX:
        breaks, records = breaks[: RANGES_MAX - 1], int(breaks[RANGES_MAX - 1])
        count = int(first[records])
        record_at, ends = record_at[:records], ends[:records]
    starts = record_at[np.concatenate(([0], breaks))]
    stops = ends[np.concatenate((breaks - 1, [records - 1]))]
    ranges = list(zip(starts.tolist(), (stops - starts).tolist(), strict=True))
    return ranges, count, int(totals[records - 1]), int(record_at[-1])


def _end_of_batch(queue: ConsumeQueue, offset: int) -> int:
    """One past the last entry that points at the same record as the one at `offset`."""
    at = queue.entry(offset)[0]
    step = 1
    while offset + step < queue.end and queue.entry(offset + step)[0] == at:
        step *= 2
    low, high = offset + step // 2, min(offset + step, queue.end)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if queue.entry(middle)[0] == at else (low, middle)
    return high


def _nothing(status: FetchStatus, next_offset: int, start: int, end: int) -> Fetched:
    return Fetched(status, [], next_offset, start, end)


def _check_offset(offset: int) -> None:
    if not 0 <= offset <= OFFSET_MAX:
        raise OffsetOutOfRangeError(f"offset {offset} is outside 0..{OFFSET_MAX}")
