"""A queue: for each of its messages, in order, where in the log it lies.

    entry = int64 log offset | int32 record size | int64 tags code            20 bytes

Entry number n is the message with queue offset n, so a look-up is one multiplication. Files hold a
fixed number of entries, are named by the byte offset of their first one, and are written and read
through memory maps. They are derived data: all of it can be rebuilt from the log.

A record that several queues share has an entry in each of them. An inner batch has one entry per
message, all pointing at the one record. If a queue does not begin at 0 (its older messages are
gone), its first file is padded in front with {0, 0x7FFFFFFF, 0}; where messages in the middle are
lost, because the log is damaged, padding keeps the places of the others.

A new queue is young: its first entries are in memory until a thread has made the file.

A touch of a map where the disk cannot read ends the process (SIGBUS). So what was there before the
queue was opened is read once with a system call, which fails with an error instead: see `_probe`.

Invariant: entries below `end` are whole; what lies after it is zeros or, after a crash, anything,
and is cleared by recovery. Disk space for an entry is allocated before the entry is written,
because a store through a map into a hole of a full disk kills the process.
"""

import contextlib
import errno
import mmap
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from onelog.errors import StoreCorruptError, StoreError, StoreVersionError
from onelog.private_files import make_folder
from onelog.record.entries import ENTRY, ENTRY_BYTES, ENTRY_DTYPE, PADDING, PADDING_SIZE
from onelog.store.queue_files import YOUNG_BYTES, MapBudget, QueueFiles
from onelog.store.queue_folders import parents_of
from onelog.store.segment import (
    disk_error,
    end_of_data,
    file_name,
    numbered_files,
    opened,
    sync_file,
)

if TYPE_CHECKING:
    from onelog.store.mending import Mending

_GONE = ENTRY.pack(-1, 0, 0)
_READ_ENTRIES = 4_096
_BEGIN_BYTES = 200 * ENTRY_BYTES
_PROBE_BYTES = 64 * 1024
_PROBES_MAX = 256
_PROBE_S = 1.0
"""For how long a file that could be read is taken to be in memory."""
_ALLOCATE_BYTES_MIN = 4 * 1024
_ALLOCATE_BYTES_MAX = 256 * 1024

Entry = tuple[int, int, int]


