"""Reading a store's files without a broker: messages as columns, straight from the log.

Works on the folder of a broker that runs, of one that was stopped, on a copy of either, and on
what RocketMQ wrote. `plan` divides ranges of queues among tasks; `read` gives the rows of a task.

By bytes, each part of the log is read once, by one task, which picks out what is wanted. By queue,
a task goes from entry to entry, and touches nothing else of the log: better if only a small part
of it is wanted. A range of bytes starts and ends where a record starts, found in the queues.

Nothing here finds out where a queue or the log ends: a task reads what the driver found settled
(see `store.readonly`), and of a queue only the entries in its range. What was aborted (see
`store.outcomes`) the driver has found out, too.

Invariants: every message of the ranges is in exactly one split; rows are those of the ranges; a
record that is not whole is never a row. Damage fails the read, or is skipped and reported, as the
decoder says; messages that were deleted are `DataLossError`, or are left out. Nothing is locked,
written or created.
"""

import bisect
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onelog.client.message import Queue
from onelog.errors import DataLossError, StoreCorruptError, StoreError, WireError
from onelog.message import (
    MULTI_DISPATCH,
    RECORD_CRC,
    TRANSACTION_MASK,
    LogOffset,
    Message,
    SysFlag,
    tags_code,
)
from onelog.names import SCHEDULE_TOPIC
from onelog.record.columns import Ints, Layout, Mask, integers, lay_out, leading_records, pieces
from onelog.record.columns.properties import as_text
from onelog.record.decode import Blank, Broken, check, decode_message
from onelog.record.dispatch import TagsCodes, targets
from onelog.record.entries import ENTRY_DTYPE, PADDING_SIZE
from onelog.record.forms import FORM_MASK, Form, kafka
from onelog.record.layout import BLANK, CRC_PROPERTY_BYTES, RECORD_BYTES_MIN
from onelog.spark.columns.messages import ROWS_MAX, RecordDecoder
from onelog.spark.columns.schema import EVERY_ROW, RowFilters, Selection
from onelog.spark.options import SplitBy
from onelog.spark.read.offsets import QueueRange, lose, split
from onelog.store.commitlog import CommitLog
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.folder import look, queue_file_entries, segment_bytes
from onelog.store.mending import Mending, occupies
from onelog.store.outcomes import Aborted
from onelog.store.queue_files import MapBudget
from onelog.store.queue_folders import QUEUES_FOLDER, queue_folder
from onelog.store.segment import Segment, file_name, numbered_files

EntryArray = npt.NDArray[np.void]
AbortedOf = Mapping[Queue, Sequence[Aborted]]
"""The transactions that failed, of queues that have some."""

NO_ABORTED: AbortedOf = {}
_FIRST_FILE_S = 1.0
_QUEUE_MAPS_MAX = 64
SPLIT_BYTES_MAX = 64 << 20
"""What a task reads, about: enough that starting it does not count, and all cores have some."""
_WORTH_SCANNING = 8
"""A range of the log is read as a whole if at least one byte in so many is wanted."""
_SAMPLED_ENTRIES = 64
_ENTRIES_AT_ONCE = 10_000
_GUIDES_MAX = 8
"""Queues that are asked where records start."""
_WINDOW_BYTES = 8 << 20
_MULTI_DISPATCH_NEEDLE = MULTI_DISPATCH.encode() + b"\x01"
_BATCH_BYTES_MIN = kafka.HEAD.size
_ATTRIBUTES_LOW_AT, _PRODUCER_AT = kafka.ATTRIBUTES_AT + 1, 43
_TRANSACTIONAL = int(kafka.Attribute.TRANSACTIONAL)
_CRC_PROPERTY_FIRST = ord(RECORD_CRC[0])
_ADVICE = "; `onelog store verify` finds all damage, and onCorruption=skip reads the rest"


