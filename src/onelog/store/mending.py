"""Queue entries that are not what their records say: found when they are read, written anew.

A queue is derived data, and its file can be damaged where the log is not. A wrong size or place
would have a reader skip messages, get some twice, or get those of another topic. So what a read is
about to hand out is held against the log: every size, and of each stretch of records that lie side
by side the first and the last as a whole. As the sizes lead from the one to the other, and each
offset is there once, those between them are the right ones.

What is wrong is looked for in the log, between the nearest entries that are right. Where the log
has no such record any more, and something else is where the entry leads, padding keeps its place.
"""

import logging
import time
from dataclasses import dataclass, field
from struct import Struct

from onelog.errors import OffsetOutOfRangeError, StoreError
from onelog.message import Message
from onelog.names import LIGHT_QUEUE_PREFIX
from onelog.record.decode import check
from onelog.record.entries import ENTRY, PADDING, PADDING_SIZE
from onelog.record.layout import RECORD_BYTES_MIN
from onelog.store.columns import RecordWalk, Stretch, TopicNumbers
from onelog.store.commitlog import CommitLog
from onelog.store.consumequeue import ConsumeQueue, Entry
from onelog.store.damage import scan
from onelog.store.dispatch import TagsCodes, targets

_log = logging.getLogger(__name__)

_SIZE = Struct(">i")
_NEIGHBOURS_MAX = 10_000
"""How far an entry that is right is looked for."""
_HOPELESS_MAX = 10_000
_SHARE = 200
"""What this process wrote itself is checked in one part of so many of the time."""


def occupies(message: Message, topic: str, queue_id: int, offset: int) -> bool:
    """Whether a record belongs at this place of this queue."""
    return any(
        (target.topic, target.queue_id) == (topic, queue_id)
        and target.queue_offset <= offset < target.queue_offset + target.entries
        for target in targets(message)
    )


@dataclass(eq=False)
class Mending:
    """Checks and repairs entries of one store."""

    log: CommitLog
    tags_codes: TagsCodes
    mended: int = 0
    """How many entries were wrong, and are right now."""
    next_check: float = 0.0
    _hopeless: set[tuple[ConsumeQueue, int]] = field(default_factory=set)

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
            if wrong < 0:
                begin, end = queue.checked
                if not begin <= offset <= end:
                    begin = end = offset
                queue.checked = begin, max(end, offset + count)
        return wrong >= 0 and self._mend(queue, wrong)

    def _first_wrong(self, queue: ConsumeQueue, offset: int, count: int) -> int:
        """The first entry that is wrong and could be right; -1 if there is none."""
        log, hopeless = self.log, self._hopeless
        log_start, log_end = int(log.start), int(log.end)
        size_at = _SIZE.unpack_from
        begin = end = 0
        view = memoryview(b"")
        last_at = last_size = run_end = -1
        last: tuple[int, int, int] | None = None
        is_batch = False
        position = offset - 1
        for at, size, _ in queue.entries(offset, count):
            position += 1
            if size == PADDING_SIZE or (at < log_start and position == queue.start):
                continue
            if at == last_at and size == last_size:  # Entries of one inner batch share a record.
                last, is_batch = (position, at, size), True
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
                    is_right = self._is_right(queue, position, at, size)
            if not is_right:
                if (queue, position) not in hopeless:
                    return position
                last_at = run_end = -1
                last = None
                continue
            last_at, last_size, run_end, last = at, size, at + size, (position, at, size)
            is_batch = False
        if last is not None and not self._is_right(queue, *last):
            return last[0]
        return -1

    def _is_right(self, queue: ConsumeQueue, offset: int, at: int, size: int) -> bool:
        """Whether an entry leads to a whole record that says it belongs there; or is hopeless."""
        entry = at, size, 0
        is_right = self._leads_there(queue, offset, entry, in_memory=True)
        return is_right or (queue, offset) in self._hopeless

    def _leads_there(
        self, queue: ConsumeQueue, offset: int, entry: Entry, *, in_memory: bool = False
    ) -> bool:
        at, size, _ = entry
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
        if not isinstance(found, Message) or found.size != size:
            return False
        return occupies(found, queue.topic, queue.queue_id, offset)

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
                queue.replace(offset, ENTRY.pack(*right))
                changed += 1
                _log.warning(
                    "entry %d of queue %d of topic %s led to %d bytes at log offset %d, and its "
                    "record has %d at %d: it is written anew",
                    offset,
                    queue.queue_id,
                    queue.topic,
                    before[1],
                    before[0],
                    right[1],
                    right[0],
                )
            elif before[1] != PADDING_SIZE and not self._leads_there(queue, offset, before):
                if self._leads_astray(queue, before):
                    queue.replace(offset, PADDING)
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
