"""The key index: find messages by key or unique id in a time range, newest first.

A file is a hash table on disk, RocketMQ's IndexFile:

    header 40    int64 first store time, int64 last store time, int64 first log offset,
                 int64 last log offset, int32 used slots, int32 next entry number (starts at 1)
    slots        int32 each: the number of the newest entry with that hash, 0 if there is none
    entries      int32 key hash | int64 log offset | int32 seconds since the first store time
                 | int32 number of the next older entry in the slot               20 bytes

The key is `topic#key`, hashed as Java hashes strings; a message is indexed under its unique id and
the tokens of its KEYS. Properties of most messages look alike: in those of one length, the unique
id is at the same place. Such messages become the rows of a matrix, and a few operations on it hash
all their keys (`hashes_of`); a check of all bytes tells whether the rows really are alike.
What a look-up returns may be another key's message, so the caller compares. Files are named by the
local time they were begun.

Appending a message only queues its properties here. Keys are hashed and linked many at a time, by
`build`, which look-ups and the flush thread call: a hundred nanoseconds a key instead of several
microseconds. What is queued and lost in a crash is rebuilt from the log.

Invariant: `hashes_of` and `message_keys` with `key_hash` find the same keys and hashes.
"""

import errno
import functools
import itertools
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from struct import Struct

import numpy as np
import numpy.typing as npt

from onelog.errors import StoreCorruptError, StoreVersionError
from onelog.message import (
    KEYS,
    UNIQUE_KEY,
    Appended,
    NewMessage,
    NewRun,
    java_hash,
    property_bytes,
)
from onelog.private_files import FILE_MODE, make_folder
from onelog.store.segment import disk_error, sync_file, written_ranges

HEADER = Struct(">qqqqii")
SLOT_BYTES = 4
ENTRY_DTYPE = np.dtype([("hash", ">i4"), ("log", ">i8"), ("seconds", ">i4"), ("older", ">i4")])
ENTRY_BYTES = ENTRY_DTYPE.itemsize
ENTRY = Struct(">iqii")
KEYS_NEEDLE = KEYS.encode() + b"\x01"
_UNIQUE_KEY_NEEDLE = UNIQUE_KEY.encode() + b"\x01"
_MATRIX_BYTES_MAX = 8 << 20
"""One very long key must not make all others in the matrix as long."""
ALIKE_MIN = 32
"""As many messages of one form are worth a matrix of their own."""
Numbers = npt.NDArray[np.int64]
_ALLOCATE_ENTRIES = 50_000
_PENDING_MAX = 2_048
_READ_BYTES = 1 << 20

Pending = tuple[list[str], list[bytes], Sequence[int], int]
"""Of messages that were appended together: topics, properties and log offsets, and when."""
_TOPIC, _PROPERTIES = (
    itemgetter(NewMessage._fields.index(name)) for name in ("topic", "properties")
)
_PART_PROPERTIES, _LOG_OFFSET = itemgetter(2), itemgetter(0)