@dataclass(frozen=True, slots=True)
class QueueSplit:
    """Ranges of queues, read entry by entry."""

    store: str
    ranges: tuple[QueueRange, ...]
    fail_on_data_loss: bool
    aborted: AbortedOf = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogSplit:
    """A range of the log in which messages of these ranges of queues lie."""

    store: str
    ranges: tuple[QueueRange, ...]
    fail_on_data_loss: bool
    start: int
    stop: int
    aborted: AbortedOf = field(default_factory=dict)


StoreSplit = QueueSplit | LogSplit


def read(
    split: StoreSplit, decoder: RecordDecoder, filters: RowFilters = EVERY_ROW
) -> Iterator[pa.RecordBatch]:
    reading = _Reading(split, decoder, filters)
    try:
        if isinstance(split, QueueSplit):
            for each in split.ranges:
                yield from _Follow(reading, each).batches()
        else:
            yield from _Scan(reading, split).batches()
    except WireError as error:
        raise StoreCorruptError(f"{split.store}: {error}{_ADVICE}") from error


class _Reading:
    """What all parts of one read need."""

    def __init__(self, split: StoreSplit, decoder: RecordDecoder, filters: RowFilters) -> None:
        self.decoder = decoder
        self.filters = filters
        self.fail_on_data_loss = split.fail_on_data_loss
        self.aborted = split.aborted
        store = Path(split.store)
        self.log = LogFiles(store)
        self.queues = QueueFiles(store)

    def rows(self, layout: Layout, each: QueueRange) -> Iterator[pa.RecordBatch]:
        """Rows of records that all belong to one queue."""
        queue = each.queue
        if queue in self.aborted:
            layout = layout.rows(~is_aborted(layout, self.aborted[queue]))
        selection = Selection(queue.broker, queue.topic, each.start, each.end, self.filters)
        return self.decoder.batches(layout, selection)

    def damaged(self, segment: Segment, found: Broken, end: int) -> None:
        """A range of the log that holds no whole record, up to `end`."""
        self.decoder.skip_or_raise(
            StoreCorruptError(
                f"{segment.path} at log offset {found.log_offset}: {found.reason}; bytes "
                f"{found.log_offset} to {end} are skipped"
                if self.decoder.on_corruption == "skip"
                else f"{segment.path} at log offset {found.log_offset}: {found.reason}{_ADVICE}"
            )
        )

    def lost(self, what: str) -> None:
        """Messages that are not there any more."""
        lose(what, fail=self.fail_on_data_loss)


def is_aborted(layout: Layout, aborted: Sequence[Aborted]) -> Mask:
    """Which records, all of one queue, hold batches of these transactions."""
    found = np.zeros(len(layout), np.bool_)
    foreign = (layout.sys_flag & FORM_MASK) == Form.KAFKA.sys_flag
    foreign &= layout.topic_at - layout.body_at >= _BATCH_BYTES_MIN
    rows = np.flatnonzero(foreign)
    if not len(rows):
        return found
    body_at, offset = layout.body_at[rows], layout.queue_offset[rows]
    producer = integers(layout.raw, body_at + _PRODUCER_AT, ">i8")
    hit = np.zeros(len(rows), np.bool_)
    for each in aborted:
        in_place = (offset >= each.first_offset) & (offset <= each.last_offset)
        hit |= in_place & (producer == each.producer_id)
    hit &= (layout.raw[body_at + _ATTRIBUTES_LOW_AT] & _TRANSACTIONAL) != 0
    found[rows] = hit
    return found


# -- by queue ------------------------------------------------------------------------------------


class _Entries(NamedTuple):
    """Some entries of a queue: the offset of each, and where its record is said to be."""

    offset: Ints
    log: Ints
    size: Ints
    shared: Mask
    """Whether the next entry leads to the same record, as those of a batch do."""

    def chosen(self, rows: "Mask | slice") -> "_Entries":
        return _Entries(self.offset[rows], self.log[rows], self.size[rows], self.shared[rows])


class _WrongEntryError(Exception):
    """An entry leads elsewhere: perhaps the log has its record."""


