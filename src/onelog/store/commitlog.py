"""The one log: all messages of all topics, in the order of arrival, in a row of segments.

    segment 0                       segment 1                        segment 2 (active)
    | record | record | blank |     | record | record | blank |      | record | zeros ... |
    ^ start                                                                   ^ end

A list of messages is appended with one write. A record never spans two segments: when the next one
does not fit, a blank record closes the segment and the log goes on in a new one. The log knows
nothing of queues; the queue offset inside a record is given by the caller.

Damage, bytes that are no whole record though whole records follow, stays where it is: whoever reads
on finds the next record behind it by `next_record`.

Invariant: bytes below `flushed` are on disk and never change; a record is whole and checksummed, or
it is damaged, or it lies after the last whole one and is cut on recovery. `end` moves only after a
write succeeded: a write that fails leaves zeros behind it, never half a list. After a flush that
failed there is no other.
"""

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from onelog.errors import (
    FlushFailedError,
    MessageError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    StoreCorruptError,
    StoreVersionError,
)
from onelog.message import LogOffset, Message, NewMessage, NewRun
from onelog.private_files import make_folder
from onelog.record.decode import Blank, Broken, check, require_message
from onelog.record.encode import Placed, encode, encode_batches
from onelog.record.layout import BLANK, MAGIC_BLANK, MAGIC_START, RECORD_BYTES_MIN, log_offset_at
from onelog.store.segment import (
    Buffer,
    Segment,
    file_name,
    numbered_files,
    sync_folder,
)

_WARM_PROBE_BYTES = 256 * 1024
_SEARCH_BYTES = 1 << 20
_RECORD_READ_BYTES = 4096
_Write = tuple[Segment, int, list[Buffer], int]
"""Where in the log something is to be written, and how many bytes it has."""


def record_at(segment: Segment, at: int) -> Message | Blank | Broken:
    """What is at byte `at` of a segment, copied; `StoreError` if the disk cannot read it."""
    room = segment.size - at
    data = segment.read(at, min(_RECORD_READ_BYTES, room))
    size = int.from_bytes(data[:4], "big")
    if len(data) < size <= room:
        data += segment.read(at + len(data), size - len(data))
    return check(memoryview(data), 0, segment.start + at, room=room)


def _size_at(segment: Segment, at: int) -> int:
    """The length that a record at `at` has, if there is one; 0 behind the segment's end."""
    if not 0 <= at <= segment.size - BLANK.size:
        return 0
    return int.from_bytes(segment.read_around(at, 4), "big")


def next_record(segment: Segment, at: int, require_crc: bool = False) -> int:
    """Where the next whole record of a segment starts, behind `at`, where none is.

    It is known by its magic, its lengths, its checksums, and by the place that it names as its own.
    The segment's size if there is none.
    """

    def is_whole(position: int, size: int) -> bool:
        room = segment.size - position
        if not RECORD_BYTES_MIN <= size <= room:
            return False
        record = memoryview(segment.read_around(position, size))
        whole = check(record, 0, segment.start + position, require_crc, room)
        return isinstance(whole, Message)

    # Most often its length is right, and leads to the next one.
    size = _size_at(segment, at)
    if size >= RECORD_BYTES_MIN and is_whole(at + size, _size_at(segment, at + size)):
        return at + size
    at += 1
    while (data := segment.next_data(at)) < segment.size:
        at = max(at, data - 3)  # A record's length may begin with three zeros, and these be a hole.
        end = segment.data_until(data)
        block = segment.read_around(at, min(_SEARCH_BYTES, end - at))
        found = block.find(MAGIC_START, 4)
        while found >= 0:
            position = at + found - 4
            if log_offset_at(block, found - 4) == segment.start + position and is_whole(
                position, int.from_bytes(block[found - 4 : found], "big")
            ):
                return position
            found = block.find(MAGIC_START, found + 1)
        at += len(block)
        if at < end:  # The blocks overlap, so that no record's beginning is cut in two.
            at -= RECORD_BYTES_MIN
    return segment.size


