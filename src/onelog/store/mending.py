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
Padding may itself be what damage left: it is looked into once.

A search of a long stretch of the log is nothing for the event loop: who reads there says that it
can come `later`, and gets a `SearchNeededError`. Whoever brings the log into memory for him (a
worker) makes the searches (`search`), and the next read finds what they found.
"""

import bisect
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from onelog.errors import OffsetOutOfRangeError, StoreError
from onelog.message import Message
from onelog.names import COMPACTED_TOPIC, LIGHT_QUEUE_PREFIX, SCHEDULE_TOPIC
from onelog.record.columns import Ints
from onelog.record.decode import check
from onelog.record.dispatch import TagsCodes, targets
from onelog.record.entries import ENTRY, ENTRY_BYTES, ENTRY_DTYPE, PADDING, PADDING_SIZE
from onelog.record.forms import FORM_CODE, FORM_MASK
from onelog.record.layout import RECORD_BYTES_MIN
from onelog.store.commitlog import CommitLog
from onelog.store.consumequeue import ConsumeQueue, Entry
from onelog.store.damage import Damage, scan
from onelog.store.walk import RecordWalk, Stretch, TopicNumbers

if TYPE_CHECKING:
    from onelog.store.queue_ends import QueueEnd

_log = logging.getLogger(__name__)

_SIZE = Struct(">i")
_NEIGHBOURS_MAX = 10_000
"""How far an entry that is right is looked for."""
_LOST_MAX = 10_000
_NEAR = 64
_SEARCHED_AT_ONCE_BYTES = 256 << 10
"""How far from an entry, and how much of the log, is searched where others wait."""
_SEARCHES_MAX = 100
_PADDING_LOOK = 4_096
_RUNS_LOOK = 1_000
"""Of so many entries each is looked at."""
_ENTRY_WORDS = ENTRY_BYTES // 4
_RIGHT_MAX = 10_000
_PADDING = ENTRY.unpack(PADDING)
_SHARE, _SAMPLE = 200, 1_000
"""What this process wrote itself is checked in one part of so many of the time, and so many entries
then."""


def occupies(message: Message, topic: str, queue_id: int, offset: int) -> bool:
    """Whether a record belongs at this place of this queue."""
    return any(
        (target.topic, target.queue_id) == (topic, queue_id)
        and target.queue_offset <= offset < target.queue_offset + target.entries
        for target in targets(message)
    )


def _ends_of_runs(queue: ConsumeQueue, offset: int, count: int) -> Iterator[tuple[int, Entry]]:
    """Some entries, but of those that are alike the first and the last: a batch may have a million.

    Of few entries all.
    """
    if count <= _RUNS_LOOK:
        yield from enumerate(queue.entries(offset, count), offset)
        return
    for raw in queue.raw_entries(offset, count):
        words = np.frombuffer(raw, np.int32)
        changed = np.flatnonzero(words[_ENTRY_WORDS:] != words[:-_ENTRY_WORDS]) // _ENTRY_WORDS
        lasts = np.append(changed, len(words) // _ENTRY_WORDS - 1)
        for number in np.unique(np.concatenate(([0], changed + 1, lasts))).tolist():
            yield offset + number, ENTRY.unpack_from(raw, number * ENTRY_BYTES)
        offset += len(raw) // ENTRY_BYTES


class SearchNeededError(Exception):
    """A stretch of the log has to be searched first, by somebody who has the time."""

    def __init__(self, log_offset: int) -> None:
        super().__init__(f"the log has to be searched from {log_offset} on")
        self.log_offset = log_offset


class _Search(NamedTuple):
    """For the entries from `first` to `last`, from one place in the log to another."""

    first: int
    last: int
    begin: int
    end: int
    is_whole: bool
    """Whether the entries beside them are right, or there are none."""


_Found = dict[int, Entry]


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
    damage: Sequence[Damage] = ()
    """What recovery left out of the queues: their padding there is right."""
    mended: int = 0
    """How many entries were wrong, and are right now."""
    next_check: float = 0.0
    _lost: dict[ConsumeQueue, list[tuple[int, int]]] = field(default_factory=dict)
    """Entries that the log has no record for, from one to before another, in order."""
    _wanted: dict[tuple[ConsumeQueue, int], None] = field(default_factory=dict)
    _searched: dict[tuple[ConsumeQueue, int], tuple[_Search, _Found]] = field(default_factory=dict)
    """What was found for wrong entries."""
    _right: set[tuple[ConsumeQueue, int]] = field(default_factory=set)
    """Entries where searches ended."""

    def mend(
        self,
        queue: ConsumeQueue,
        offset: int,
        count: int,
        *,
        surely: bool = False,
        later: bool = False,
    ) -> bool:
        """Look at entries whose records are in memory; whether some were wrong, and are mended.

        What this process wrote itself is not always looked at, unless it is wanted `surely`.
        `SearchNeededError` if that takes long, and may be done `later`.
        """
        if offset >= queue.opened_end and not surely:
            began = time.perf_counter()
            if began < self.next_check:
                return False
            count = min(count, _SAMPLE)
            wrong = self._first_wrong(queue, offset, count)
            ended = time.perf_counter()
            self.next_check = ended + _SHARE * (ended - began)
        else:
            wrong = self._first_wrong(queue, offset, count)
        for _ in range(count):
            if wrong < 0:
                break
            if self._mend(queue, wrong, later):
                return True
            wrong = self._first_wrong(queue, offset, count)  # But for those that are lost.
        queue.checked = _joined(queue.checked, offset, offset + count)
        return False

    def mend_padding(self, queue: ConsumeQueue, offset: int, end: int, later: bool) -> bool:
        """Look into the padding that somebody is about to pass over."""
        while offset < end:
            if (known := self._lost_until(queue, offset)) > offset:
                offset = known
                continue
            count = min(end - offset, _PADDING_LOOK)
            rows = np.frombuffer(queue.read_entries(offset, count), ENTRY_DTYPE)
            padded = np.flatnonzero((rows["size"] == PADDING_SIZE) & (rows["log"] == 0))
            if not len(padded):
                offset += count
            elif padded[0]:
                offset += int(padded[0])
            elif self._mend(queue, offset, later):
                return True
            elif self._lost_until(queue, offset) == offset:
                break
        return False

    def check(self, queue: ConsumeQueue, offset: int, *, later: bool = False) -> bool:
        """Look at one entry, wherever its record is; whether it was wrong, and is mended.

        What leads to before the log was deleted, unless the entry before it says otherwise.
        """
        if (queue, offset) in self._right or self._lost_until(queue, offset) > offset:
            return False
        raw = queue.read_entries(offset, 1)
        if not raw:
            return False
        entry: Entry = ENTRY.unpack(raw)
        is_right = self._leads_there(queue, offset, entry)
        if not is_right and 0 <= entry[0] < self.log.start and raw != PADDING:
            is_right = offset == queue.start or queue.read_entry(offset - 1)[0] < self.log.start
        if not is_right:
            return self._mend(queue, offset, later)
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
                is_right = self._is_right(queue, position, entry)
                if not is_right:
                    self._mend(queue, position, later=True)
            else:
                is_right = not self.check(queue, position, later=True)
            if not is_right:
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
        log = self.log
        log_start, log_end = int(log.start), int(log.end)
        size_at = _SIZE.unpack_from
        begin = end = 0
        view = memoryview(b"")
        last_at = last_size = run_end = -1
        last: tuple[int, Entry] | None = None
        is_batch = False
        for position, entry in _ends_of_runs(queue, offset, count):
            at, size, _ = entry
            if 0 <= at < log_start and position == queue.start and entry != _PADDING:
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
                if self._lost_until(queue, position) == position:
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
        """Whether an entry leads to a whole record that says it belongs there; or that is lost."""
        is_right = self._leads_there(queue, offset, entry, in_memory=True)
        return is_right or self._lost_until(queue, offset) > offset

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

    # -- looking in the log --------------------------------------------------------------------

    def search(self) -> None:
        """Make the searches that had no time; for a worker."""
        for queue, wrong in list(self._wanted):
            search = self._around(queue, wrong, _NEIGHBOURS_MAX)
            found = self._in_log(queue, search.first, search.last, search.begin, search.end)
            if len(self._searched) >= _SEARCHES_MAX:
                self._searched.clear()
            self._searched[queue, wrong] = search, found
            self._wanted.pop((queue, wrong), None)

    def _around(self, queue: ConsumeQueue, wrong: int, reach: int) -> _Search:
        """Where to look for the record of an entry: between the nearest that are right."""
        first, last = queue.start, queue.end
        begin, end = int(self.log.start), int(self.log.end)
        is_whole = True
        before = queue.real_before(wrong)
        for _ in range(reach):
            if before < queue.start:
                break
            entry = queue.read_entry(before)
            if self._leads_there(queue, before, entry):
                first, begin = before + 1, entry[0]  # It may be a batch that has the next one, too.
                break
            before = queue.real_before(before)
        else:
            first, is_whole = before + 1, False
        after = queue.next_real(wrong + 1, queue.end)
        for _ in range(reach):
            if after >= queue.end:
                break
            entry = queue.read_entry(after)
            if self._leads_there(queue, after, entry):
                last, end = after, entry[0] + entry[1]
                break
            after = queue.next_real(after + 1, queue.end)
        else:
            last, is_whole = after, False
        return _Search(first, last, begin, end, is_whole)

    def _mend(self, queue: ConsumeQueue, wrong: int, later: bool = False) -> bool:
        """Write entries anew, from this one to the next that is right; whether that changed one."""
        done = self._searched.pop((queue, wrong), None)
        if done is not None:
            search, entries = done
            # Meanwhile the queue may have been cut, or lost its beginning.
            search = search._replace(
                first=max(search.first, queue.start), last=min(search.last, queue.end)
            )
        else:
            search = self._around(queue, wrong, _NEAR if later else _NEIGHBOURS_MAX)
            if later and (
                not search.is_whole or search.end - search.begin > _SEARCHED_AT_ONCE_BYTES
            ):
                self._wanted[queue, wrong] = None
                self.next_check = 0.0  # Who comes again is to find what was found.
                raise SearchNeededError(search.begin)
            entries = self._in_log(queue, search.first, search.last, search.begin, search.end)
        return self._put_right(queue, search.first, search.last, entries)

    def _put_right(self, queue: ConsumeQueue, first: int, last: int, found: _Found) -> bool:
        """Write what was found, and remember what was not."""
        changed = 0
        rows = np.frombuffer(queue.read_entries(first, last - first), ENTRY_DTYPE)
        padded = (rows["size"] == PADDING_SIZE) & (rows["log"] == 0)
        doubtful = (first + np.flatnonzero(~padded)).tolist()
        for offset in sorted({*doubtful, *(each for each in found if first <= each < last)}):
            before, right = queue.read_entry(offset), found.get(offset)
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
            elif right is None and not self._leads_there(queue, offset, before):
                if self.pads and self._leads_astray(queue, before):
                    self._replace(queue, offset, PADDING)
                    changed += 1
                _log.error(
                    "entry %d of queue %d of topic %s leads to no whole record of that queue, and "
                    "the log has none: the message is lost",
                    offset,
                    queue.queue_id,
                    queue.topic,
                )
        self._remember_lost(queue, first, last, found)
        self.mended += changed
        return changed > 0

    def _remember_lost(self, queue: ConsumeQueue, first: int, last: int, found: _Found) -> None:
        """What the log has no record for is not looked for again."""
        if sum(map(len, self._lost.values())) >= _LOST_MAX:
            self._lost.clear()
        known = self._lost.setdefault(queue, [])
        ends = [first - 1, *sorted(each for each in found if first <= each < last), last]
        gaps = [(low + 1, high) for low, high in itertools.pairwise(ends) if low + 1 < high]
        known[:] = sorted({*known, *gaps})

    def _lost_until(self, queue: ConsumeQueue, offset: int) -> int:
        """One past the entries from `offset` on that are known to be lost."""
        known = self._lost.get(queue)
        if not known:
            return offset
        row = bisect.bisect_right(known, (offset, 1 << 63)) - 1
        return max(offset, known[row][1]) if row >= 0 else offset

    def lengthen(self, queue: ConsumeQueue, known: "QueueEnd") -> None:
        """Give a queue back what it had at its ends, as far as the log has it."""
        if queue.start > known.start:
            self._look_in_front(queue, known)
        lacking = known.end - queue.end
        if lacking <= 0 or not self._is_of(queue, known.end - 1, known.last_record):
            return
        before = queue.real_before(queue.end)
        while before >= queue.start and not self.leads_there(queue, before):
            before = queue.real_before(before)
        begin = queue.entry(before)[0] if before >= queue.start else int(self.log.start)
        found = self._in_log(queue, queue.end, known.end, begin, known.last_record + 1)
        if known.end - 1 not in found:
            return  # The queue has been made anew since.
        if queue.start == queue.end < (first := min(found, default=queue.end)):
            queue.pad_to(first)
        entries = [
            ENTRY.pack(*found[offset]) if offset in found else PADDING
            for offset in range(queue.end, known.end)
        ]
        queue.reserve(known.end - queue.reserved)
        queue.put(b"".join(entries))
        self._replaced(queue)
        self.mended += len(found)
        _log.warning(
            "queue %d of topic %s lacked its last %d entries: they are written anew",
            queue.queue_id,
            queue.topic,
            lacking,
        )

    def _look_in_front(self, queue: ConsumeQueue, known: "QueueEnd") -> None:
        """See what is behind padding that was not there at the last checkpoint."""
        end = queue.start
        log_end = queue.entry(end)[0] if end < queue.end else known.last_record + 1
        queue.begin_before(known.start)
        if queue.start < end:
            padded = queue.start
            queue.start = end
            found = self._in_log(queue, padded, end, int(self.log.start), log_end)
            if found:
                queue.begin_before(min(found))
                self._put_right(queue, queue.start, end, found)
            self._replaced(queue)  # As it is now it is to be known.

    def _is_of(self, queue: ConsumeQueue, offset: int, log_offset: int) -> bool:
        """Whether the log has a message of a queue at a place."""
        try:
            found = self.log.look_at(log_offset)
        except (OffsetOutOfRangeError, StoreError):
            return False
        return isinstance(found, Message) and occupies(found, queue.topic, queue.queue_id, offset)

    def _replace(self, queue: ConsumeQueue, offset: int, entry: bytes) -> None:
        queue.replace(offset, entry)
        self._right.discard((queue, offset))
        self._replaced(queue)

    def _replaced(self, queue: ConsumeQueue) -> None:
        queue.dirty = True
        self.dirty.add(queue)

    def _in_log(self, queue: ConsumeQueue, first: int, last: int, begin: int, end: int) -> _Found:
        """The entries from `first` to `last`, by what the log has in a stretch."""
        topics = TopicNumbers()
        number = (topics.of(queue.topic) << 32) + queue.queue_id
        found: _Found = {}
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
        damage = sorted(self.damage)

        def is_damaged(at: int) -> bool:
            before = bisect.bisect_right(damage, at, key=lambda each: each.start)
            return before > 0 and at < damage[before - 1].end

        return {offset: entry for offset, entry in found.items() if not is_damaged(entry[0])}