class _Follow:
    """Goes from entry to entry of one queue."""

    def __init__(self, reading: _Reading, range_: QueueRange) -> None:
        self._reading = reading
        self._range = range_
        self._name = f"queue {range_.queue.queue_id} of {range_.queue.topic}"
        self._last_log = -1
        """The record that was read last: the log never goes back, but a batch has many entries."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the range."""
        offset = self._range.start
        while offset < self._range.end:
            queue = self._reading.queues.open(self._range.queue)
            offset, end = self._left(offset, queue)
            try:
                for found in entries_of(queue, offset, end, ROWS_MAX):
                    try:
                        self._refuse_odd(found)
                        yield from self._rows(self._wanted(offset, found), mended=False)
                    except _WrongEntryError:
                        right = self._reading.queues.mended(queue, offset, found)
                        yield from self._rows(self._wanted(offset, right), mended=True)
                    offset += len(found)
                return
            except FileNotFoundError:
                continue  # Retention took a file of the queue: look again where it begins now.

    def _wanted(self, offset: int, found: EntryArray) -> _Entries:
        wanted = _possible(found, self._range.queue.topic, self._reading.filters)
        log = found["log"].astype(np.int64)
        shared = np.append(log[1:] == log[:-1], False)
        size = found["size"][wanted].astype(np.int64)
        return _Entries(offset + np.flatnonzero(wanted), log[wanted], size, shared[wanted])

    def _refuse_odd(self, found: EntryArray) -> None:
        """See that entries lead on in the log, as those of a queue do."""
        real = found[(found["size"] != PADDING_SIZE) | (found["log"] != 0)]
        log = real["log"].astype(np.int64)
        is_odd = (real["size"] < RECORD_BYTES_MIN) | (real["size"] == PADDING_SIZE)
        is_odd |= (log < 0) | (log >= self._reading.log.end)
        is_odd |= np.diff(log, prepend=self._last_log) < 0
        if is_odd.any():
            raise _WrongEntryError

    def _left(self, offset: int, queue: ConsumeQueue) -> tuple[int, int]:
        """What the queue still has of the range from `offset` on."""
        first = min(max(offset, queue.start), self._range.end)
        end = max(min(self._range.end, queue.end), first)
        if first > offset or end < self._range.end:
            self._reading.lost(
                f"{self._name} holds {queue.start} to {queue.end} now; {offset} to "
                f"{self._range.end} was to be read"
            )
        return first, end

    def _rows(self, entries: _Entries, *, mended: bool) -> Iterator[pa.RecordBatch]:
        log = self._reading.log
        gone = (entries.size == PADDING_SIZE) | (entries.log < log.start)
        if gone.any():
            self._reading.lost(
                f"{int(gone.sum())} messages of {self._name} were deleted before they were read"
            )
            entries = entries.chosen(~gone)
        at = 0
        while at < len(entries.log):
            rest = entries.log[at:]
            try:
                segment = log.segment_at(int(rest[0]))
            except DataLossError as error:
                self._reading.lost(str(error))
                behind = log.next_start(int(rest[0]))
                leads_away = rest < rest[0] if behind is None else rest >= behind
                at += int(np.argmax(leads_away)) or len(rest)
                continue
            # To the end of the segment, or to an entry that leads back: then one of them is wrong.
            leads_away = (rest >= segment.start + segment.size) | (np.diff(rest, prepend=-1) <= 0)
            count = int(np.argmax(leads_away)) or len(rest)
            layout = self._records(segment, entries.chosen(slice(at, at + count)), mended=mended)
            layout = layout.rows(segment.start + layout.at > self._last_log)
            if len(layout):
                self._last_log = segment.start + int(layout.at[-1])
                yield from self._reading.rows(layout, self._range)
            at += count

    def _records(self, segment: Segment, entries: _Entries, *, mended: bool) -> Layout:
        """Where entries lead to; what is not a whole record, or not theirs, is reported.

        But what was not `mended` is to be so first.
        """
        raw = np.frombuffer(segment.view, np.uint8)
        at = entries.log - segment.start
        has_room = at + np.maximum(entries.size, RECORD_BYTES_MIN) <= len(raw)
        layout, right = lay_out(raw, at[has_room])
        inside = entries.chosen(has_room)
        right &= (layout.end - layout.at == inside.size) & (layout.log_offset == inside.log)
        right &= layout.queue_offset == inside.offset
        right &= layout.queue_id == self._range.queue.queue_id
        right &= ~inside.shared | ((layout.sys_flag & SysFlag.INNER_BATCH) != 0)
        right[right] = ~_unsure(layout.rows(right))
        names = as_text(pieces.topics(layout.rows(right)))
        right[right] = pc.equal(names, self._range.queue.topic).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(~right).tolist():
            right[row] = self._is_right(segment, inside, row, mended=mended)
        for row in np.flatnonzero(~has_room).tolist():
            self._is_right(segment, entries, row, mended=mended)
        return layout if right.all() else layout.rows(right)

    def _is_right(self, segment: Segment, entries: _Entries, row: int, *, mended: bool) -> bool:
        """Whether an entry leads to its record, found out without haste; reported if not."""
        queue = self._range.queue
        log, size, offset = int(entries.log[row]), int(entries.size[row]), int(entries.offset[row])
        found = check(segment.view, log - segment.start, log)
        if isinstance(found, Message):
            last = offset + int(entries.shared[row])
            if found.size == size and occupies(found, queue.topic, queue.queue_id, last):
                return True
            found = Broken(log, f"not the message at offset {offset} of {self._name}")
        elif isinstance(found, Blank):
            found = Broken(log, f"no message at offset {offset} of {self._name}: the segment's end")
        if not mended:
            raise _WrongEntryError
        self._reading.damaged(segment, found, log + size)
        return False


