"""Replay: what a log says belongs into queues and index, many records at a time.

The messages of a queue lie in the log in the order of their offsets, each one more than the last.
Where a record breaks that order, the others tell whether it is to be believed:

    57 58 59 [1024] 61 62     what follows goes on as if it were not there: its offset is damaged
    57 58 59   63 64 65       the log has lost some: the gap is padded, the others keep their places
    57 58 59    0  1  2       the topic was made anew: what was there before goes

A single record that nothing follows is believed only where damage explains the gap before it. So
one wrong bit costs one message, and padding is never longer than what the log confirms.

A record that says that its topic was deleted (`dispatch.deletion_of`) takes everything before it
out of the topic's queues. RocketMQ writes none, and there the offsets that begin again have to do.

Invariant: replaying what was appended gives the queues and the index that appending gave.
"""

import bisect
import itertools
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onelog.errors import MessageError
from onelog.message import INNER_COUNT_MAX
from onelog.record.columns import Ints
from onelog.record.entries import ENTRY_BYTES, ENTRY_DTYPE
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.damage import Damage, Damages
from onelog.store.keyindex import KeyIndex
from onelog.store.queues import Queues
from onelog.store.walk import QueueEntryColumns, Stretch, TopicNumbers

_ROWS_MAX = 1 << 19
"""Entries that are collected before they are written: a queue is then written to once."""


class _Streak(NamedTuple):
    """Entries with consecutive offsets, in the order of the log."""

    offset: int
    entries: bytes
    first_log: int
    last_log: int
    last_size: int

    @property
    def end(self) -> int:
        return self.offset + len(self.entries) // ENTRY_BYTES

    @property
    def is_single(self) -> bool:
        """Whether it is all of one record, which nothing confirms."""
        return self.first_log == self.last_log