class IndexFile:
    """One hash table on disk."""

    def __init__(self, path: Path, slots: int, entries: int, *, writable: bool) -> None:
        self.path = path
        self.slots_count = slots
        self.entries_count = entries
        self.size = HEADER.size + slots * SLOT_BYTES + entries * ENTRY_BYTES
        self._fd = -1
        created = not path.exists()
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY, FILE_MODE)
            if writable:
                self._make(created)
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(self._fd, self.size, access=access)
            self._map.madvise(mmap.MADV_RANDOM)
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

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def _make(self, created: bool) -> None:
        """See that the file has its size, and the slots have their space."""
        size = os.fstat(self._fd).st_size
        slots_end = HEADER.size + self.slots_count * SLOT_BYTES
        if size != self.size:
            if not created:
                raise StoreVersionError(
                    f"{self.path} has {size} bytes; {self.slots_count} slots and "
                    f"{self.entries_count} entries need {self.size}: open the store with the "
                    "index_slots and index_entries it was written with"
                )
            os.ftruncate(self._fd, self.size)
        os.posix_fallocate(self._fd, 0, slots_end)

    def read_slots(self) -> None:
        """Read what the next entries go into, for writing goes through the map: see `_read`."""
        slots_end = HEADER.size + self.slots_count * SLOT_BYTES
        for at in range(0, slots_end, _READ_BYTES):
            self._read(at, min(_READ_BYTES, slots_end - at))
        self._entry(self.next_entry - 1)

    def _read_header(self) -> None:
        (
            self.first_ms,
            self.last_ms,
            self.first_log,
            self.last_log,
            self.used_slots,
            next_entry,
        ) = HEADER.unpack_from(self._map)
        self.next_entry = max(1, next_entry)

    def _write_header(self) -> None:
        HEADER.pack_into(
            self._map,
            0,
            self.first_ms,
            self.last_ms,
            self.first_log,
            self.last_log,
            self.used_slots,
            self.next_entry,
        )

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
            os.posix_fallocate(self._fd, at, (until - self._allocated) * ENTRY_BYTES)
        except OSError as error:
            raise disk_error(error, self.path, "allocate room in") from error
        self._allocated = until

    def add(
        self,
        hashes: Numbers,
        log_offsets: Numbers,
        store_ms: Numbers,
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
        # The place first: by that, entries that somebody did not come to finish are known, and cut.
        target["log"] = log_offsets
        target["hash"], target["older"] = hashes, before
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
        at = HEADER.size + hashed % self.slots_count * SLOT_BYTES
        number = int.from_bytes(self._read(at, SLOT_BYTES), "big", signed=True)
        while 0 < number < self.next_entry:
            found, log_offset, seconds, older = self._entry(number)
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
            hashed, log, _, older = self._entry(middle)
            whole = hashed != 0 or log != 0 or older != 0
            low, high = (middle, high) if whole and log < log_offset else (low, middle - 1)
        # Of the entry behind the last one that is known to be there, power may have failed in the
        # middle: it has a hash, and a place (or a part of one) that is before the others'.
        while low > 1 and self._entry(low)[1] < self._entry(low - 1)[1]:
            low -= 1
        kept = self._read_entries(low)
        slots = np.zeros(self.slots_count, ">i4")
        slots[kept["hash"].astype(np.int64) % self.slots_count] = np.arange(1, low + 1)
        self.used_slots = int(np.count_nonzero(slots))
        self.next_entry = self._allocated = low + 1
        if low:
            self.last_log = int(kept[-1]["log"])
            self.last_ms = self.first_ms + int(kept[-1]["seconds"]) * 1000 + 999
        # The header first: whoever dies here leaves no entries that it counts and that are no more.
        self._write_header()
        self._slots[:] = slots
        _clear(self._fd, HEADER.size + self.slots_count * SLOT_BYTES + (low + 1) * ENTRY_BYTES)

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        at = HEADER.size + self.slots_count * SLOT_BYTES + number * ENTRY_BYTES
        found: tuple[int, int, int, int] = ENTRY.unpack(self._read(at, ENTRY_BYTES))
        return found

    def _read(self, at: int, size: int) -> bytes:
        """Bytes of the file, not through the map: they may have to come from the disk, and a touch
        of the map where that cannot read ends the process."""
        try:
            found = os.pread(self._fd, size, at)
            if len(found) < size:
                raise OSError(errno.EIO, f"the file ends at byte {at + len(found)}")
        except OSError as error:
            raise disk_error(error, self.path, "read") from error
        return found

    def _read_entries(self, count: int) -> npt.NDArray[np.void]:
        """Entries 1 to `count`, read in one go: through the map, page by page, it takes seconds."""
        at = HEADER.size + self.slots_count * SLOT_BYTES + ENTRY_BYTES
        return np.frombuffer(self._read(at, count * ENTRY_BYTES), ENTRY_DTYPE)

    def flush(self) -> None:
        """Return when all entries are on disk."""
        sync_file(self._fd, self.path)


def _clear(fd: int, at: int) -> None:
    """Turn everything from `at` on into zeros; what is a hole is left alone.

    Not by making the file shorter and longer again: whoever dies in between leaves a file that
    looks as if it were of a store with other settings.
    """
    for begin, hole in written_ranges(fd, at):
        while begin < hole:
            begin += os.pwrite(fd, bytes(min(hole - begin, 1 << 20)), begin)


class KeyIndex:
    """The index files of a store, and the messages that wait to be indexed."""

    def __init__(
        self,
        folder: Path,
        slots: int,
        entries: int,
        *,
        writable: bool = True,
        unsynced: set[str] | None = None,
    ) -> None:
        """`unsynced` is told of folders that have new names, for whoever makes them durable."""
        self.folder = folder
        self._unsynced = set() if unsynced is None else unsynced
        self._slots = slots
        self._entries = entries
        self._lock = threading.RLock()
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
        if self._files and writable:
            self._files[-1].read_slots()
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

    def add(self, pending: Pending) -> None:
        """Take note of messages and where they are, as `pending_of` has it; `build` indexes them.

        None of them may be rolled back: those are found under no key.
        """
        self._pending.append(pending)
        self._noted += len(pending[0])

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
        for some_topics, some_properties, some_logs, _ in batch:
            topics += some_topics
            properties += some_properties
            logs += some_logs
        times = np.array([store_ms for *_, store_ms in batch], np.int64)
        counts = [len(some) for some, *_ in batch]
        hashes, numbers = hashes_of(topics, properties)
        log_offsets = np.array(logs, np.int64)[numbers]
        store_ms = times.repeat(counts)[numbers]
        self.enter(hashes, log_offsets, store_ms)

    def enter(self, hashes: Numbers, log_offsets: Numbers, store_ms: Numbers) -> None:
        """Index messages at once, whose keys are hashed already."""
        done = 0
        with self._lock:
            while done < len(hashes):
                now_ms = int(store_ms[done])
                # A file tells times from its first one on: it ends where the clock was set back.
                if not self._files or not self._files[-1].room or now_ms < self._files[-1].first_ms:
                    self._add_file(now_ms)
                file = self._files[-1]
                upto = done + min(file.room, len(hashes) - done)
                first_ms = file.first_ms if file.next_entry > 1 else now_ms
                before = np.flatnonzero(store_ms[done:upto] < first_ms)
                if len(before):
                    upto = done + int(before[0])
                file.add(hashes[done:upto], log_offsets[done:upto], store_ms[done:upto])
                self._dirty.add(file)
                done = upto

    def _add_file(self, now_ms: int) -> None:
        make_folder(self.folder)
        name = _name_at(now_ms)
        if self._files and name <= self._files[-1].path.name:
            # Names give the order of files, also when the clock was set back.
            name = str(int(self._files[-1].path.name) + 1)
        file = IndexFile(self.folder / name, self._slots, self._entries, writable=True)
        self._files = (*self._files, file)
        self._unsynced.update((str(self.folder), str(self.folder.parent)))

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Log offsets of messages that may have this key, newest first, over all files."""
        self.build()
        hashed = key_hash(f"{topic}#{key}")
        for file in reversed(self._files):
            yield from file.find(hashed, begin_ms, end_ms)

    def truncate(self, log_offset: int) -> None:
        """Forget every message at or after `log_offset`."""
        self._pending = deque(each for each in self._pending if each[2][-1] < log_offset)
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
        for file in list(self._dirty):
            self._dirty.discard(file)
            if file in self._files:
                try:
                    file.flush()
                except BaseException:
                    self._dirty.add(file)
                    raise


def pending_of(batches: Sequence[NewMessage], placed: Sequence[Appended], store_ms: int) -> Pending:
    """What the index has to know of messages."""
    return (
        [*map(_TOPIC, batches)],
        [*map(_PROPERTIES, batches)],
        [*map(_LOG_OFFSET, placed)],
        store_ms,
    )


def pending_run(run: NewRun, log_offsets: Sequence[int], store_ms: int) -> Pending:
    """The same of a run."""
    if run.shared.find(KEYS_NEEDLE) >= 0:
        properties = [*map(_PROPERTIES, run.messages())]
    else:
        properties = [*map(_PART_PROPERTIES, run.parts)]
    return [run.topic] * len(log_offsets), properties, log_offsets, store_ms


def _name_at(now_ms: int) -> str:
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"


# -- hashes ----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _powers(width: int) -> npt.NDArray[np.uint32]:
    """The powers of 31 with which the characters of a text of this length are weighted."""
    return np.array([pow(31, width - 1 - i, 1 << 32) for i in range(width)], np.uint32)


def key_hash(key: str) -> int:
    """The hash of `topic#key` without its sign; the one value that has no positive is 0."""
    return abs(java_hash(key)) & 0x7FFFFFFF


def key_hashes(keys: list[bytes]) -> Numbers:
    """`key_hash` of many strings at once.

    31 * 0 + 0 is 0, so ASCII strings padded with zero bytes in front keep their hash, and one
    matrix product with the powers of 31 hashes them all.
    """
    width = max(map(len, keys))
    padded = b"".join(keys)
    if len(padded) != width * len(keys) <= _MATRIX_BYTES_MAX:
        padded = b"".join([key.rjust(width, b"\0") for key in keys])
    if len(padded) != width * len(keys) or not padded.isascii():
        return np.array([key_hash(key.decode("utf-8", "replace")) for key in keys], np.int64)
    matrix = np.frombuffer(padded, np.uint8)
    return _without_sign(_sums(matrix.reshape(-1, width)))


def _sums(matrix: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Java's hash of each row."""
    powers = _powers(matrix.shape[1])
    sums: npt.NDArray[np.uint32] = np.einsum(
        "ij,j->i", matrix, powers, dtype=np.uint32, casting="unsafe"
    )
    return sums


def _without_sign(hashes: npt.NDArray[np.uint32]) -> Numbers:
    signed: Numbers = hashes.astype(np.int32).astype(np.int64)
    return np.abs(signed) & 0x7FFFFFFF


def message_keys(properties: bytes) -> list[bytes]:
    """The keys under which a message is indexed: its unique id, then the tokens of KEYS."""
    # The usual cases of `property_bytes`, without its call: this is done for every message.
    before, found, rest = properties.partition(_UNIQUE_KEY_NEEDLE)
    if before and found and before[-1] != 2:
        unique = property_bytes(properties, _UNIQUE_KEY_NEEDLE)
    else:
        unique = rest.partition(b"\x02")[0]
    result = [unique] if unique else []
    if properties.partition(KEYS_NEEDLE)[1]:
        keys = property_bytes(properties, KEYS_NEEDLE) or b""
        result += [key for key in keys.split(b" ") if key]
    return result


def hashes_of(topics: Sequence[str], properties: Sequence[bytes]) -> tuple[Numbers, Numbers]:
    """The hashes of all keys of messages, and the number of the message that each belongs to.

    Messages come in order; those of one message with its unique id first.
    """
    sizes = set(map(len, properties))
    if len(sizes) == 1 and sizes != {0} and len(set(topics)) == 1:
        hashes = _hashes_alike(topics[0], properties) if len(properties) >= ALIKE_MIN else None
        if hashes is not None:
            return hashes, np.arange(len(hashes))
    forms: dict[tuple[str, int], list[int]] = {}
    for number, form in enumerate(zip(topics, map(len, properties), strict=True)):
        try:
            forms[form].append(number)
        except KeyError:
            forms[form] = [number]
    found: list[tuple[Numbers, Numbers]] = []
    keys: list[bytes] = []
    owners: list[int] = []
    for (topic, size), members in forms.items():
        rows = [properties[number] for number in members]
        hashes = _hashes_alike(topic, rows) if size and len(rows) >= ALIKE_MIN else None
        if hashes is not None:
            found.append((hashes, np.array(members[: len(hashes)], np.int64)))
        elif size:
            prefix = f"{topic}#".encode()
            for number, row in zip(members, rows, strict=True):
                several = message_keys(row)
                keys += [prefix + key for key in several]
                owners += [number] * len(several)
    if keys:
        found.append((key_hashes(keys), np.array(owners, np.int64)))
    hashes = np.concatenate([np.empty(0, np.int64), *(each for each, _ in found)])
    numbers = np.concatenate([np.empty(0, np.int64), *(each for _, each in found)])
    order = np.argsort(numbers, kind="stable")
    return hashes[order], numbers[order]


def _hashes_alike(topic: str, rows: Sequence[bytes]) -> Numbers | None:
    """Of messages with properties of one length: the hash of each one's unique id, or none at all.

    None if that may not be its only key, or is not at the same place in all rows.
    """
    return unique_hashes(topic, b"".join(rows), len(rows))


def unique_hashes(topic: str, whole: bytes, count: int) -> Numbers | None:
    """The same; the properties come as one string."""
    if whole.find(KEYS_NEEDLE) >= 0:
        return None
    if whole.find(_UNIQUE_KEY_NEEDLE) < 0:
        return np.empty(0, np.int64)
    keys = values_alike(whole, count, _UNIQUE_KEY_NEEDLE)
    if keys is None:
        return None
    before = java_hash(f"{topic}#") * pow(31, keys.shape[1], 1 << 32) & 0xFFFFFFFF
    return _without_sign(_sums(keys) + np.uint32(before))


def tags_codes(tags: npt.NDArray[np.uint8]) -> Numbers:
    """`message.tags_code` of each row."""
    return _sums(tags).astype(np.int32).astype(np.int64)


def values_alike(whole: bytes, count: int, needle: bytes) -> npt.NDArray[np.uint8] | None:
    """Of messages with properties of one length, joined: the values of one property as rows.

    None if it is not once in each, at the same place and as long, or if there is more than ASCII.
    """
    size = len(whole) // count
    at = whole.find(needle, 0, size)
    begin = at + len(needle)
    end = whole.find(b"\x02", begin, size)
    end = end if end >= 0 else size
    if (
        at < 0
        or begin == end
        or whole.count(needle) != count
        or not whole.isascii()
        or len(whole) > _MATRIX_BYTES_MAX
    ):
        return None
    matrix = np.frombuffer(whole, np.uint8).reshape(-1, size)
    # A separator before the name, if it is not the first, and one after the value.
    frame = matrix[:, [*range(max(0, at - 1), begin), *range(end, min(end + 1, size))]]
    values = matrix[:, begin:end]
    if (frame != frame[0]).any() or (at and whole[at - 1] != 2) or (values == 2).any():
        return None
    return values
