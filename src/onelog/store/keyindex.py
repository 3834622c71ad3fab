"""The key index: find messages by key or unique id in a time range, newest first.

A file is a hash table on disk, RocketMQ's IndexFile:

    header 40    int64 first store time, int64 last store time, int64 first log offset,
                 int64 last log offset, int32 used slots, int32 next entry number (starts at 1)
    slots        int32 each: the number of the newest entry with that hash, 0 if there is none
    entries      int32 key hash | int64 log offset | int32 seconds since the first store time
                 | int32 number of the next older entry in the slot               20 bytes

The key is `topic#key` (see `keyhash`); what a look-up returns may be another key's message, so the
caller compares. Files are named by the local time they were begun.

Appending a message only queues its properties here. Keys are hashed and linked many at a time, by
`build`, which look-ups and the flush thread call: a hundred nanoseconds a key instead of several
microseconds. What is queued and lost in a crash is rebuilt from the log.
"""

import itertools
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from struct import Struct
from typing import cast

import numpy as np
import numpy.typing as npt

from onelog.errors import StoreCorruptError, StoreVersionError
from onelog.message import (
    TRANSACTION_MASK,
    Appended,
    NewMessage,
    NewRun,
    SysFlag,
)
from onelog.store.keyhash import KEYS_NEEDLE, hashes_of, key_hash
from onelog.store.segment import disk_error

HEADER = Struct(">qqqqii")
SLOT_BYTES = 4
ENTRY_DTYPE = np.dtype([("hash", ">i4"), ("log", ">i8"), ("seconds", ">i4"), ("older", ">i4")])
ENTRY_BYTES = ENTRY_DTYPE.itemsize
_ENTRY = Struct(">iqii")
_ALLOCATE_ENTRIES = 50_000
_PENDING_MAX = 2_048

_ROLLED_BACK = int(SysFlag.ROLLED_BACK)

Pending = tuple[Sequence[NewMessage] | NewRun, Sequence[Appended] | Sequence[int], int]
"""What was appended together, where it went (of a run: the log offsets alone), and when."""
_TOPIC, _PROPERTIES, _FLAGS = (
    itemgetter(NewMessage._fields.index(name)) for name in ("topic", "properties", "sys_flag")
)
_PART_PROPERTIES, _LOG_OFFSET = itemgetter(2), itemgetter(0)


