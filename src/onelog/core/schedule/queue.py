"""The queue of timed messages, as the timers read it: many at a time, and only the end of each.

Nearly all records in it are scheduled messages that end with TIMER_OUT_MS (`records`). Where
the records end is in the queue's entries, so the due times of thousands of them are one gathering
of bytes out of the log, and a product with the powers of ten. What does not end like that is
`unclear`, and has to be read one by one.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from onelog.core.schedule import records as timed_messages
from onelog.core.schedule.progress import Numbers
from onelog.core.schedule.records import TAIL_BYTES
from onelog.core.schedule.sorted_files import Columns
from onelog.errors import (
    MessageError,
    OffsetOutOfRangeError,
    OnelogError,
    StoreBusyError,
    StoreError,
)
from onelog.message import Message, property_value
from onelog.names import TIMER_TOPIC
from onelog.record.decode import decode_message
from onelog.record.entries import ENTRY_DTYPE, PADDING_SIZE
from onelog.record.layout import CRC_PROPERTY_BYTES
from onelog.store.consumequeue import Entry
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

_Made = TypeVar("_Made")
_HEAD = np.frombuffer(timed_messages.TAIL_HEAD, np.uint8)
_DIGITS = slice(len(_HEAD), TAIL_BYTES - 1)
_POWERS = 10 ** np.arange(TAIL_BYTES - 2 - len(_HEAD), -1, -1, dtype=np.int64)
_TAIL = np.arange(-TAIL_BYTES, 0)
_WARM_BYTES = 64 << 20
"""How close to the log's end records are in the page cache anyway."""


class DueBatch(NamedTuple):
    """Some messages: the plain ones, the others, and where they end in queue and log."""

    plain: Columns
    unclear: list[int]
    end: int
    last_at: int


class TimerQueue:
    """Reads the one queue of the timer topic."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._behind_tail = CRC_PROPERTY_BYTES if store.config.record_crc else 0

    @property
    def begin(self) -> int:
        """The first message that is still there."""
        return int(self._store.min_offset(TIMER_TOPIC, 0))

    @property
    def end(self) -> int:
        """The queue offset of the next message."""
        return int(self._store.max_offset(TIMER_TOPIC, 0))

    def log_offset_of(self, offset: int) -> int:
        """Where in the log a message is; -1 if it is not there."""
        queue = self._store.queue_table.find(TIMER_TOPIC, 0)
        if queue is None or not queue.start <= offset < queue.end:
            return -1
        return queue.entry(offset)[0]

    def message(self, offset: int) -> Message:
        queue = self._store.queue_table.find(TIMER_TOPIC, 0)
        if queue is None or not queue.start <= offset < queue.end:
            raise OffsetOutOfRangeError("retention deleted it before it was due")
        entry: Entry | None = queue.entry(offset)
        if offset < queue.opened_end:  # It may be wrong.
            entry = self._store.entry_at(TIMER_TOPIC, 0, offset)
        if entry is None or entry[1] == PADDING_SIZE:
            raise OffsetOutOfRangeError("it was lost to damage of the log")
        return decode_message(self._store.read_record(*entry[:2]))

    def made_of(self, offset: int, make: Callable[[Message], _Made]) -> _Made | None:
        """What is made of a message; None, and that is said, if it is no use."""
        try:
            return make(self.message(offset))
        except StoreBusyError:
            raise  # It is there, and can be read a moment later.
        except (OffsetOutOfRangeError, MessageError, StoreError) as error:
            log.error("the timed message at queue offset %d is dropped: %s", offset, error)
            return None

    def read(self, begin: int, count_max: int) -> DueBatch:
        """Messages from a queue offset on, of which there must be some."""
        queue = self._store.queue_table.find(TIMER_TOPIC, 0)
        assert queue is not None
        limit = min(begin + count_max, queue.end)
        first = queue.next_real(begin, limit)
        if first < limit:
            with contextlib.suppress(OffsetOutOfRangeError):
                last = queue.entry(queue.real_before(limit))
                first_at, end_at = queue.entry(first)[0], last[0] + last[1]
                if self._store.is_warm(first_at, max(end_at - first_at, 1)):
                    self._store.mend_stretch(TIMER_TOPIC, 0, begin, begin + count_max)
        raw = b"".join(queue.raw_entries(begin, count_max))
        entries = np.frombuffer(raw, ENTRY_DTYPE)
        end, last_at = begin + len(entries), int(entries["log"][-1])
        is_there = entries["size"] != PADDING_SIZE
        offsets, entries = np.arange(begin, end)[is_there], entries[is_there]
        at = entries["log"].astype(np.int64)
        tails = self._tails(at, at + entries["size"] - self._behind_tail)
        digits = tails[:, _DIGITS] - ord("0")  # Unsigned: what is no digit is over 9.
        is_plain = (
            (tails[:, : len(_HEAD)] == _HEAD).all(axis=1)
            & (digits <= 9).all(axis=1)
            & (tails[:, -1] == 2)
        )
        dues = digits[is_plain].astype(np.int64) @ _POWERS
        return DueBatch(
            Columns(dues, offsets[is_plain]),
            offsets[~is_plain].tolist(),
            end,
            last_at,
        )

    def _tails(self, at: Numbers, ends: Numbers) -> "np.typing.NDArray[np.uint8]":
        """The last bytes of the properties of records, one row for each; zeros if unreadable."""
        log = self._store.log
        tails = np.zeros((len(at), TAIL_BYTES), np.uint8)
        begin = 0
        while begin < len(at):
            segment = log.segment_at(int(at[begin]))
            end = int(np.searchsorted(at, segment.start + segment.size))
            span = int(ends[end - 1] - at[begin])
            if self._store.is_warm(int(at[begin]), span):
                view = np.frombuffer(segment.view, np.uint8)
                tails[begin:end] = view[(ends[begin:end] - segment.start)[:, None] + _TAIL]
            else:
                for row in range(begin, end):
                    with contextlib.suppress(StoreError):  # It is told when it is looked at.
                        tail = log.read_cold(int(ends[row]) - TAIL_BYTES, TAIL_BYTES)
                        tails[row] = np.frombuffer(tail, np.uint8)
            begin = end
        return tails

    def topic_of(self, offset: int) -> str | None:
        """The topic that a message is for, or None if it is no use; for a worker."""
        queue = self._store.queue_table.find(TIMER_TOPIC, 0)
        if queue is None or not queue.start <= offset < queue.end:
            return None
        at, size, _ = queue.read_entry(offset)
        try:
            message = decode_message(memoryview(self._store.read_cold(at, size)))
        except OnelogError as error:
            log.warning("the timed message at %d in the log cannot be read: %s", at, error)
            return None
        return property_value(message.properties, timed_messages.REAL_TOPIC)

    def cold_ranges(self, offsets: list[int], count_max: int) -> list[tuple[int, int]]:
        """Where in the log those of the messages are that may have to be read from disk."""
        store = self._store
        queue = store.queue_table.find(TIMER_TOPIC, 0)
        warm_from = store.log_end - _WARM_BYTES
        if queue is None or warm_from <= store.log_min:
            return []
        cold_end = queue.first_not_before(lambda entry: entry[0] < warm_from)
        cold = [offset for offset in offsets if queue.start <= offset < cold_end]
        return [queue.entry(offset)[:2] for offset in cold[:count_max]]
