"""The log of a replica: another's bytes, written as they come, and entered when they are confirmed.

    append:   the next bytes of the master's log, wherever they are split -> written in their place
    log.end   follows, from length to length, to the end of the last whole record
    enter:    whole records of what is confirmed -> checked, and put into queues and index

Entering is what recovery does after a crash: many records at a time, as columns (`walk`), each
with its checksum looked at, and into the queues as `replay` says. Only a few that are just what the
queues expect are entered one by one: columns cost as much for one record as for fifty.

Invariant: a replica's log is byte for byte its master's, the rest of a segment behind the blank
record included; nothing else is ever written to it.
"""

import logging
from collections.abc import Iterator

from onelog.errors import StoreError, StoreVersionError
from onelog.message import TRANSACTION_MASK, LogOffset, Message, SysFlag
from onelog.names import COMPACTED_TOPIC
from onelog.record.decode import Blank, Broken, check
from onelog.record.dispatch import TagsCodes, is_deletion, is_plain, targets
from onelog.record.entries import ENTRY
from onelog.record.forms import FORM_CODE, FORM_MASK
from onelog.record.layout import (
    BLANK,
    LOG_OFFSET,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    log_offset_at,
)
from onelog.store.commitlog import CommitLog, next_record
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.damage import Damage, Damages
from onelog.store.entering import Entered
from onelog.store.keyindex import KeyIndex
from onelog.store.queues import Queues
from onelog.store.replay import Replay
from onelog.store.segment import Buffer, Segment, disk_error
from onelog.store.walk import RecordWalk, Stretch, TopicNumbers

_log = logging.getLogger(__name__)
_HELD_BYTES_MAX = 128 << 20
"""For so much of the log a record that is out of order is held back; see `replay`."""
_SEARCH_BYTES = 1 << 20
"""After so much more behind damage the next whole record is looked for again."""
_FEW = 24
_FEW_BYTES_MAX = 64 << 10
_RECORDS = (MAGIC_V1, MAGIC_V2)