class ConsumeQueue:
    """One queue of one topic."""

    __slots__ = (
        "_begins_at _budget _file_entries _files _flushed _folder_name _last_log _made _maker "
        "_maps _opened_end _probed _replaced _unsynced _writable _young allocated check checked "
        "dirty end passed_over queue_id reserved start topic"
    ).split()

    def __init__(
        self,
        folder: Path,
        topic: str,
        file_entries: int,
        budget: MapBudget,
        *,
        writable: bool = True,
        files: QueueFiles | None = None,
        unsynced: set[str] | None = None,
        is_new: bool = False,
    ) -> None:
        """`unsynced` is told of folders that have new names, for whoever makes them durable.

        `files` makes the first file of a queue that `is_new`; else it is made when it is needed.
        """
        self._unsynced = set() if unsynced is None else unsynced
        self._folder_name = str(folder)
        self.topic = topic
        self.queue_id = int(folder.name)
        self._file_entries = file_entries
        self._budget = budget
        self._writable = writable
        self._maker = files
        self._young: mmap.mmap | None = None
        self._made: Future[None] | None = None
        self._maps: dict[int, mmap.mmap] = {}
        self._files: list[int] = [] if is_new else self._find_files()
        self.start: int = self._files[0] * file_entries if self._files else 0
        self._last_log = 1 << 62
        self.end: int = self._find_end()
        self._opened_end = self.end
        self.checked = 0, 0
        """Which entries of before the start were held against their records last; see `mending`."""
        self.check: Mending | None = None
        """Who knows what entries should be, once the log is open."""
        self.passed_over = 0, 0
        """Which of them were so each by itself, for who leaves their records unread."""
        self._replaced: dict[int, bytes] = {}
        """What is written anew in memory only."""
        self._probed: dict[tuple[int, int], float] = {}
        self.reserved = self.end
        self.allocated = self.end
        self._flushed = self.end
        self.dirty = False
        self._begins_at = self._skip_padding()
        if writable and not is_new:
            self._delete_after(self.end)

    # -- files ---------------------------------------------------------------------------------

    def _find_files(self) -> list[int]:
        """The numbers of the files there are, checked to follow each other."""
        size_expected = self._file_entries * ENTRY_BYTES
        folder = self.folder
        files = numbered_files(folder) if folder.is_dir() else []
        numbers: list[int] = []
        for position, (byte_offset, size) in enumerate(files):
            number, odd = divmod(byte_offset, size_expected)
            if odd or (numbers and number != numbers[-1] + 1):
                raise StoreCorruptError(
                    f"{folder / file_name(byte_offset)} does not follow the file before it: "
                    "delete the consumequeue folder to have it rebuilt"
                )
            if size != size_expected and position < len(files) - 1:
                raise StoreVersionError(
                    f"{folder / file_name(byte_offset)} has {size} bytes, but queue files are "
                    f"set to {self._file_entries} entries: open the store with "
                    f"queue_file_entries={size // ENTRY_BYTES}"
                )
            numbers.append(number)
        return numbers

    @property
    def folder(self) -> Path:
        """Where its files are; not kept as a `Path`, which takes three times the memory."""
        return Path(self._folder_name)

    def path(self, file: int) -> Path:
        """Where file number `file` is."""
        return Path(self._name(file))

    def _name(self, file: int) -> str:
        """The same as a text: a `Path` takes longer to make than the file to open."""
        return f"{self._folder_name}/{file * self._file_entries * ENTRY_BYTES:020d}"

    def _map(self, file: int) -> mmap.mmap:
        """The map of a file, made (and the file created) when it is needed."""
        found = self._maps.get(file)
        if found is not None:
            return found
        if self._writable and file not in self._files:
            if not self._files and self._maker is not None:
                self._maker.settle()  # What is being deleted may be in the way.
            self._make(file)
            self._files.append(file)
        self._maps[file] = found = self._open_map(file)
        self._budget.add(self, file)
        return found

    def _make(self, file: int) -> None:
        """Make a file, and its folder."""
        path = self._name(file)
        try:
            make_folder(Path(self._folder_name))
            with opened(path, os.O_RDWR | os.O_CREAT) as fd:
                os.ftruncate(fd, self._file_entries * ENTRY_BYTES)
        except OSError as error:
            raise disk_error(error, self.path(file), "make") from error
        self._unsynced.add(self._folder_name)
        if not self._files:
            self._unsynced.update(map(str, parents_of(self.folder)))

    def _open_map(self, file: int) -> mmap.mmap:
        size = self._file_entries * ENTRY_BYTES
        path = self._name(file)
        try:
            with opened(path, os.O_RDWR if self._writable else os.O_RDONLY) as fd:
                if self._writable and os.fstat(fd).st_size != size:
                    os.ftruncate(fd, size)
                access = mmap.ACCESS_WRITE if self._writable else mmap.ACCESS_COPY
                found = mmap.mmap(fd, size, access=access)
                # Else the first touch of a page has the kernel read megabytes of zeros around it.
                found.madvise(mmap.MADV_RANDOM)
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError):
                raise StoreCorruptError(f"{path} is shorter than its {size} bytes") from error
            raise disk_error(error, self.path(file), "map") from error
        return found

    def unmap(self, file: int) -> None:
        """Let go of a map; whoever holds a slice of it keeps it alive."""
        if self._young is not None:
            return
        self._maps.pop(file, None)
        self._budget.remove(self, file)

    def unmap_all(self) -> None:
        """Let go of every map."""
        for file in list(self._maps):
            self.unmap(file)

    # -- the first entries ----------------------------------------------------------------------

    def _is_for_memory(self, until: int) -> bool:
        """Whether the entries up to `until` are the first ones, and stay in memory for now."""
        maker = self._maker
        if maker is None or self._files or (self._young is None and self.allocated):
            return False
        if until * ENTRY_BYTES > YOUNG_BYTES or until > self._file_entries or not maker.in_thread:
            self.settle()
            return False
        with maker.lock:
            if self._files:
                return False  # It was made meanwhile.
            if self._young is None:
                self._young = self._maps[0] = mmap.mmap(-1, YOUNG_BYTES)
            before, self.reserved = self.reserved, max(self.reserved, until)
        made = self._made
        if made is None or made.done():
            self._made = made = maker.run(self._grow_up)
            if made.done():
                self._made = None  # It takes two kilobytes.
                if (error := made.exception()) is not None:
                    self.reserved = before
                    raise error
        return True

    def _grow_up(self) -> None:
        """Make the first file, and go on there: the other thread's part."""
        assert self._maker is not None
        while (young := self._young) is not None:
            done = self.end * ENTRY_BYTES
            room = max(_ALLOCATE_BYTES_MIN, 2 * self.reserved * ENTRY_BYTES)
            room = min(room, self._file_entries * ENTRY_BYTES)
            self._make(0)
            self._set_aside(0, 0, room, young[:done])
            found = self._open_map(0)
            with self._maker.lock:
                if self._young is None:
                    return  # Its topic was deleted, and the file will be.
                if self.reserved * ENTRY_BYTES > room:
                    continue
                end = self.end * ENTRY_BYTES
                found[done:end] = young[done:end]
                self._files.append(0)
                self._maps[0] = found
                self.allocated = room // ENTRY_BYTES
                self._young = self._made = None
                self._budget.add(self, 0)

    def settle(self) -> None:
        """Return when the entries are in files; `StoreError` if the disk does not take them."""
        while self._young is not None and self._maker is not None:
            made = self._made
            if made is None or made.done():
                made = self._made = self._maker.run(self._grow_up)
            made.result()

    def _put_young(self, entries: bytes) -> bool:
        """`put` into memory; False if there is a file now."""
        assert self._maker is not None
        with self._maker.lock:
            young = self._young
            if young is None:
                return False
            at = self.end * ENTRY_BYTES
            young[at : at + len(entries)] = entries
            self.end += len(entries) // ENTRY_BYTES
        return True

    # -- finding the end -----------------------------------------------------------------------

    def _find_end(self) -> int:
        """One past the last entry: entries are written in order into zeros.

        Zeros in the middle are damage, as what follows them shows.
        """
        end = self._bisect(any, remember_last=True)
        for file in reversed(self._files):
            at = max(end - file * self._file_entries, 0) * ENTRY_BYTES
            with opened(self._name(file)) as fd:
                last = end_of_data(fd, at)
                if last > at:
                    slot = -(-last // ENTRY_BYTES) - 1
                    raw = os.pread(fd, ENTRY_BYTES, slot * ENTRY_BYTES).ljust(ENTRY_BYTES, b"\0")
                    self._last_log = ENTRY.unpack(raw)[0]
                    return file * self._file_entries + slot + 1
            if at:
                break
        return end

    def _bisect(self, before: Callable[[Entry], bool], *, remember_last: bool = False) -> int:
        """The first entry for which `before` no longer holds, given that it holds up to there."""
        for file in reversed(self._files):
            with opened(self._name(file)) as fd:
                entries = os.fstat(fd).st_size // ENTRY_BYTES
                # One read tells all about a short queue, and most are short.
                begin = os.pread(fd, _BEGIN_BYTES, 0)

                def entry(slot: int, fd: int = fd, begin: bytes = begin) -> Entry:
                    at = slot * ENTRY_BYTES
                    raw = begin[at : at + ENTRY_BYTES] if at < _BEGIN_BYTES else b""
                    found: Entry = ENTRY.unpack(raw or os.pread(fd, ENTRY_BYTES, at))
                    return found

                if not entries or not before(entry(0)):
                    continue
                # Gallop first: few pages are touched that way.
                step = 1
                while step < entries and before(entry(step)):
                    step *= 2
                low, high = step // 2, min(step, entries)
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if before(entry(middle)) else (low, middle)
                if remember_last:
                    self._last_log = entry(high - 1)[0]
                return file * self._file_entries + high
        return self._files[0] * self._file_entries if self._files else 0

    def _skip_padding(self) -> int:
        """Move `start` behind the filling of a queue that did not begin at 0.

        Returns the log offset of the first entry, read without a map: opening ten thousand queues
        must not map ten thousand files.
        """
        if self.start == self.end:
            return -1
        with opened(self._name(self._files[0])) as fd:
            first = os.pread(fd, ENTRY_BYTES, 0)
            if first == PADDING:
                raw = os.pread(fd, self._file_entries * ENTRY_BYTES, 0)
                rows = np.frombuffer(raw, ENTRY_DTYPE, len(raw) // ENTRY_BYTES)
                padded = (rows["size"] == PADDING_SIZE) & (rows["log"] == 0)
                count = len(padded) if padded.all() else int(padded.argmin())
                self.start = min(self.start + count, self.end)
                return -1
        return int(ENTRY.unpack(first)[0])

    # -- writing -------------------------------------------------------------------------------

    def reserve(self, count: int) -> int:
        """Promise room for `count` entries and return the queue offset of the first."""
        first = self.reserved
        after = first + count
        if after > self.allocated:
            self._allocate(after)
        self.reserved = after
        return first

    def release(self, reserved: int) -> None:
        """Take back what was reserved from an offset on.

        No file without an entry may stay: RocketMQ takes entry 0 of the last file for granted.
        """
        with contextlib.suppress(StoreError):
            self.settle()
        self.reserved = reserved
        if self._young is None:
            self._delete_after(reserved)
        elif not self.end:
            self.forget()
            self.path(0).unlink(missing_ok=True)
            with contextlib.suppress(StoreError):
                self._delete_after(0)

    def make_room(self, count: int) -> None:
        """See that there is disk space for the next entries, where they were only promised."""
        if self.end + count > self.allocated:
            self._allocate(self.end + count)

    def _delete_after(self, end: int) -> None:
        """Delete the files that hold nothing below entry `end`."""
        for file in [file for file in self._files if file * self._file_entries >= end]:
            self.unmap(file)
            self.path(file).unlink(missing_ok=True)
            self._files.remove(file)
        if not self._files:
            self._remove_folder()
        self.allocated = min(self.allocated, end)

    def _remove_folder(self) -> None:
        if self._maker is not None:
            self._maker.settle()  # It may be the folder of a queue that is being deleted.
        if os.path.isdir(self._folder_name):
            os.rmdir(self._folder_name)

    def _allocate(self, until: int) -> None:
        """Map the files up to entry `until` and have the disk set the space aside."""
        if not self._files and self._is_for_memory(until):
            return
        while self.allocated < until:
            file, slot = divmod(self.allocated, self._file_entries)
            self._map(file)
            at = slot * ENTRY_BYTES
            step = min(max(at, _ALLOCATE_BYTES_MIN), _ALLOCATE_BYTES_MAX)
            size = max(step, (until - self.allocated) * ENTRY_BYTES)
            size = min(size, self._file_entries * ENTRY_BYTES - at)
            self._set_aside(file, at, size)
            self.allocated = file * self._file_entries + (at + size) // ENTRY_BYTES

    def _set_aside(self, file: int, at: int, size: int, entries: bytes = b"") -> None:
        """Have the disk set space aside in a file, and perhaps write entries there."""
        try:
            with opened(self._name(file), os.O_RDWR) as fd:
                if at and self.allocated <= self._opened_end:
                    # As `_probe`: the page goes on.
                    os.pread(fd, ENTRY_BYTES, at - ENTRY_BYTES)
                os.posix_fallocate(fd, at, size)
                if entries:
                    os.pwrite(fd, entries, at)
        except OSError as error:
            raise disk_error(error, self.path(file), "allocate room in") from error

    def put(self, entries: bytes) -> None:
        """Store encoded entries, for which room was reserved."""
        if self._young is not None and self._put_young(entries):
            return
        file, slot = divmod(self.end, self._file_entries)
        at = slot * ENTRY_BYTES
        room = self._file_entries * ENTRY_BYTES - at
        while len(entries) > room:
            self.put(entries[:room])
            entries = entries[room:]
            file, at, room = file + 1, 0, self._file_entries * ENTRY_BYTES
        target = self._maps.get(file) or self._map(file)
        target[at : at + len(entries)] = entries
        self.end += len(entries) // ENTRY_BYTES

    def replace(self, offset: int, entry: bytes) -> None:
        """Write one entry anew; of a queue that is only read, in memory."""
        self.settle()
        file, slot = divmod(offset, self._file_entries)
        at = slot * ENTRY_BYTES
        self._map(file)[at : at + ENTRY_BYTES] = entry
        if not self._writable:
            self._replaced[offset] = entry
        self._flushed = min(self._flushed, offset)
        self.checked = self.passed_over = 0, 0

    @property
    def opened_end(self) -> int:
        """Where it ended when it was opened: what is before may have been damaged on disk."""
        return self._opened_end

    def pad_to(self, offset: int) -> None:
        """Let the next entry be number `offset`: what is skipped is filled with padding.

        A queue without files thereby begins at `offset`; in one that has some, the padding stands
        for messages that are in no log any more.
        """
        self.settle()
        if not self._files:
            base = offset // self._file_entries * self._file_entries
            self.start = self.end = base
            self.allocated = self.reserved = self._flushed = base
        begins_here = self.start == self.end
        self.reserve(offset - self.reserved)
        while self.end < offset:
            self.put(PADDING * min(offset - self.end, self._file_entries))
        if begins_here:
            self.start = offset

    # -- reading -------------------------------------------------------------------------------

    def entry(self, offset: int) -> Entry:
        """The (log offset, size, tags code) of one message between `start` and `end`."""
        file, slot = divmod(offset, self._file_entries)
        mapped = self._maps.get(file) or self._map(file)
        at = slot * ENTRY_BYTES
        if offset < self._opened_end:
            self._probe(file, at, at + ENTRY_BYTES)
        found: Entry = ENTRY.unpack_from(mapped, at)
        return found

    def entries(self, offset: int, count: int) -> Iterator[Entry]:
        """Up to `count` entries from `offset` on."""
        for raw in self.raw_entries(offset, count):
            yield from ENTRY.iter_unpack(raw)

    def raw_entries(self, offset: int, count: int) -> Iterator[memoryview]:
        """The bytes of up to `count` entries from `offset` on, one slice per file."""
        offset = max(offset, self.start)
        end = min(offset + count, self.end)
        while offset < end:
            file, slot = divmod(offset, self._file_entries)
            here = min(end - offset, self._file_entries - slot)
            at = slot * ENTRY_BYTES
            mapped = self._map(file)
            if offset < self._opened_end:
                self._probe(file, at, at + here * ENTRY_BYTES)
            yield memoryview(mapped)[at : at + here * ENTRY_BYTES]
            offset += here

    def _probe(self, file: int, at: int, end: int) -> None:
        """See that bytes of a file can be read before its map is touched there.

        `StoreError` if the disk cannot read them.
        """
        probed = self._probed
        now = time.monotonic()
        for block in range(at // _PROBE_BYTES, (end - 1) // _PROBE_BYTES + 1):
            if now - probed.get((file, block), -_PROBE_S) < _PROBE_S:
                continue
            size = min(_PROBE_BYTES, self._file_entries * ENTRY_BYTES - block * _PROBE_BYTES)
            try:
                self._read(file, block * _PROBE_BYTES, size)
            except OSError as error:
                raise disk_error(error, self.path(file), "read") from error
            if len(probed) >= _PROBES_MAX:
                probed.clear()
            probed[file, block] = now

    def _read(self, file: int, at: int, size: int) -> bytes:
        if (young := self._young) is not None:
            return young[at : at + size]
        with opened(self._name(file)) as fd:
            found = os.pread(fd, size, at)
        if len(found) < size:
            raise OSError(errno.EIO, "the file is shorter than it was, or unreadable")
        return found

    def first_not_before(self, is_before: Callable[[Entry], bool]) -> int:
        """Binary search: the first offset whose entry is not `before`; `end` if all are.

        A wrong entry may lead it astray, but then the search ends beside that one.
        """
        while self.mend_beside(found := self._search(is_before)):
            pass
        return found

    def mend_beside(self, offset: int) -> bool:
        """Look at the entries before and at the end of a search; whether to search again."""
        if self.check is None:
            return False
        beside = range(max(offset - 1, self.start), min(offset + 1, self._opened_end, self.end))
        return sum(self.check.check(self, each) for each in beside) > 0

    def _search(self, is_before: Callable[[Entry], bool]) -> int:
        """Padding in the middle says nothing; it is where the message after it is."""
        low, high = self.start, self.end
        while low < high:
            middle = at = (low + high) // 2
            entry = self.read_entry(middle)
            if entry[1] == PADDING_SIZE and not entry[0]:
                at = self.next_real(middle, high)
                if at == high:
                    high = middle
                    continue
                entry = self.read_entry(at)
            if is_before(entry):
                low = at + 1
            else:
                high = middle
        return low

    def read_entry(self, offset: int) -> Entry:
        """`entry`, read with a system call: for worker threads, and for what may be on disk only.

        What retention took meanwhile lies before everything.
        """
        found: Entry = ENTRY.unpack(self.read_entries(offset, 1) or _GONE)
        return found

    def read_entries(self, offset: int, count: int) -> bytes:
        """The same for several, as bytes; fewer of them if retention took some meanwhile."""
        offset = max(offset, self.start)
        end = min(offset + count, self.end)
        parts = []
        while offset < end:
            file, slot = divmod(offset, self._file_entries)
            here = min(end - offset, self._file_entries - slot)
            try:
                parts.append(self._read(file, slot * ENTRY_BYTES, here * ENTRY_BYTES))
            except OSError as error:
                if not isinstance(error, FileNotFoundError) or offset >= self.start:
                    raise disk_error(error, self.path(file), "read") from error
            offset += here
        found = b"".join(parts)
        if self._replaced:
            first = end - len(found) // ENTRY_BYTES
            raw = bytearray(found)
            for each, entry in self._replaced.items():
                if first <= each < end:
                    raw[(each - first) * ENTRY_BYTES : (each - first + 1) * ENTRY_BYTES] = entry
            found = bytes(raw)
        return found

    def next_real(self, offset: int, end: int, log_start: int = 0) -> int:
        """The first entry from `offset` on that leads to a record in the log; `end` if none does.

        Looked for one by one: padding that is stepped over in leaps may have messages in it.
        """
        while offset < end:
            count = min(end - offset, _READ_ENTRIES)
            rows = np.frombuffer(self.read_entries(offset, count), ENTRY_DTYPE)
            if len(rows) < count:
                return end  # Retention took them meanwhile.
            real = (rows["size"] != PADDING_SIZE) & (rows["log"] >= log_start)
            if real.any():
                return offset + int(real.argmax())
            offset += len(rows)
        return end

    def real_before(self, offset: int) -> int:
        """The last entry before `offset` that is no padding; one before the start if none is."""
        while offset > self.start:
            low = max(self.start, offset - _READ_ENTRIES)
            rows = np.frombuffer(self.read_entries(low, offset - low), ENTRY_DTYPE)
            real = np.flatnonzero((rows["size"] != PADDING_SIZE) | (rows["log"] != 0))
            if len(real):
                return offset - len(rows) + int(real[-1])
            offset = low
        return self.start - 1

    def last_log_offset(self, end: int) -> int:
        """Where the record of the entry before `end` is; for any thread."""
        file, slot = divmod(end - 1, self._file_entries)
        mapped = self._maps.get(file)
        if mapped is None:
            return self.read_entry(end - 1)[0]
        return int(ENTRY.unpack_from(mapped, slot * ENTRY_BYTES)[0])

    def begin_before(self, start: int) -> None:
        """Take padding in front for entries, from `start` on."""
        if self._files:
            self.start = max(start, self._files[0] * self._file_entries)
            self._begins_at = -1

    def last_entry(self) -> Entry | None:
        """The entry of the newest message, if there is one."""
        return self.entry(self.end - 1) if self.end > self.start else None

    # -- following the log ---------------------------------------------------------------------

    def rewind(self, log_offset: int) -> None:
        """Forget every entry of a record at or after `log_offset`; see `clear_behind`.

        A wrong entry may lead the search astray: then those behind it that are right say so.
        """
        if 0 < self._last_log < log_offset:
            return
        self.settle()
        known = self.end
        end = self._bisect(lambda e: e[1] > 0 and e[0] < log_offset, remember_last=True)
        end = max(end, self.start)
        if self._last_log == 0:
            # Padding looks like something from before, and may have led the search too far.
            while end > self.start and (
                (last := self.entry(end - 1))[1] == PADDING_SIZE or last[0] >= log_offset
            ):
                end -= 1
        if self.check is not None:
            end = self._last_right(self.check, log_offset, end, known)
        self.end = end
        if any(file * self._file_entries >= end for file in self._files):
            # Made since the checkpoint, by somebody who may have died before he made it durable.
            self._unsynced.update(map(str, (self.folder, *parents_of(self.folder))))
        self.reserved = self.allocated = self.end
        self._flushed = min(self._flushed, self.end)

    def _last_right(self, check: "Mending", log_offset: int, begin: int, end: int) -> int:
        """One past the last entry from `begin` on that is of a record before `log_offset`.

        What a write that was cut off leaves is smaller than what was to be written.
        """
        is_damaged = False
        for high in range(end, begin, -_READ_ENTRIES):
            low = max(begin, high - _READ_ENTRIES)
            rows = np.frombuffer(self.read_entries(low, high - low), ENTRY_DTYPE)
            before = (rows["size"] > 0) & (rows["log"] >= 0) & (rows["log"] < log_offset)
            for row in reversed(np.flatnonzero(before).tolist()):
                if check.leads_there(self, low + row):
                    begin = low + int(row) + 1
                    break
            is_damaged |= check.is_outside(rows["log"])
            if begin > low:
                break
        return check.end_in_log(self, begin, end, log_offset) if is_damaged else begin

    def cut(self, end: int) -> None:
        """Let the queue end at `end`, and clear what follows."""
        self.settle()
        self.end = self.reserved = self.allocated = max(end, self.start)
        self._flushed = min(self._flushed, self.end)
        self.clear_behind()

    def cut_at(self, log_offset: int) -> None:
        """`rewind` for a queue in use: forget every entry of a record from `log_offset` on."""
        end = self.first_not_before(lambda entry: entry[0] < log_offset)
        if end < self.end or self.reserved > self.end:
            self.cut(end)
            if self.end == self.start:
                self._begins_at = -1

    def back_to(self, offset: int) -> None:
        """Go back to an offset below the end: later messages take the places of earlier ones."""
        self._begins_at = -1
        if offset >= self.start:
            self.cut(offset)
            return
        self.delete()
        self.start = self.end = self.reserved = self.allocated = self._flushed = 0

    def clear_behind(self) -> None:
        """Turn whatever a crash left behind the end into zeros, and delete files that are empty."""
        self.settle()
        self._delete_after(self.end)
        file, slot = divmod(self.end, self._file_entries)
        if file not in self._files:
            return
        at = slot * ENTRY_BYTES
        with opened(self._name(file), os.O_RDWR) as fd:
            if end_of_data(fd, at) > at:
                self.unmap(file)
                os.ftruncate(fd, at)
                os.ftruncate(fd, self._file_entries * ENTRY_BYTES)
                self.allocated = self.end

    def delete_before(self, log_start: int) -> int:
        """Follow the log's deletion: move `start`, delete files that have only gone entries.

        Returns the bytes of the deleted files.
        """
        return self.begin_at(self.first_from(log_start), lambda path: path.unlink(missing_ok=True))

    def first_from(self, log_start: int) -> int:
        """The first message from a log offset on; for any thread, read with system calls."""
        if self._begins_at >= log_start or self.start == self.end:
            return self.start
        found = max(self.start, self.first_not_before(lambda entry: entry[0] < log_start))
        self._begins_at = self.read_entry(found)[0] if found < self.end else -1
        return found

    def begin_at(self, start: int, discard: Callable[[Path], object]) -> int:
        """Let the queue begin at an offset, and discard files before it; returns their bytes."""
        self.start = max(self.start, start)
        gone = 0
        while len(self._files) > 1 and (self._files[0] + 1) * self._file_entries <= self.start:
            file = self._files.pop(0)
            self.unmap(file)
            discard(self.path(file))
            gone += self._file_entries * ENTRY_BYTES
        return gone

    def forget(self) -> list[mmap.mmap]:
        """The queue's files are to be deleted; returns what was mapped of them."""
        if self._maker is not None:
            with self._maker.lock:
                self._young = None
        maps = list(self._maps.values())
        self.unmap_all()
        self._files.clear()
        return maps

    def delete(self) -> None:
        """Remove the queue's files and folder."""
        self.settle()
        for file in self._files:
            self.unmap(file)
            self.path(file).unlink(missing_ok=True)
        self._files.clear()
        self._remove_folder()

    def flush(self) -> None:
        """Return when all entries put before the call are on disk.

        Through the file, not the map: `mmap.flush` would hold the interpreter lock meanwhile.
        """
        end = self.end
        files = list(self._files)
        for file in files:
            if (file + 1) * self._file_entries <= self._flushed or file * self._file_entries >= end:
                continue
            path = self.path(file)
            try:
                with open(path, "rb", buffering=0) as raw:
                    sync_file(raw.fileno(), path)
            except FileNotFoundError:
                continue  # Retention or a deleted topic took the file meanwhile.
            except OSError as error:
                raise disk_error(error, path, "open") from error
        self._flushed = end
