"""Queue entries that are not what their records say: found when they are read, written anew.

A queue is derived data, and its file can be damaged where the log is not. A wrong size or place
would have a reader skip messages, get some twice, or get those of another topic. So what a read is
about to hand out is held against the log: every size, and of each stretch of records that lie side
by side the first and the last as a whole. As the sizes lead from the one to the other, and each
offset is there once, those between them are the right ones. A search is held against the log where
it ended (`check`), for there it went by a wrong entry if it met one. What a filter by tags passes
over is so once, as far as the log is in memory (`mend_codes`).

What is wrong is looked for in the log, between the nearest entries that are right. Where the log
has no such record any more, and something else is where the entry leads, padding keeps its place.
"""

import logging
import time
from dataclasses import dataclass, field
from struct import Struct

from onelog.errors import OffsetOutOfRangeError, StoreError
from onelog.message import Message
from onelog.names import COMPACTED_TOPIC, LIGHT_QUEUE_PREFIX, SCHEDULE_TOPIC
from onelog.record.columns import Ints
from onelog.record.decode import check
from onelog.record.dispatch import TagsCodes, targets
from onelog.record.entries import ENTRY, PADDING, PADDING_SIZE
from onelog.record.forms import FORM_CODE, FORM_MASK
from onelog.record.layout import RECORD_BYTES_MIN
from onelog.store.commitlog import CommitLog
from onelog.store.consumequeue import ConsumeQueue, Entry
from onelog.store.damage import scan
from onelog.store.walk import RecordWalk, Stretch, TopicNumbers

_log = logging.getLogger(__name__)

_SIZE = Struct(">i")
_NEIGHBOURS_MAX = 10_000
"""How far an entry that is right is looked for."""
_HOPELESS_MAX = 10_000
_RIGHT_MAX = 10_000
_PADDING = ENTRY.unpack(PADDING)
_SHARE = 200
"""What this process wrote itself is checked in one part of so many of the time."""


def occupies(message: Message, topic: str, queue_id: int, offset: int) -> bool:
    """Whether a record belongs at this place of this queue."""
    return any(
        (target.topic, target.queue_id) == (topic, queue_id)
        and target.queue_offset <= offset < target.queue_offset + target.entries
        for target in targets(message)
    )


def _joined(known: tuple[int, int], begin: int, end: int) -> tuple[int, int]:
    """A range of entries that was looked at, with what was looked at before if they touch."""
    first, last = known
    return (first, max(last, end)) if first <= begin <= last else (begin, end)