class _QueueWriter:
    """One queue, and how far it is written."""

    __slots__ = ("held", "known", "last_log", "queue", "replay")

    def __init__(self, queue: ConsumeQueue, replay: "Replay") -> None:
        self.queue = queue
        self.replay = replay
        # The queue's end says what comes next, unless its beginning may have been deleted.
        self.known = queue.end > queue.start or not replay.may_begin_anywhere
        self.last_log = 0
        self.held: _Streak | None = None
        """A record that is out of order: what follows will tell."""

    def put(self, entries: bytes, last_log: int) -> None:
        """Enter what goes on where the queue ends."""
        self.queue.reserve(len(entries) // ENTRY_BYTES)
        self.queue.put(entries)
        self.replay.touched.add(self.queue)
        self.last_log = last_log
        self.known = True

    def take(self, streak: _Streak) -> None:
        """Enter entries, or hold it back until there is more to go by."""
        held = self.held
        confirmed = not streak.is_single
        if held is not None:
            if streak.offset == held.end:
                self.held = None
                self.replay.holding.discard(self)
                streak = streak._replace(
                    offset=held.offset,
                    entries=held.entries + streak.entries,
                    first_log=held.first_log,
                )
                confirmed = True
            else:
                # What the one that is left out would have been is missing.
                confirmed = confirmed or streak.offset == self.queue.end + held.end - held.offset
                self.settle(streak.offset)
        end = self.queue.end
        if confirmed or (streak.offset == end and (self.known or not end)):
            self._enter(streak)
        else:
            self.held = streak
            self.replay.holding.add(self)

    def settle(self, following: int | None) -> None:
        """Decide about what is held back, by the offset that follows it in the log, if one does."""
        held, self.held = self.held, None
        if held is None:
            return
        self.replay.holding.discard(self)
        end = self.queue.end
        if not self.known:
            believed = following is None or following > held.offset
        elif following in (end, end + held.end - held.offset):
            believed = False
        elif held.offset > end:
            believed = self.replay.damaged_between(self.last_log, held.first_log) > 0
        else:
            # One wrong bit turns a power of two into zero.
            believed = held.offset == 0 and (following is not None or end.bit_count() > 1)
        if believed:
            self._enter(held)
        else:
            self.replay.doubt(self.queue, held, end)

    def _enter(self, streak: _Streak) -> None:
        queue = self.queue
        gap = streak.offset - queue.end
        if gap < 0:
            queue.back_to(streak.offset)
        elif gap and self.known:
            limit = INNER_COUNT_MAX + self.replay.damaged_between(self.last_log, streak.first_log)
            if gap > limit:
                self.replay.doubt(queue, streak, queue.end)
                return
            self.replay.entries_missing += gap
        if streak.offset > queue.end:
            queue.pad_to(streak.offset)
        self.put(streak.entries, streak.last_log)


@dataclass(slots=True)
class Replay:
    """Enters records of the log into the queues and the index, from a place in the log on."""

    queues: Queues
    index: KeyIndex
    topics: TopicNumbers
    damages: Damages
    may_begin_anywhere: bool
    """Whether the first messages of a queue may have gone with the log's."""
    entries_missing: int = 0
    records: int = 0
    touched: set[ConsumeQueue] = field(default_factory=set)
    """Queues that got entries; the caller may clear it."""
    holding: set["_QueueWriter"] = field(default_factory=set)
    """Queues for which a record is held back."""
    _cursors: dict[int, "_QueueWriter"] = field(default_factory=dict)
    _collected: list[QueueEntryColumns] = field(default_factory=list)
    _rows: int = 0
    _damaged_at: list[int] = field(default_factory=list)
    _damaged_total: list[int] = field(default_factory=lambda: [0])

    def enter(self, stretch: Stretch) -> None:
        """Take the next records of the log."""
        self.records += len(stretch.log)
        rows = stretch.key_row
        self.index.enter(stretch.key_hash, stretch.log[rows], stretch.store_ms[rows])
        self._collected.append(stretch.entries)
        self._rows += len(stretch.entries.log)
        for topic, log_offset in stretch.deleted:
            self._forget(topic, log_offset)
        if self._rows >= _ROWS_MAX:
            self.write()

    def skip(self, damage: Damage) -> None:
        self.damages.add(damage)
        self._damaged_at.append(damage.start)
        self._damaged_total.append(self._damaged_total[-1] + damage.size)

    def damaged_between(self, first_log: int, last_log: int) -> int:
        """How many bytes between two records are damaged."""
        low, high = (bisect.bisect_left(self._damaged_at, at) for at in (first_log, last_log))
        return self._damaged_total[high] - self._damaged_total[low]

    def doubt(self, queue: ConsumeQueue, streak: _Streak, expected: int) -> None:
        """Leave a record, or several, out of its queue."""
        reason = (
            f"says that it is message {streak.offset} of queue {queue.queue_id} of topic "
            f"{queue.topic!r}, where {expected} is next"
        )
        self.damages.add(Damage(streak.first_log, streak.last_log + streak.last_size, reason))

    def finish(self) -> None:
        """The log has ended: write what is left."""
        self.write()
        for cursor in list(self.holding):
            cursor.settle(None)

    def held_from(self) -> int | None:
        """Where in the log the first record lies that is held back, if any is."""
        held = [each.held.first_log for each in self.holding if each.held is not None]
        return min(held, default=None)

    def _forget(self, topic: str, log_offset: int) -> None:
        """A topic was deleted: take out what it had before that."""
        number = self.topics.of(topic)
        for row, entries in enumerate(self._collected):
            keep = (entries.queue >> 32 != number) | (entries.log > log_offset)
            if not keep.all():
                columns = (entries.queue, entries.offset, entries.log, entries.size, entries.code)
                self._collected[row] = QueueEntryColumns(*(column[keep] for column in columns))
        for queue in [each for each in self._cursors if each >> 32 == number]:
            self.holding.discard(self._cursors.pop(queue))
        if topic in self.queues.by_topic:
            self.queues.delete_topic(topic)
        else:
            # Its files went before a crash, and where its queues ended may still be noted.
            self.queues.deleted.add(topic)

    def write(self) -> None:
        """Enter what was collected, queue by queue."""
        if not any(len(entries.log) for entries in self._collected):
            self._collected = []
            return
        queue, offset, log, size, code = (
            np.concatenate([getattr(entries, name) for entries in self._collected])
            for name in ("queue", "offset", "log", "size", "code")
        )
        self._collected, self._rows = [], 0
        if not len(queue):
            return  # Records that are in no queue, or of a topic that was deleted.
        order = np.argsort(queue, kind="stable")
        queue, offset, log, size = queue[order], offset[order], log[order], size[order]
        packed = np.empty(len(order), ENTRY_DTYPE)
        packed["log"], packed["size"], packed["code"] = log, size, code[order]
        changes = np.diff(queue) != 0
        cuts = np.flatnonzero(changes | (np.diff(offset) != 1)) + 1
        self._write_streaks(queue, offset, log, size, packed, [0, *cuts.tolist(), len(order)])

    def _write_streaks(
        self,
        queue: Ints,
        offset: Ints,
        log: Ints,
        size: Ints,
        packed: npt.NDArray[np.void],
        cuts: list[int],
    ) -> None:
        entries = packed.tobytes()
        starts, ends = np.array(cuts[:-1], np.int64), np.array(cuts[1:], np.int64) - 1
        rows = zip(
            itertools.pairwise(cuts),
            queue[starts].tolist(),
            offset[starts].tolist(),
            log[starts].tolist(),
            log[ends].tolist(),
            size[ends].tolist(),
            strict=True,
        )
        for (start, end), number, first, first_log, last_log, last_size in rows:
            cursor = self._cursors.get(number)
            if cursor is None:
                topic = self.topics.names[number >> 32]
                try:
                    found = self.queues.get(topic, number & 0xFFFFFFFF)
                except MessageError as error:
                    self.damages.add(Damage(first_log, last_log + last_size, str(error)))
                    continue
                cursor = self._cursors[number] = _QueueWriter(found, self)
            part = entries[start * ENTRY_BYTES : end * ENTRY_BYTES]
            if cursor.known and cursor.held is None and first == cursor.queue.end:
                cursor.put(part, last_log)
            else:
                cursor.take(_Streak(first, part, first_log, last_log, last_size))


def only_of(stretch: Stretch, topics: TopicNumbers, names: Collection[str]) -> Stretch:
    """What of a stretch belongs into the queues of some topics; keys are left out."""
    numbers = [topics.of(name) for name in names]
    entries = stretch.entries
    keep = np.isin(entries.queue >> 32, numbers)
    columns = (entries.queue, entries.offset, entries.log, entries.size, entries.code)
    return replace(
        stretch,
        entries=QueueEntryColumns(*(column[keep] for column in columns)),
        key_row=stretch.key_row[:0],
        key_hash=stretch.key_hash[:0],
        deleted=[each for each in stretch.deleted if each[0] in names],
    )