class IndexFile:
    """One hash table on disk."""

    def __init__(self, path: Path, slots: int, entries: int, *, writable: bool) -> None:
        self.path = path
        self.slots_count = slots
        self.entries_count = entries
        self.size = HEADER.size + slots * SLOT_BYTES + entries * ENTRY_BYTES
        created = not path.exists()
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY, 0o644)
            try:
                if writable and os.fstat(fd).st_size != self.size:
                    if not created:
                        raise StoreVersionError(
                            f"{path} has {os.fstat(fd).st_size} bytes; {slots} slots and {entries} "
                            f"entries need {self.size}: open the store with the index_slots and "
                            "index_entries it was written with"
                        )
                    os.ftruncate(fd, self.size)
                if writable:
                    os.posix_fallocate(fd, 0, HEADER.size + slots * SLOT_BYTES)
                access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
                self._map = mmap.mmap(fd, self.size, access=access)
                self._map.madvise(mmap.MADV_RANDOM)
            finally:
                os.close(fd)
        except ValueError as error:
            raise StoreCorruptError(f"{path} is shorter than its {self.size} bytes") from error
        except OSError as error:
            if created and writable:
                path.unlink(missing_ok=True)
            raise disk_error(error, path, "create" if created else "open") from error
        self._slots = np.frombuffer(self._map, ">i4", slots, HEADER.size)
        self._entries = np.frombuffer(
            self._map, ENTRY_DTYPE, entries, HEADER.size + slots * SLOT_BYTES
        )
        self._read_header()
        self._allocated = self.next_entry
        if self.next_entry == 1 and writable:
            self._write_header()

    def _read_header(self) -> None:
        (self.first_ms, self.last_ms, self.first_log, self.last_log, self.used_slots,
         next_entry) = HEADER.unpack_from(self._map)  # fmt: skip
        self.next_entry = max(1, next_entry)

    def _write_header(self) -> None:
        HEADER.pack_into(
            self._map, 0, self.first_ms, self.last_ms, self.first_log, self.last_log,
            self.used_slots, self.next_entry,
        )  # fmt: skip

    @property
    def room(self) -> int:
        """How many more entries fit; entry 0 is never used."""
        return self.entries_count - int(self.next_entry)

    def _allocate(self, until: int) -> None:
        if until <= self._allocated:
            return
        until = min(max(until, self._allocated + _ALLOCATE_ENTRIES), self.entries_count)
        at = HEADER.size + self.slots_count * SLOT_BYTES + self._allocated * ENTRY_BYTES
        try:
            fd = os.open(self.path, os.O_RDWR)
            try:
                os.posix_fallocate(fd, at, (until - self._allocated) * ENTRY_BYTES)
            finally:
                os.close(fd)
        except OSError as error:
            raise disk_error(error, self.path, "allocate room in") from error
        self._allocated = until

    def add(
        self,
        hashes: npt.NDArray[np.int64],
        log_offsets: npt.NDArray[np.int64],
        store_ms: npt.NDArray[np.int64],
    ) -> None:
        """Link entries, in the order of the log, into their slots."""
        count = len(hashes)
        self._allocate(self.next_entry + count)
        if self.next_entry == 1:
            self.first_ms, self.first_log = int(store_ms[0]), int(log_offsets[0])
        numbers = np.arange(self.next_entry, self.next_entry + count)
        slots = hashes % self.slots_count
        before = self._slots[slots].astype(np.int64)
        before[(before <= 0) | (before >= self.next_entry)] = 0
        # Within this call an entry's older neighbour is the one before it in the same slot.
        order = np.argsort(slots, kind="stable")
        same = slots[order][1:] == slots[order][:-1]
        before[order[1:][same]] = numbers[order[:-1][same]]
        target = self._entries[self.next_entry : self.next_entry + count]
        target["hash"], target["log"], target["older"] = hashes, log_offsets, before
        target["seconds"] = np.clip((store_ms - self.first_ms) // 1000, 0, 0x7FFFFFFF)
        self._slots[slots] = numbers  # The last one wins where a slot comes twice.
        self.used_slots += int((before == 0).sum())
        self.next_entry += count
        self.last_ms, self.last_log = int(store_ms[-1]), int(log_offsets[-1])
        self._write_header()

    def find(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Log offsets of entries with this hash, newest first; times are exact to the second."""
        if self.next_entry == 1 or begin_ms > self.last_ms + 999 or end_ms < self.first_ms:
            return
        try:
            # Not through the map: a page that is not in memory would be waited for with the
            # interpreter's lock in hand.
            with open(self.path, "rb", buffering=0) as raw:
                yield from self._follow(raw.fileno(), hashed, begin_ms, end_ms)
        except FileNotFoundError:
            return  # Retention took it meanwhile.
        except OSError as error:
            raise disk_error(error, self.path, "read") from error

    def _follow(self, fd: int, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """The chain of one slot."""
        entries_at = HEADER.size + self.slots_count * SLOT_BYTES
        slot = os.pread(fd, SLOT_BYTES, HEADER.size + hashed % self.slots_count * SLOT_BYTES)
        number = int.from_bytes(slot, "big", signed=True)
        while 0 < number < self.next_entry:
            found, log_offset, seconds, older = _ENTRY.unpack(
                os.pread(fd, ENTRY_BYTES, entries_at + number * ENTRY_BYTES)
            )
            at_ms = self.first_ms + seconds * 1000
            if at_ms + 999 < begin_ms:
                return
            if found == hashed and at_ms <= end_ms:
                yield log_offset
            if older >= number:
                return
            number = older

    def truncate(self, log_offset: int) -> None:
        """Drop the entries of records at or after `log_offset`, and relink the slots.

        After a crash the slots and the header may be older or newer than the entries, so both are
        made anew from the entries that are known to be on disk.
        """
        low, high = 0, self.entries_count - 1
        while low < high:
            middle = (low + high + 1) // 2
            entry = self._entries[middle]
            whole = entry["hash"] != 0 or entry["log"] != 0 or entry["older"] != 0
            low, high = (middle, high) if whole and entry["log"] < log_offset else (low, middle - 1)
        kept = self._read_entries(low)
        at = HEADER.size + self.slots_count * SLOT_BYTES + (low + 1) * ENTRY_BYTES
        with open(self.path, "r+b", buffering=0) as raw:
            os.ftruncate(raw.fileno(), at)
            os.ftruncate(raw.fileno(), self.size)
        slots = np.zeros(self.slots_count, ">i4")
        slots[kept["hash"].astype(np.int64) % self.slots_count] = np.arange(1, low + 1)
        self._slots[:] = slots
        self.used_slots = int(np.count_nonzero(self._slots))
        self.next_entry = self._allocated = low + 1
        if low:
            self.last_log = int(kept[-1]["log"])
            self.last_ms = self.first_ms + int(kept[-1]["seconds"]) * 1000 + 999
        self._write_header()

    def _read_entries(self, count: int) -> npt.NDArray[np.void]:
        """Entries 1 to `count`, read in one go: through the map, page by page, it takes seconds."""
        at = HEADER.size + self.slots_count * SLOT_BYTES + ENTRY_BYTES
        return np.fromfile(self.path, ENTRY_DTYPE, count, offset=at)

    def flush(self) -> None:
        """Return when all entries are on disk."""
        try:
            with open(self.path, "rb", buffering=0) as raw:
                os.fdatasync(raw.fileno())
        except OSError as error:
            raise disk_error(error, self.path, "flush") from error


class KeyIndex:
    """The index files of a store, and the messages that wait to be indexed."""

    def __init__(self, folder: Path, slots: int, entries: int, *, writable: bool = True) -> None:
        self.folder = folder
        self._slots = slots
        self._entries = entries
        self._lock = threading.Lock()
        self._pending: deque[Pending] = deque()
        self._noted = 0
        names = sorted(p for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []
        # A crash between making a file and giving it its size leaves one without content.
        for path in [each for each in names if each.stat().st_size == 0]:
            names.remove(path)
            if writable:
                path.unlink()
        # Replaced, never changed in place: the flush thread reads it without a lock.
        self._files = tuple(IndexFile(p, slots, entries, writable=writable) for p in names)
        self._dirty: set[IndexFile] = set()

    @property
    def files(self) -> tuple[IndexFile, ...]:
        """Oldest first."""
        return self._files

    @property
    def full_until_ms(self) -> int:
        """Up to when all messages are in files that are full.

        After a crash RocketMQ deletes files that end later and indexes their messages anew; were
        this any later, it would forget the keys of the file that is not full yet.
        """
        pairs = itertools.pairwise(self._files)
        return max((a.last_ms for a, b in pairs if a.last_ms < b.first_ms), default=0)

    def add(
        self, messages: Sequence[NewMessage], places: Sequence[Appended], store_ms: int
    ) -> None:
        """Take note of messages and where they are; `build` indexes them later."""
        self._pending.append((messages, places, store_ms))
        self._noted += len(messages)

    def add_run(self, run: NewRun, log_offsets: Sequence[int], store_ms: int) -> None:
        """`add` for the messages of a run."""
        self._pending.append((run, log_offsets, store_ms))
        self._noted += len(log_offsets)

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be indexed that `build` should be called."""
        return self._noted > _PENDING_MAX

    def build(self) -> None:
        """Index every message that was added before the call."""
        with self._lock:
            self._noted = 0
            batch = [self._pending.popleft() for _ in range(len(self._pending))]
            try:
                self._link(batch)
            except Exception:
                self._pending.extendleft(reversed(batch))
                self._noted = _PENDING_MAX + 1
                raise

    def _link(self, batch: list[Pending]) -> None:
        topics: list[str] = []
        properties: list[bytes] = []
        logs: list[int] = []
        times: list[int] = []
        for added, places, ms in batch:
            if isinstance(added, NewRun):
                topics += [added.topic] * len(places)
                properties += _run_properties(added)
                logs += cast(Sequence[int], places)
            else:
                topics += map(_TOPIC, added)
                of = _keyed_properties if any(map(_FLAGS, added)) else _PROPERTIES
                properties += map(of, added)
                logs += map(_LOG_OFFSET, cast(Sequence[Appended], places))
            times += [ms] * len(places)
        hashes, numbers = hashes_of(topics, properties)
        log_offsets = np.array(logs, np.int64)[numbers]
        store_ms = np.array(times, np.int64)[numbers]
        done = 0
        while done < len(hashes):
            if not self._files or self._files[-1].room == 0:
                self._add_file(int(store_ms[done]))
            file = self._files[-1]
            upto = done + min(file.room, len(hashes) - done)
            file.add(hashes[done:upto], log_offsets[done:upto], store_ms[done:upto])
            self._dirty.add(file)
            done = upto

    def _add_file(self, now_ms: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        latest = self._files[-1].path.name if self._files else ""
        name = _name_at(now_ms)
        while name <= latest:
            now_ms += 1
            name = _name_at(now_ms)
        file = IndexFile(self.folder / name, self._slots, self._entries, writable=True)
        self._files = (*self._files, file)

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Log offsets of messages that may have this key, newest first, over all files."""
        self.build()
        hashed = key_hash(f"{topic}#{key}")
        for file in reversed(self._files):
            yield from file.find(hashed, begin_ms, end_ms)

    def truncate(self, log_offset: int) -> None:
        """Forget every message at or after `log_offset`."""
        self._pending.clear()
        kept = list(self._files)
        while kept:
            kept[-1].truncate(log_offset)
            if kept[-1].next_entry > 1:
                self._dirty.add(kept[-1])
                break
            kept.pop().path.unlink(missing_ok=True)
        self._files = tuple(kept)

    def delete_before(self, log_start: int, discard: Callable[[Path], object]) -> int:
        """Discard files all of whose messages are gone; returns their bytes."""
        self.build()
        gone = 0
        with self._lock:
            while len(self._files) > 1 and self._files[0].last_log < log_start:
                first, *rest = self._files
                self._files = tuple(rest)
                discard(first.path)
                gone += first.size
        return gone

    def flush(self) -> None:
        """Return when everything that was built before the call is on disk."""
        while self._dirty:
            file = self._dirty.pop()
            if file in self._files:
                file.flush()


def _run_properties(run: NewRun) -> Iterable[bytes]:
    if run.shared.find(KEYS_NEEDLE) >= 0:
        return map(_PROPERTIES, run.messages())
    return map(_PART_PROPERTIES, run.parts)


def _keyed_properties(message: NewMessage) -> bytes:
    """A message that was rolled back is found under no key."""
    return b"" if message.sys_flag & TRANSACTION_MASK == _ROLLED_BACK else message.properties


def _name_at(now_ms: int) -> str:
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"