def _possible(entries: EntryArray, topic: str, filters: RowFilters) -> Mask:
    """The entries that are worth following: of an inner batch one, and with tags that are wanted.

    Where more than a tag decides, the record has to be asked.
    """
    log = entries["log"]
    repeats = log[1:] == log[:-1]
    wanted = np.ones(len(entries), np.bool_)
    wanted[1:] = ~repeats
    if filters.tags is None or topic == SCHEDULE_TOPIC:
        return wanted
    codes = entries["code"].astype(np.int64)
    possible = np.isin(codes, [tags_code(tag) for tag in filters.tags])
    # RocketMQ may keep more about a message elsewhere; the code then says where, and is no hash.
    possible |= (codes > 0x7FFFFFFF) | (codes < -0x80000000)
    # Messages of an inner batch have tags of their own, and share its entry's code.
    possible[:-1] |= repeats
    possible[[0, -1]] = True
    return wanted & possible


def _unsure(layout: Layout) -> Mask:
    """Which rows only `record.check` can tell from whole ones.

    Those with a checksum over all of their bytes, and those that a cut-off write may have left.
    """
    raw, end = layout.raw, layout.end
    has_crc = end - layout.properties_at - 2 >= CRC_PROPERTY_BYTES
    has_crc &= raw[end - CRC_PROPERTY_BYTES] == _CRC_PROPERTY_FIRST
    unsure: Mask = has_crc | layout.is_odd()
    return unsure


# -- by bytes ------------------------------------------------------------------------------------