@dataclass(eq=False)
class Mending:
    """Checks and repairs entries of one store."""

    log: CommitLog
    tags_codes: TagsCodes
    pads: bool = True
    """Whether what leads astray, and is not in the log, becomes padding."""
    dirty: set[ConsumeQueue] = field(default_factory=set)
    """Gets the queues whose entries were written anew, for whoever makes them durable."""
    mended: int = 0
    """How many entries were wrong, and are right now."""
    next_check: float = 0.0
    _hopeless: set[tuple[ConsumeQueue, int]] = field(default_factory=set)
    _right: set[tuple[ConsumeQueue, int]] = field(default_factory=set)
    """Entries where searches ended."""

    def mend(self, queue: ConsumeQueue, offset: int, count: int, *, surely: bool = False) -> bool:
        """Look at entries whose records are in memory; whether some were wrong, and are mended.

        What this process wrote itself is not always looked at, unless it is wanted `surely`.
        """
        if offset >= queue.opened_end and not surely:
            began = time.perf_counter()
            if began < self.next_check:
                return False
            wrong = self._first_wrong(queue, offset, count)
            ended = time.perf_counter()
            self.next_check = ended + _SHARE * (ended - began)
        else:
            wrong = self._first_wrong(queue, offset, count)
        for _ in range(count):
            if wrong < 0:
                break
            if self._mend(queue, wrong):
                return True
            wrong = self._first_wrong(queue, offset, count)  # But for those that are hopeless.
        queue.checked = _joined(queue.checked, offset, offset + count)
        return False

    def check(self, queue: ConsumeQueue, offset: int) -> bool:
        """Look at one entry, wherever its record is; whether it was wrong, and is mended.

        What leads to before the log was deleted, unless the entry before it says otherwise.
        """
        if (queue, offset) in self._right or (queue, offset) in self._hopeless:
            return False
        raw = queue.read_entries(offset, 1)
        if not raw or raw == PADDING:
            return False
        entry: Entry = ENTRY.unpack(raw)
        is_right = self._leads_there(queue, offset, entry)
        if not is_right and 0 <= entry[0] < self.log.start:
            is_right = offset == queue.start or queue.read_entry(offset - 1)[0] < self.log.start
        if not is_right:
            return self._mend(queue, offset)
        if len(self._right) >= _RIGHT_MAX:
            self._right.clear()
        self._right.add((queue, offset))
        return False

    def leads_there(self, queue: ConsumeQueue, offset: int) -> bool:
        """Whether an entry leads to the record that belongs there."""
        return self._leads_there(queue, offset, queue.entry(offset))

    def is_outside(self, log_offsets: Ints) -> bool:
        """Whether one of some log offsets is none."""
        return bool(((log_offsets < 0) | (log_offsets >= int(self.log.end))).any())

    def end_in_log(self, queue: ConsumeQueue, first: int, last: int, log_end: int) -> int:
        """One past the last of some entries whose record the log has before `log_end`."""
        before = queue.entry(first - 1) if first > queue.start else (0, 0, 0)
        begin = max(before[0], int(self.log.start))
        return max(self._in_log(queue, first, last, begin, log_end), default=first - 1) + 1

    def mend_passed_over(
        self, queue: ConsumeQueue, offset: int, count: int, begin: int, end: int
    ) -> bool:
        """Look at each of some entries by itself, tags code and all; whether to look again.

        For who goes by the entries alone, and leaves the records of most of them unread. The log
        is in memory from `begin` to `end`.
        """
        for position, entry in enumerate(queue.entries(offset, count), offset):
            at, size, _ = entry
            if begin <= at and RECORD_BYTES_MIN <= size <= end - at:
                is_right = entry == _PADDING or self._is_right(queue, position, entry)
            else:
                is_right = not self.check(queue, position)
            if not is_right:
                self._mend(queue, position)
                return True
        queue.passed_over = _joined(queue.passed_over, offset, offset + count)
        return False

    def _has_code(self, queue: ConsumeQueue, found: Message, code: int) -> bool:
        """Whether a tags code is that of the record.

        When a delayed message is due was decided by the levels of its time. RocketMQ may keep more
        elsewhere, and its code then says where.
        """
        if queue.topic == SCHEDULE_TOPIC or code < -(1 << 31):
            return True
        if found.sys_flag & FORM_MASK and found.topic != COMPACTED_TOPIC:
            return code == FORM_CODE
        return code == self.tags_codes.of(found.topic, found.properties, found.store_ms)

    def _first_wrong(self, queue: ConsumeQueue, offset: int, count: int) -> int:
        """The first entry that is wrong and could be right; -1 if there is none."""
        log, hopeless = self.log, self._hopeless
        log_start, log_end = int(log.start), int(log.end)
        size_at = _SIZE.unpack_from
        begin = end = 0
        view = memoryview(b"")
        last_at = last_size = run_end = -1
        last: tuple[int, Entry] | None = None
        is_batch = False
        position = offset - 1
        for entry in queue.entries(offset, count):
            at, size, _ = entry
            position += 1
            if (size == PADDING_SIZE and not at) or (
                0 <= at < log_start and position == queue.start
            ):
                continue
            if at == last_at and size == last_size:  # Entries of one inner batch share a record.
                last, is_batch = (position, entry), True
                continue
            if (
                (at != run_end or is_batch)
                and last is not None
                and not self._is_right(queue, *last)
            ):
                return last[0]
            is_right = size >= RECORD_BYTES_MIN and log_start <= at <= log_end - size
            if is_right:
                if not begin <= at < end:
                    segment = log.segment_at(at)
                    begin, end, view = segment.start, segment.start + segment.size, segment.view
                is_right = at + size <= end and size_at(view, at - begin)[0] == size
                if is_right and at != run_end:
                    is_right = self._is_right(queue, position, entry)
            if not is_right:
                if (queue, position) not in hopeless:
                    return position
                last_at = run_end = -1
                last = None
                continue
            last_at, last_size, run_end, last = at, size, at + size, (position, entry)
            is_batch = False
        if last is not None and not self._is_right(queue, *last):
            return last[0]
        return -1

    def _is_right(self, queue: ConsumeQueue, offset: int, entry: Entry) -> bool:
        """Whether an entry leads to a whole record that says it belongs there; or is hopeless."""
        is_right = self._leads_there(queue, offset, entry, in_memory=True)
        return is_right or (queue, offset) in self._hopeless

    def _leads_there(
        self, queue: ConsumeQueue, offset: int, entry: Entry, *, in_memory: bool = False
    ) -> bool:
        at, size, code = entry
        if size < RECORD_BYTES_MIN or not self.log.start <= at <= self.log.end - size:
            return False
        try:
            if in_memory:
                segment = self.log.segment_at(at)
                inside = at - segment.start
                found = check(segment.view, inside, at, room=segment.size - inside)
            else:
                found = self.log.look_at(at)
        except (OffsetOutOfRangeError, StoreError):
            return False
        return (
            isinstance(found, Message)
            and found.size == size
            and self._has_code(queue, found, code)
            and occupies(found, queue.topic, queue.queue_id, offset)
        )

    def _leads_astray(self, queue: ConsumeQueue, entry: Entry) -> bool:
        """Whether nothing of the queue's own can be where an entry leads to."""
        at, size, _ = entry
        if size < RECORD_BYTES_MIN or not self.log.start <= at <= self.log.end - size:
            return True
        try:
            found = self.log.look_at(at)
            claimed = _SIZE.unpack(self.log.read_cold(at, _SIZE.size))[0]
        except (OffsetOutOfRangeError, StoreError):
            return False  # The disk may be able to read it another time.
        if isinstance(found, Message):
            return found.topic != queue.topic and not queue.topic.startswith(LIGHT_QUEUE_PREFIX)
        return bool(claimed != size)

    def _mend(self, queue: ConsumeQueue, wrong: int) -> bool:
        """Write entries anew, from this one to the next that is right; whether that changed one."""
        first, last = wrong, wrong + 1
        begin, end = int(self.log.start), int(self.log.end)
        for offset in range(wrong - 1, max(queue.start, wrong - _NEIGHBOURS_MAX) - 1, -1):
            if self._leads_there(queue, offset, entry := queue.entry(offset)):
                begin = entry[0]  # It may be a batch that has the next one, too.
                break
            first = offset
        for offset in range(wrong + 1, min(queue.end, wrong + _NEIGHBOURS_MAX)):
            if self._leads_there(queue, offset, entry := queue.entry(offset)):
                end = entry[0] + entry[1]
                break
            last = offset + 1
        found = self._in_log(queue, first, last, begin, end)
        changed = 0
        for offset in range(first, last):
            before, right = queue.entry(offset), found.get(offset)
            if right is not None and right != before:
                self._replace(queue, offset, ENTRY.pack(*right))
                changed += 1
                _log.warning(
                    "entry %d of queue %d of topic %s led to %d bytes at log offset %d with tags "
                    "code %d, and its record has %d at %d with %d: it is written anew",
                    offset,
                    queue.queue_id,
                    queue.topic,
                    before[1],
                    before[0],
                    before[2],
                    right[1],
                    right[0],
                    right[2],
                )
            elif before != _PADDING and not self._leads_there(queue, offset, before):
                if self.pads and self._leads_astray(queue, before):
                    self._replace(queue, offset, PADDING)
                    changed += 1
                if len(self._hopeless) >= _HOPELESS_MAX:
                    self._hopeless.clear()
                self._hopeless.add((queue, offset))
                _log.error(
                    "entry %d of queue %d of topic %s leads to no whole record of that queue, and "
                    "the log has none: the message is lost",
                    offset,
                    queue.queue_id,
                    queue.topic,
                )
        self.mended += changed
        return changed > 0

    def _replace(self, queue: ConsumeQueue, offset: int, entry: bytes) -> None:
        queue.replace(offset, entry)
        self._right.discard((queue, offset))
        queue.dirty = True
        self.dirty.add(queue)

    def _in_log(
        self, queue: ConsumeQueue, first: int, last: int, begin: int, end: int
    ) -> dict[int, Entry]:
        """The entries from `first` to `last`, by what the log has in a stretch."""
        topics = TopicNumbers()
        number = (topics.of(queue.topic) << 32) + queue.queue_id
        found: dict[int, Entry] = {}
        for part in scan(self.log.segments, begin, RecordWalk(self.tags_codes, topics), end):
            if not isinstance(part, Stretch):
                continue
            if any(topic == queue.topic for topic, _ in part.deleted):
                found.clear()  # What was before is of another topic of that name.
            places = part.entries
            rows = (places.queue == number) & (places.offset >= first) & (places.offset < last)
            offsets, logs = places.offset[rows].tolist(), places.log[rows].tolist()
            sizes, codes = places.size[rows].tolist(), places.code[rows].tolist()
            found.update(zip(offsets, zip(logs, sizes, codes, strict=True), strict=True))
        return found