class CommitLog:
    """The log in one folder. One writer; reads and `flush` may come from other threads."""

    def __init__(
        self, folder: Path, segment_bytes: int, *, record_crc: bool = False, writable: bool = True
    ) -> None:
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.record_crc = record_crc
        self._writable = writable
        self._flushing = threading.Lock()
        self.flush_failure: FlushFailedError | None = None
        """Why nothing is flushed any more."""
        # Replaced, never changed in place: other threads read it without a lock.
        self._segments: tuple[Segment, ...] = tuple(self._open_segments())
        self.end = LogOffset(self._segments[-1].start if self._segments else 0)
        self.flushed = self.end
        self._scratch = memoryview(bytearray(_WARM_PROBE_BYTES))
        self.on_growth: Callable[[], object] = lambda: None
        """Called when the log takes more of the disk."""

    def _open_segments(self) -> Iterator[Segment]:
        files = numbered_files(self.folder) if self.folder.is_dir() else []
        for number, (start, size) in enumerate(files):
            path = self.folder / file_name(start)
            if size != self.segment_bytes and not (size == 0 or number == len(files) - 1):
                raise StoreVersionError(
                    f"{path} has {size} bytes, but segments are set to {self.segment_bytes}: "
                    f"open the store with segment_bytes={size}"
                )
            if start != files[0][0] + number * self.segment_bytes:
                raise StoreCorruptError(
                    f"{path} does not follow the segment before it: a file is missing or was "
                    f"written with another segment size than {self.segment_bytes}"
                )
            if size == self.segment_bytes or self._writable:
                yield Segment(path, start, self.segment_bytes, writable=self._writable)

    @property
    def start(self) -> LogOffset:
        """The first byte that is still kept."""
        return LogOffset(self._segments[0].start if self._segments else 0)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The files of the log, oldest first."""
        return self._segments

    def append(
        self,
        batches: Sequence[NewMessage | NewRun],
        queue_offsets: Sequence[int],
        store_ms: int,
        has_runs: bool = True,
    ) -> list[Placed]:
        """Write the batches, all or none, and say where each one went."""
        segment = self._segments[-1] if self._segments else self._add_segment(int(self.end))
        begin = offset = int(self.end)
        buffers: list[Buffer] = []
        placed: list[Placed] = []
        stop = segment.start + segment.size - BLANK.size
        try:
            offset = encode_batches(
                batches,
                queue_offsets,
                offset,
                stop,
                store_ms,
                self.record_crc,
                has_runs,
                buffers,
                placed,
            )
            if len(placed) == len(batches):
                if segment.write(buffers, begin - segment.start, offset - begin):
                    self.on_growth()
            else:
                first = segment, begin, buffers, offset - begin
                offset = self._append_rest(batches, queue_offsets, store_ms, placed, first)
        except BaseException as error:
            self._give_up(error)
        self.end = LogOffset(offset)
        return placed

    def _append_rest(
        self,
        batches: Sequence[NewMessage | NewRun],
        queue_offsets: Sequence[int],
        store_ms: int,
        placed: list[Placed],
        first: _Write,
    ) -> int:
        """Write what was encoded `first`, and what follows it, in more than one segment."""
        spread: list[tuple[int, int]] = []
        writes = []
        segment, begin, buffers, size = first
        offset, done = begin + size, 0
        while True:
            batches, queue_offsets = (
                batches[len(placed) - done :],
                queue_offsets[len(placed) - done :],
            )
            done = len(placed)
            if not batches:
                break
            batch, number = batches[0], queue_offsets[0]
            if isinstance(batch, NewRun):  # It is for more than one segment, or not plain.
                messages = batch.messages()
                spread.append((len(placed), len(messages)))
                batches = [*messages, *batches[1:]]
                queue_offsets = [*range(number, number + len(messages)), *queue_offsets[1:]]
            else:  # It does not fit: close this segment, and go on in a new one.
                self._check_fits(batch, number)
                if offset < segment.start + segment.size:
                    buffers.append(BLANK.pack(segment.start + segment.size - offset, MAGIC_BLANK))
                    offset += BLANK.size
                writes.append((segment, begin, buffers, offset - begin))
                segment = self._add_segment(segment.start + segment.size)
                begin = offset = segment.start
                buffers = []
            stop = segment.start + segment.size - BLANK.size
            offset = encode_batches(
                batches,
                queue_offsets,
                offset,
                stop,
                store_ms,
                self.record_crc,
                True,
                buffers,
                placed,
            )
        for target, at, parts, size in (*writes, (segment, begin, buffers, offset - begin)):
            if target.write(parts, at - target.start, size):
                self.on_growth()
        for at, count in reversed(spread):
            log_offsets, _, sizes = zip(*placed[at : at + count], strict=True)
            placed[at : at + count] = [([*log_offsets], [*sizes])]
        return offset

    def _check_fits(self, message: NewMessage, queue_offset: int) -> None:
        *_, size = encode(message, queue_offset, 0, 0, self.record_crc)
        if size + BLANK.size > self.segment_bytes:
            raise MessageTooLargeError(
                f"a message to {message.topic!r} needs a record of {size} bytes; "
                f"a segment of {self.segment_bytes} holds at most {self.segment_bytes - BLANK.size}"
            )

    def _add_segment(self, start: int) -> Segment:
        make_folder(self.folder)
        path = self.folder / file_name(start)
        segment = Segment(path, start, self.segment_bytes, writable=True)
        self._segments = (*self._segments, segment)
        return segment

    def write_received(self, offset: int, data: Buffer) -> None:
        """Write bytes of another's log, all in one segment. Where the log ends is not for us."""
        segment = self._segments[-1] if self._segments else None
        if segment is None or offset == segment.start + segment.size:
            segment = self._add_segment(offset)
        segment.write([data], offset - segment.start, len(data))

    def begin_at(self, start: int) -> None:
        """Let a log that has nothing in it begin at another place."""
        assert self.end == self.start, "the log is not empty"
        with self._flushing:
            for segment in self._segments:
                segment.path.unlink(missing_ok=True)
            self._segments = ()
            self.end = self.flushed = LogOffset(start)

    def _give_up(self, error: BaseException) -> NoReturn:
        """After a failed append: drop new segments, zero what was written past the end."""
        self.truncate(self.end)
        if isinstance(error, struct.error):
            raise MessageError(
                f"a number in a message is too large for its field: {error}"
            ) from error
        raise error

    def truncate(self, end: LogOffset) -> None:
        """Cut the log at `end`: what follows becomes zeros, later segments go."""
        keep = [s for s in self._segments if s.start <= end or s is self._segments[0]]
        # A segment that would start exactly at the end is dropped too, unless it is the only one.
        while len(keep) > 1 and keep[-1].start >= end:
            keep.pop()
        dropped = self._segments[len(keep) :]
        for segment in dropped:
            segment.path.unlink(missing_ok=True)
        self._segments = tuple(keep)
        if keep:
            keep[-1].truncate(max(0, end - keep[-1].start))
        if dropped:
            sync_folder(self.folder)  # Else what was cut could come back behind what follows.
        self.end = end
        self.flushed = LogOffset(min(self.flushed, end))

    def cut(self, end: LogOffset) -> None:
        """`truncate` for a log that is in use: no flush may think that it still ends elsewhere."""
        with self._flushing:
            self.truncate(end)

    @property
    def newest_start(self) -> int:
        """Where the segment begins that is written to."""
        return self._segments[-1].start

    def segment_at(self, offset: int) -> Segment:
        """The segment that holds a log offset."""
        segments = self._segments
        number = (offset - segments[0].start) // self.segment_bytes if segments else -1
        if not 0 <= number < len(segments):
            raise OffsetOutOfRangeError(
                f"log offset {offset} is outside {self.start}..{self.end}, what the log holds"
            )
        return segments[number]

    def slice(self, offset: int, size: int) -> memoryview:
        """Bytes of the log, without a copy. They must lie in one segment."""
        segment = self.segment_at(offset)
        at = offset - segment.start
        if size < 0 or at + size > segment.size or offset + size > self.end:
            raise OffsetOutOfRangeError(
                f"{size} bytes at log offset {offset} are past the end of the log, {self.end}"
            )
        return segment.view[at : at + size]

    def slices(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Several ranges; the usual case, that all lie in one segment, costs one look-up."""
        segment = self.segment_at(ranges[0][0])
        last_at, last_size = ranges[-1]
        start = segment.start
        if last_at + last_size > min(start + segment.size, self.end):
            return [self.slice(at, size) for at, size in ranges]
        view = segment.view
        return [view[at - start : at - start + size] for at, size in ranges]

    def message_at(self, offset: int) -> Message:
        """The whole, checked record at a log offset, copied: it may have to come from the disk."""
        if not self.start <= offset < self.end:
            raise OffsetOutOfRangeError(
                f"log offset {offset} is outside {self.start}..{self.end}, what the log holds"
            )
        return require_message(self.look_at(offset), offset)

    def look_at(self, offset: int) -> Message | Blank | Broken:
        """What is at a log offset, also behind `end`; `StoreError` if the disk cannot read it."""
        segment = self.segment_at(offset)
        return record_at(segment, offset - segment.start)

    def is_warm(self, offset: int, size: int) -> bool:
        """Whether reading this range would not wait for the disk."""
        segment = self.segment_at(offset)
        return segment.is_warm(offset - segment.start, size, self._scratch)

    def read_cold(self, offset: int, size: int) -> bytes:
        """A copy of a range through a system call, which lets other threads run meanwhile."""
        segment = self.segment_at(offset)
        at = offset - segment.start
        if not 0 <= size <= segment.size - at:
            raise OffsetOutOfRangeError(
                f"{size} bytes at log offset {offset} are more than its segment has"
            )
        return segment.read(at, size)

    def flush(self) -> LogOffset:
        """Return, with the offset, when everything appended before the call is on disk.

        One at a time: the kernel tells of a failed flush once, and whoever it did not tell must not
        take it for a success.
        """
        with self._flushing:
            if self.flush_failure is not None:
                raise self.flush_failure
            end = self.end
            try:
                for segment in self._segments:
                    if segment.start + segment.size > self.flushed and segment.start < end:
                        segment.flush()
            except FlushFailedError as error:
                self.flush_failure = error
                raise
            self.flushed = max(self.flushed, end)
            return end

    def drop_first(self) -> Segment:
        """Begin with the second segment, and return the first: its file is the caller's to delete.

        The active one is never dropped.
        """
        first, *rest = self._segments
        assert rest, "the active segment cannot be dropped"
        self._segments = tuple(rest)
        return first