class _Scan:
    """Goes through a range of the log, and picks out the rows of some ranges of queues."""

    def __init__(self, reading: _Reading, split: LogSplit) -> None:
        self._reading = reading
        self._split = split
        topics = sorted({each.queue.topic for each in split.ranges})
        numbers = {topic: number for number, topic in enumerate(topics)}
        self._ranges = sorted(
            split.ranges, key=lambda each: (numbers[each.queue.topic], each.queue.queue_id)
        )
        self._topics = pa.array(topics, pa.string())
        self._keys = np.array(
            [(numbers[each.queue.topic] << 32) + each.queue.queue_id for each in self._ranges]
        )
        self._first = np.array([each.start for each in self._ranges])
        self._end = np.array([each.end for each in self._ranges])
        self._first_log = np.array([*map(self._log_offset_of_first, self._ranges)])
        self._ranges_of = {
            (each.queue.topic, each.queue.queue_id): number
            for number, each in enumerate(self._ranges)
        }

    def _log_offset_of_first(self, wanted: QueueRange) -> int:
        """Before this record the log has none of a range, but perhaps some of an earlier topic of
        the same name, with the same offsets."""
        queue = self._reading.queues.open(wanted.queue)
        try:
            self._reading.queues.check(queue, wanted.start)
            return queue.entry(wanted.start)[0] if queue.start <= wanted.start < queue.end else 0
        except StoreError:
            return 0  # Deleted meanwhile, which is told when it is missed.

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, window by window."""
        at, stop = self._split.start, self._split.stop
        while at < stop:
            try:
                segment = self._reading.log.segment_at(at)
            except DataLossError as error:
                self._reading.lost(str(error))
                at = self._reading.log.next_start(at) or stop
                continue
            layout = self._window(segment, at)
            if len(layout):
                yield from self._rows(layout)
                at += int(layout.end[-1])
            else:
                at = self._behind(segment, at)

    def _window(self, segment: Segment, at: int) -> Layout:
        """Whole records that follow each other from `at` on; none if there is something else."""
        raw = np.frombuffer(segment.view, np.uint8)[at - segment.start :]
        layout = leading_records(raw, min(_WINDOW_BYTES, self._split.stop - at))
        whole = (layout.log_offset == at + layout.at) & ~_unsure(layout)
        for row in np.flatnonzero(~whole).tolist():
            position = at + int(layout.at[row])
            if not isinstance(check(segment.view, position - segment.start, position), Message):
                return layout.rows(slice(0, row))
        return layout

    def _behind(self, segment: Segment, at: int) -> int:
        """Where to go on when no record is at `at`."""
        end = segment.start + segment.size
        if end - at < BLANK.size:
            return end
        found = check(segment.view, at - segment.start, at)
        if isinstance(found, Blank):
            return end
        if isinstance(found, Message):
            found = Broken(at, "a record changed while it was read")
        going_on = min(self._resume(segment, at), self._split.stop)
        self._reading.damaged(segment, found, going_on)
        return going_on

    def _resume(self, segment: Segment, at: int) -> int:
        """Where to go on behind a broken record.

        Where its length leads to, if that makes sense; else where the queues say that the next
        record of theirs is.
        """
        position = at - segment.start
        size = int.from_bytes(segment.view[position : position + 4], "big")
        if size >= RECORD_BYTES_MIN and position + size < segment.size:
            follower = check(segment.view, position + size, at + size)
            if not isinstance(follower, Broken):
                return at + size
        following = [self._split.stop]
        for each in self._ranges:
            queue = self._reading.queues.open(each.queue)
            offset = queue.first_not_before(lambda entry: entry[0] <= at)
            if offset < queue.end:
                following.append(queue.entry(offset)[0])
        return min(following)

    # -- picking ---------------------------------------------------------------------------------

    def _rows(self, layout: Layout) -> Iterator[pa.RecordBatch]:
        reading = self._reading
        number = self._range_of(layout)
        # Half and rolled-back messages, and the records of deletions, are in no queue.
        kind = layout.sys_flag & TRANSACTION_MASK
        number[(kind != 0) & (kind != SysFlag.COMMITTED)] = -1
        number[layout.log_offset < self._first_log[number]] = -1
        for position, each in enumerate(self._ranges if reading.aborted else ()):
            if each.queue in reading.aborted:
                here = np.flatnonzero(number == position)
                gone = is_aborted(layout.rows(here), reading.aborted[each.queue])
                number[here[gone]] = -1
        is_batch = (layout.sys_flag & SysFlag.INNER_BATCH) != 0
        offset = layout.queue_offset
        plain = (number >= 0) & ~is_batch
        plain &= (offset >= self._first[number]) & (offset < self._end[number])
        selection = Selection(self._ranges[0].queue.broker, filters=reading.filters)
        yield from reading.decoder.batches(layout.rows(plain), selection)
        several = _rows_by_number(number, (number >= 0) & is_batch)
        for row, where in self._shared(layout):
            several.setdefault(where, []).append(row)
        for where, rows in sorted(several.items()):
            chosen = layout.rows(np.array(sorted(set(rows)), np.int64))
            yield from reading.rows(chosen, self._ranges[where])

    def _range_of(self, layout: Layout) -> Ints:
        """The number of the range whose queue each record names; -1 for none."""
        found = pc.index_in(as_text(pieces.topics(layout)), self._topics)
        topic = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        key = (topic << 32) + layout.queue_id
        position = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        return np.where(self._keys[position] == key, position, -1)

    def _shared(self, layout: Layout) -> Iterator[tuple[int, int]]:
        """The rows of records that have a place in further queues, with the ranges of these."""
        encoded = pieces.properties(layout)
        text = encoded.buffers()[2]
        if text is None or _MULTI_DISPATCH_NEEDLE not in text.to_pybytes():
            return
        for row, properties in enumerate(encoded.to_pylist()):
            if _MULTI_DISPATCH_NEEDLE not in properties:
                continue
            message = decode_message(layout.raw.data, int(layout.at[row]))
            for target in targets(message):
                where = self._ranges_of.get((target.topic, target.queue_id))
                if where is not None and target.topic != message.topic:
                    yield row, where


def _rows_by_number(number: Ints, chosen: Mask) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for row in np.flatnonzero(chosen).tolist():
        rows.setdefault(int(number[row]), []).append(row)
    return rows


# -- files, as one task sees them -----------------------------------------------------------------


class LogFiles:
    """The segments of a log that were there when it was opened."""

    def __init__(self, store: Path) -> None:
        self._folder = store / "commitlog"
        files = look(store, lambda: numbered_files(self._folder))
        self._sizes = {start: size for start, size in files if size}
        self._starts = sorted(self._sizes)
        self._open: Segment | None = None

    @property
    def start(self) -> int:
        """The first byte that is still there."""
        return self._starts[0] if self._starts else 0

    def segment_at(self, log_offset: int) -> Segment:
        """The segment that holds a log offset; only the last one asked for is kept open."""
        held = self._open
        if held is None or not held.start <= log_offset < held.start + held.size:
            position = bisect.bisect_right(self._starts, log_offset) - 1
            start = self._starts[position] if position >= 0 else -1
            if start < 0 or log_offset >= start + self._sizes[start]:
                raise DataLossError(
                    f"log offset {log_offset} is in no file of {self._folder} any more"
                )
            path = self._folder / file_name(start)
            try:
                held = self._open = Segment(path, start, self._sizes[start], writable=False)
            except StoreError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    raise DataLossError(f"{path} was deleted while it was to be read") from None
                raise
        return held

    @property
    def end(self) -> int:
        """The end of the last file."""
        return self._starts[-1] + self._sizes[self._starts[-1]] if self._starts else 0

    def next_start(self, log_offset: int) -> int | None:
        """Where the next segment after a log offset starts."""
        position = bisect.bisect_right(self._starts, log_offset)
        return self._starts[position] if position < len(self._starts) else None


class QueueFiles:
    """The queues of a store, each opened when it is asked for."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._folder = store / QUEUES_FOLDER
        self._file_entries = look(store, lambda: queue_file_entries(store))
        self._budget = MapBudget(_QUEUE_MAPS_MAX)

    @cached_property
    def mending(self) -> Mending | None:
        """What repairs wrong entries from the log: of files that are only read, in memory.

        None if the last file of the log is cut off: then it cannot tell what is wrong.
        """
        log = CommitLog(self._store / "commitlog", segment_bytes(self._store), writable=False)
        log.end = LogOffset(LogFiles(self._store).end)
        is_whole = log.segments and log.segments[-1].start + log.segment_bytes == log.end
        return Mending(log, TagsCodes(""), pads=False) if is_whole else None

    def check(self, queue: ConsumeQueue, *offsets: int) -> None:
        """Look at entries that something is decided by; what is wrong is mended."""
        for offset in offsets:
            if self.mending is not None and queue.start <= offset < queue.end:
                self.mending.check(queue, offset)

    def mended(self, queue: ConsumeQueue, offset: int, found: EntryArray) -> EntryArray:
        """Entries of a queue as the log says that they should be, as far as it does."""
        if self.mending is None:
            return found
        while self.mending.mend(queue, offset, len(found)):
            pass
        return np.concatenate([*entries_of(queue, offset, offset + len(found), len(found))])

    def open(self, queue: Queue) -> ConsumeQueue:
        """One queue, as it is now; without entries if it has no files.

        The first file of a new queue may come some time after its first message: see
        `store.queue_files`. So that a queue has none is believed only after a while.
        """
        folder = queue_folder(self._folder, queue.topic, queue.queue_id)

        def opened() -> ConsumeQueue:
            return ConsumeQueue(
                folder,
                queue.topic,
                self._file_entries,
                self._budget,
                writable=False,
            )

        deadline = time.monotonic() + _FIRST_FILE_S
        while not (found := look(self._store, opened)).end and time.monotonic() < deadline:
            time.sleep(_FIRST_FILE_S / 100)
        return found