class Received:
    """What came from another's log, of one store."""

    def __init__(
        self, log: CommitLog, queues: Queues, index: KeyIndex, tags_codes: TagsCodes
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._tags_codes = tags_codes
        self._end = int(log.end)
        self._search_from = 0
        self._half_entered = False
        self.entered = Entered(0)
        """How far queues and index know the log; what was read may be further."""
        self._last_record = self._last_ms = 0
        self.records = 0
        """How many records were entered."""
        self._replay: Replay | None = None
        self._walk: RecordWalk | None = None
        self.read_until = 0
        """Up to here the log was read; what is held back lies before it."""

    @property
    def end(self) -> int:
        """Where the log's bytes end, also if that is inside a record."""
        return max(self._end, int(self._log.end))

    # -- bytes ---------------------------------------------------------------------------------

    def append(self, log_offset: int, data: Buffer) -> None:
        """Write the next bytes."""
        if log_offset != self.end:
            self._skip_to(log_offset)
        log, view, at = self._log, memoryview(data), log_offset
        while view:
            size = min(len(view), log.segment_bytes - (at - int(log.start)) % log.segment_bytes)
            log.write_received(at, view[:size])
            at, view = at + size, view[size:]
            self._end = at
        self._find_end()

    def _skip_to(self, log_offset: int) -> None:
        """Go on at the start of a segment: behind a blank record, or where an empty log begins."""
        log, size = self._log, self._log.segment_bytes
        if log.end == log.start == self.end and log_offset % size == 0:
            log.begin_at(log_offset)
            self.restart(Entered(log_offset))
            return
        segment_end = int(log.start) + ((self.end - int(log.start)) // size + 1) * size
        if log_offset == segment_end and self.end - log.end >= BLANK.size:
            segment = log.segment_at(log.end)
            blank = SIZE_AND_MAGIC.unpack_from(segment.view, log.end - segment.start)
            if blank == (segment_end - log.end, MAGIC_BLANK):
                log.end = LogOffset(log_offset)
                return
        raise StoreError(
            f"bytes at log offset {log_offset} do not follow the log, which goes on at {self.end}"
        )

    def _find_end(self) -> None:
        """Let the log end with the last whole record there is."""
        log = self._log
        at = int(log.end)
        while self.end - at >= BLANK.size:
            segment = log.segment_at(at)
            stop = min(self._end - segment.start, segment.size)
            inside = self._whole_until(segment, at - segment.start, stop)
            at = segment.start + inside
            if inside < segment.size:
                break
        log.end = LogOffset(at)

    def _whole_until(self, segment: Segment, at: int, stop: int) -> int:
        """How far a segment has whole records, from `at` on; its size if it is full."""
        view, size_max, unpack = segment.view, segment.size, SIZE_AND_MAGIC.unpack_from
        while stop - at >= BLANK.size:
            size, magic = unpack(view, at)
            if magic in _RECORDS and RECORD_BYTES_MIN <= size <= size_max - at:
                if at + size > stop:
                    return at
                at += size
                continue
            self._check_segment_size(segment, at, stop, size, magic)
            if magic == MAGIC_BLANK:
                return size_max if stop == size_max else at
            found = self._after_damage(segment, at, stop)
            if found == at:
                return at
            at = found
        return size_max if stop == size_max else at

    def _check_segment_size(
        self, segment: Segment, at: int, stop: int, size: int, magic: int
    ) -> None:
        """`StoreVersionError` if records end at other places than in segments of our size."""
        room = segment.size - at
        wrong = magic == MAGIC_BLANK and size != room
        if magic in _RECORDS and size > room and stop - at >= LOG_OFFSET.stop:
            wrong = log_offset_at(segment.view, at) == segment.start + at
        if wrong:
            raise StoreVersionError(
                f"the log that is received has segments of another size than "
                f"{segment.size} (at log offset {segment.start + at}): give this store the "
                f"segment_bytes of the broker that it follows, and an empty folder"
            )

    def _after_damage(self, segment: Segment, at: int, stop: int) -> int:
        """Where records go on behind damage; `at` as long as that is not known."""
        if stop < segment.size and segment.start + stop < self._search_from:
            return at
        found = next_record(segment, at)
        if found < stop:
            return found
        if stop == segment.size:
            return stop
        self._search_from = segment.start + stop + _SEARCH_BYTES
        return at

    def whole_before(self, log_offset: int) -> int:
        """Where the last whole record ends that ends at a log offset, or before it."""
        segment = self._log.segment_at(log_offset)
        inside = log_offset - segment.start
        self._search_from = 0
        return segment.start + self._whole_until(segment, 0, inside)

    def drop_partial(self) -> None:
        """Cut a record that is not whole."""
        if self.end > self._log.end:
            self._log.cut(self._log.end)
            self._end = int(self._log.end)

    # -- records -------------------------------------------------------------------------------

    def restart(self, entered: Entered) -> None:
        """Queues and index know the log up to another place than they did."""
        self._end = int(self._log.end)
        self._search_from = 0
        self.entered = entered
        self.read_until, self._last_record, self._last_ms = entered
        self._replay = self._walk = None

    def enter(self, until: int) -> set[ConsumeQueue]:
        """Put whole records below a log offset into queues and index; returns which queues.

        `StoreError` if the disk does not take them: then none of these are in, and it can be tried
        again.
        """
        if self._half_entered:
            self._take_back()
        replay = self._replay
        if replay is None:
            topics = TopicNumbers()
            self._walk = RecordWalk(self._tags_codes, topics)
            replay = self._replay = Replay(
                self._queues,
                self._index,
                topics,
                Damages(),
                may_begin_anywhere=self._log.start > 0,
            )
        replay.touched.clear()
        try:
            if until - self.read_until <= _FEW_BYTES_MAX and not replay.holding:
                self._enter_few(until, replay.touched)
            for found in self._read_until(until):
                self._index.build()
                if isinstance(found, Damage):
                    _log.warning("damage in the log that is received, as %s", found)
                    replay.skip(found)
                else:
                    replay.enter(found)
                    self.records += len(found.log)
                    self._last_record = int(found.log[-1])
                    self._last_ms = max(self._last_ms, int(found.store_ms[-1]))
            replay.write()
            if (replay.held_from() or self.read_until) < self.read_until - _HELD_BYTES_MAX:
                replay.finish()
        except StoreError:
            self._take_back()
            raise
        if self.read_until > self._log.end:  # It looks for records behind damage more often.
            self._log.end = LogOffset(self.read_until)
        held_from = replay.held_from()
        end = self.read_until if held_from is None else held_from
        self.entered = Entered(end, self._last_record, self._last_ms)
        return replay.touched

    def _enter_few(self, until: int, touched: set[ConsumeQueue]) -> None:
        """Enter records one by one, as long as there is nothing special about them."""
        if until - self.read_until < BLANK.size:
            return
        segment = self._log.segment_at(self.read_until)
        at = self.read_until - segment.start
        data = memoryview(segment.read(at, min(until - segment.start, segment.size) - at))
        inside = 0
        for _ in range(_FEW):
            if len(data) - inside < RECORD_BYTES_MIN:
                break
            room = segment.size - at - inside
            found = check(data, inside, self.read_until, room=room)
            entries = self._entries_of(found) if isinstance(found, Message) else None
            if not isinstance(found, Message) or entries is None:
                break
            self._enter_one(found, entries)
            touched.update(queue for queue, _ in entries)
            inside += found.size
            self.read_until = segment.start + at + inside

    def _entries_of(self, message: Message) -> list[tuple[ConsumeQueue, int]] | None:
        """The queues that a record goes to, how many entries of each; None if it is not simple."""
        find = self._queues.find
        if is_plain(message.sys_flag, message.properties):
            queue = find(message.topic, message.queue_id)
            if queue is None or not queue.start < queue.end == message.queue_offset:
                return None
            return [(queue, 1)]
        if is_deletion(message.sys_flag, message.properties):
            return None
        entries = []
        for topic, queue_id, offset, count in targets(message):
            queue = find(topic, queue_id)
            if queue is None or not queue.start < queue.end == offset:
                return None
            entries.append((queue, count))
        return entries

    def _enter_one(self, message: Message, entries: list[tuple[ConsumeQueue, int]]) -> None:
        topic, properties, store_ms = message.topic, message.properties, message.store_ms
        code = FORM_CODE
        if not message.sys_flag & FORM_MASK or topic == COMPACTED_TOPIC:
            code = self._tags_codes.of(topic, properties, store_ms)
        entry = ENTRY.pack(message.log_offset, message.size, code)
        for queue, count in entries:
            queue.reserve(count)
            queue.put(entry * count)
        if properties and message.sys_flag & TRANSACTION_MASK != SysFlag.ROLLED_BACK:
            self._index.add(([topic], [properties], [message.log_offset], store_ms))
            if self._index.is_behind:
                self._index.build()
        self.records += 1
        self._last_record, self._last_ms = message.log_offset, max(self._last_ms, store_ms)

    @property
    def is_holding(self) -> bool:
        """Whether a record is held back, because it is out of order and nothing follows it yet."""
        return self._replay is not None and bool(self._replay.holding)

    def finish(self) -> set[ConsumeQueue]:
        """Nothing more follows: decide about what is held back; returns which queues got some."""
        replay = self._replay
        assert replay is not None
        replay.touched.clear()
        replay.finish()
        self.entered = Entered(self.read_until, self._last_record, self._last_ms)
        return replay.touched

    @property
    def damage(self) -> list[Damage]:
        """What was no use, since the last restart."""
        return self._replay.damages.ranges if self._replay is not None else []

    def _take_back(self) -> None:
        """Let queues and index know no more than before; if the disk fails, the next time."""
        self._half_entered = True
        end = self._end
        self.restart(self.entered)
        self._end = end
        try:
            self._queues.cut_at(self.entered.end)
            self._index.truncate(self.entered.end)
        except OSError as error:
            raise disk_error(error, self._log.folder.parent, "write to the queues in") from error
        self._half_entered = False

    def _read_until(self, until: int) -> Iterator[Stretch | Damage]:
        """Whole records from where it was read to, and damage between them."""
        walk = self._walk
        assert walk is not None
        while until - self.read_until >= BLANK.size:
            segment = self._log.segment_at(self.read_until)
            at, stop = self.read_until - segment.start, min(until - segment.start, segment.size)
            if segment.size - at < BLANK.size:
                self.read_until = segment.start + segment.size
                continue
            stretch, at, why = walk.read(segment, at, stop, stop)
            if stretch is not None:
                self.read_until = stretch.end
                yield stretch
            if isinstance(why, Blank):
                if stop < segment.size:
                    return
                self.read_until = segment.start + segment.size
            elif isinstance(why, Broken):
                found = self._end_of_damage(segment, at, stop)
                if found == at:
                    return  # The rest of it is not there, or not confirmed.
                self.read_until = segment.start + found
                yield Damage(segment.start + at, self.read_until, why.reason)

    def _end_of_damage(self, segment: Segment, at: int, stop: int) -> int:
        """Where what is no whole record ends; `at` if more bytes may yet make it one."""
        size, magic = SIZE_AND_MAGIC.unpack(segment.read(at, BLANK.size))
        if magic in _RECORDS and stop - at < size <= segment.size - at:
            return at
        found = next_record(segment, at)
        return min(found, stop) if found < stop or stop == segment.size else at