def entries_of(queue: ConsumeQueue, start: int, end: int, at_once: int) -> Iterator[EntryArray]:
    """The entries from `start` to `end`, so many at once; all of them must be in the queue.

    `FileNotFoundError` if a file of the queue was deleted since it was opened.
    """
    assert queue.start <= start
    assert end <= queue.end
    while start < end:
        count = min(at_once, end - start)
        try:
            parts = [np.frombuffer(raw, ENTRY_DTYPE) for raw in queue.raw_entries(start, count)]
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            raise
        yield np.concatenate(parts) if len(parts) > 1 else parts[0]
        start += count


# -- planning -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A range of a queue, and where in the log it lies."""

    range: QueueRange
    queue: ConsumeQueue
    log_start: int
    log_stop: int
    record_bytes: float


def plan(
    folder: str | Path,
    ranges: Sequence[QueueRange],
    *,
    by: SplitBy | None = None,
    splits_min: int | None = None,
    rows_max: int | None = None,
    fail_on_data_loss: bool = True,
    aborted: AbortedOf = NO_ABORTED,
) -> list[StoreSplit]:
    """Who reads what. `by` is chosen if it is not given; a limit of rows needs splits by queue."""
    store = Path(folder)
    stretches = look(store, lambda: _stretches(store, ranges, fail_on_data_loss))
    if not stretches:
        return []
    wanted = sum(each.record_bytes * each.range.rows for each in stretches)
    start = min(each.log_start for each in stretches)
    stop = max(each.log_stop for each in stretches)
    if by is None:
        is_worth = wanted * _WORTH_SCANNING >= stop - start
        by = "bytes" if is_worth and rows_max is None else "queue"
    found = tuple(each.range for each in stretches)
    if by == "bytes":
        count = max(splits_min or 1, -(-(stop - start) // SPLIT_BYTES_MAX))
        bounds = _record_starts(stretches, start, stop, count)
        return [
            LogSplit(str(store), found, fail_on_data_loss, low, high, _within(aborted, found))
            for low, high in itertools.pairwise(bounds)
        ]
    rows = sum(each.rows for each in found)
    usual_rows = max(1, int(SPLIT_BYTES_MAX / max(1.0, wanted / rows)))
    tasks = split(found, splits_min, min(rows_max or usual_rows, usual_rows))
    return [
        QueueSplit(str(store), tuple(task), fail_on_data_loss, _within(aborted, task))
        for task in tasks
    ]


def _within(aborted: AbortedOf, ranges: Iterable[QueueRange]) -> AbortedOf:
    """What a task needs of it."""
    found: dict[Queue, list[Aborted]] = {}
    for queue, start, end, _ in ranges:
        for each in aborted.get(queue, ()):
            if each.first_offset < end and each.last_offset >= start:
                found.setdefault(queue, []).append(each)
    return found


def _stretches(store: Path, ranges: Sequence[QueueRange], fail: bool) -> list[_Stretch]:
    log_start = LogFiles(store).start
    queues = QueueFiles(store)
    found = []
    for each in ranges:
        if each.rows <= 0:
            continue
        queue = queues.open(each.queue)
        queue.check = queues.mending
        queues.check(queue, queue.start, each.start, min(each.end, queue.end) - 1)
        first = max(each.start, queue.start)
        if first < queue.end and queue.entry(first)[0] < log_start:
            first = queue.first_not_before(lambda entry: entry[0] < log_start)
        first, end = max(first, each.start), min(each.end, queue.end)
        if first > each.start or end < each.end:
            lose(
                f"queue {each.queue.queue_id} of {each.queue.topic} holds {queue.start} to "
                f"{queue.end} in {store}, of which what is before {first} is deleted; {each.start} "
                f"to {each.end} was to be read",
                fail=fail,
            )
        stretch = _stretch(QueueRange(each.queue, first, end), queue) if first < end else None
        if stretch is not None:
            found.append(stretch)
    return found


def _stretch(range_: QueueRange, queue: ConsumeQueue) -> _Stretch | None:
    """Where a range lies in the log; None if all of it stands for messages that are in no log."""
    first = last = None
    sizes: dict[int, int] = {}
    offset, sampled = range_.start, 0
    for entries in entries_of(queue, range_.start, range_.end, _ENTRIES_AT_ONCE):
        real = entries[entries["size"] != PADDING_SIZE]
        if len(real):
            for log, size, _ in real[: _SAMPLED_ENTRIES - sampled].tolist():
                sizes[log] = size
                sampled += 1
            first = first if first is not None else int(real[0]["log"])
            break
        offset += len(entries)
    if first is None:
        return None
    for end in range(range_.end, offset, -_ENTRIES_AT_ONCE):
        (entries,) = entries_of(queue, max(offset, end - _ENTRIES_AT_ONCE), end, _ENTRIES_AT_ONCE)
        real = entries[entries["size"] != PADDING_SIZE]
        if len(real):
            last = int(real[-1]["log"]) + int(real[-1]["size"])
            break
    assert last is not None, "the first entry is one"
    return _Stretch(range_, queue, first, last, sum(sizes.values()) / sampled)


def _record_starts(stretches: Sequence[_Stretch], start: int, stop: int, count: int) -> list[int]:
    """Up to `count + 1` places from `start` to `stop`, about evenly; in between, records start."""
    guides = sorted(stretches, key=lambda each: each.range.rows)[-_GUIDES_MAX:]
    bounds = [start]
    for number in range(1, count):
        target = start + (stop - start) * number // count
        nearest = min(_first_entry(each, target) or stop for each in guides)
        if bounds[-1] < nearest < stop:
            bounds.append(nearest)
    return [*bounds, stop]


def _first_entry(stretch: _Stretch, log_offset: int) -> int | None:
    """Where the first record of a range lies that does not lie before a log offset."""
    offsets = range(stretch.range.start, stretch.range.end)
    while True:
        position = bisect.bisect_left(
            offsets, log_offset, key=lambda at: stretch.queue.entry(at)[0]
        )
        if not stretch.queue.mend_beside(stretch.range.start + position):
            break
    return stretch.queue.entry(offsets[position])[0] if position < len(offsets) else None
