"""What a folder tells about the store in it, found out by looking and without changing anything.

RocketMQ keeps no description of its files: their sizes are set in the broker's configuration. So
sizes are read off the files themselves, and the geometry of an index file, of which only the sum
can be seen, is guessed and then held against the content.
"""

import fcntl
import itertools
import json
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from onelog.config import StoreConfig
from onelog.errors import NotAStoreError, StoreCorruptError, StoreError, StoreVersionError
from onelog.record.entries import ENTRY_BYTES as QUEUE_ENTRY_BYTES
from onelog.store.checkpoint import check_version
from onelog.store.keyindex import ENTRY_BYTES, ENTRY_DTYPE, HEADER, SLOT_BYTES
from onelog.store.queue_folders import QUEUES_FOLDER, queue_folders
from onelog.store.segment import FILE_NAME, disk_error, numbered_files

T = TypeVar("T")

_STORE_NAMES = frozenset({"commitlog", "consumequeue", "checkpoint", "onelog.json"})
_DEFAULTS = StoreConfig()
_LOOKS_MAX = 5
_LOOKS_MAX_WHILE_FILES_GO = 50
_BETWEEN_LOOKS_S = 0.02
_GUESSES_MAX = 64
_USUAL_RATIO = _DEFAULTS.index_entries / _DEFAULTS.index_slots

# struct flock: Linux has type, whence, start, length, pid; the BSDs and macOS have it reversed.
_FLOCK = Struct("hhqqi") if sys.platform == "linux" else Struct("qqihh")
_FLOCK_ASKED = (fcntl.F_WRLCK, 0, 0, 1, 0) if sys.platform == "linux" else (0, 1, 0, 3, 0)


class IndexGeometry(NamedTuple):
    """How an index file is divided."""

    slots: int
    entries: int

    @property
    def size(self) -> int:
        """The bytes of such a file."""
        return HEADER.size + self.slots * SLOT_BYTES + self.entries * ENTRY_BYTES


def require_store(folder: Path) -> None:
    """Raise unless there is a store in the folder, in a format that we read."""
    try:
        if not folder.exists():
            raise NotAStoreError(f"there is no store in {folder}: the folder does not exist")
        if not folder.is_dir():
            raise NotAStoreError(
                f"there is no store in {folder}: it is a file; a store is a folder"
            )
        names = {entry.name for entry in os.scandir(folder)}
        check_version(folder / "onelog.json")
    except OSError as error:
        raise disk_error(error, folder, "read") from error
    _refuse_other_formats(folder, names)
    if names & _STORE_NAMES:
        return
    if any(map(FILE_NAME.fullmatch, names)):
        raise NotAStoreError(
            f"there is no store in {folder}: it holds the files of a log or queue; name the folder "
            "that has `commitlog` and `consumequeue` in it"
        )
    some = f"but has {', '.join(sorted(names)[:3])}" if names else "and is empty"
    raise NotAStoreError(f"there is no store in {folder}: it has no folder `commitlog`, {some}")


def check_is_store(folder: Path) -> None:
    """Raise unless the folder is a store we can write to, or empty, or not there yet."""
    if folder.exists() and not folder.is_dir():
        raise NotAStoreError(f"{folder} is a file; a store is a folder")
    check_version(folder / "onelog.json")
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    _refuse_other_formats(folder, names)
    known = {"commitlog", "consumequeue", "index", "checkpoint", "abort", "lock", "config"}
    if names and not names & known:
        some = ", ".join(sorted(names)[:3])
        raise NotAStoreError(
            f"{folder} is not a store: it has no commitlog folder, but {some}. Choose an empty "
            "folder, or the one that holds commitlog and consumequeue"
        )


def _refuse_other_formats(folder: Path, names: set[str]) -> None:
    if any(name.startswith("dledger-") for name in names):
        raise StoreVersionError(
            f"{folder} is a DLedger store; only RocketMQ's plain commit log can be read"
        )
    if "consumequeue_r" in names or "consumequeue_rocksdb" in names:
        raise StoreVersionError(
            f"{folder} keeps its queues in RocksDB (storeType=defaultRocksDB); only file queues "
            "can be read"
        )


def look(folder: Path, find_out: Callable[[], T]) -> T:
    """What can be found out about the store in a folder, looking again if need be.

    A file may go while it is being looked at, because retention deletes it, or may be there and
    not yet have its size. An error is believed only if it stays.
    """
    looks = 0
    while True:
        looks += 1
        try:
            require_store(folder)
            return find_out()
        except (OSError, StoreError) as error:
            if looks >= _looks_worth(error):
                if isinstance(error, OSError):
                    raise disk_error(error, folder, "read") from error
                raise
        time.sleep(_BETWEEN_LOOKS_S)


def _looks_worth(error: BaseException) -> int:
    """How often to look before an error is believed: a broker at work may have been the reason."""
    if isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError):
        return _LOOKS_MAX_WHILE_FILES_GO
    return _LOOKS_MAX if isinstance(error, StoreCorruptError) else 1


# -- sizes -------------------------------------------------------------------------------------


def segment_bytes(folder: Path) -> int:
    """The size of a store's segments; the default if there are none."""
    log = folder / "commitlog"
    files = numbered_files(log) if log.is_dir() else []
    return _file_bytes([files]) or _DEFAULTS.segment_bytes


def queue_file_entries(folder: Path) -> int:
    """How many entries a store's queue files have; the default if there are none."""
    size = _file_bytes(numbered_files(path) for _, _, path in queue_folders(folder / QUEUES_FOLDER))
    if size is None:
        return _DEFAULTS.queue_file_entries
    if size % QUEUE_ENTRY_BYTES:
        raise StoreCorruptError(
            f"the queue files in {folder / 'consumequeue'} have {size} bytes, which is no multiple "
            f"of an entry's {QUEUE_ENTRY_BYTES}"
        )
    return size // QUEUE_ENTRY_BYTES


def _file_bytes(rows: Iterable[list[tuple[int, int]]]) -> int | None:
    """The size that most of the files have, and that most names are apart.

    Both are counted, because a file that was cut off must not decide; an empty one says nothing.
    """
    votes: Counter[int] = Counter()
    for files in rows:
        votes.update(size for _, size in files if size)
        votes.update(b[0] - a[0] for a, b in itertools.pairwise(files))
    return max(votes, key=lambda size: (votes[size], size)) if votes else None


# -- index geometry ----------------------------------------------------------------------------


def index_files(folder: Path) -> list[Path]:
    """The index files of a store, oldest first."""
    index = folder / "index"
    found = os.scandir(index) if index.is_dir() else ()
    return sorted(Path(e.path) for e in found if e.name.isascii() and e.name.isdigit())


def index_geometry(
    folder: Path, slots: int | None = None, entries: int | None = None
) -> IndexGeometry | None:
    """How the index files of a store are divided; None if it cannot be told.

    What the caller knows is taken as given, and refused if the files cannot be like that.
    """
    sizes = {path: size for path in index_files(folder) if (size := path.stat().st_size)}
    is_wanted = slots is not None or entries is not None
    if not sizes:
        return IndexGeometry(slots or _DEFAULTS.index_slots, entries or _DEFAULTS.index_entries)
    votes = Counter(sizes.values())
    size = max(votes, key=lambda size: (votes[size], size))
    if is_wanted:
        for candidate in _completed(size, slots, entries):
            return candidate
        some = next(path for path in sizes if sizes[path] == size)
        raise StoreVersionError(
            f"{some} has {size} bytes; an index file with {slots or 'some'} slots and "
            f"{entries or 'some'} entries has another size"
        )
    default = IndexGeometry(_DEFAULTS.index_slots, _DEFAULTS.index_entries)
    if size == default.size:
        return default
    if size <= HEADER.size:
        return None
    whole = [path for path in sizes if sizes[path] == size]
    fullest = max(whole, key=lambda path: _header(path)[5])
    for guess in _guesses(fullest, size):
        if all(_is_consistent(path, guess) for path in whole):
            return guess
    return None


def geometry_advice(folder: Path) -> str:
    """What to tell people whose index cannot be read."""
    return (
        f"the index files in {folder / 'index'} have an unusual size, and no division into slots "
        "and entries fits their content: keys are not looked up; pass index_slots (RocketMQ's "
        "maxHashSlotNum) and index_entries (maxIndexNum) to have them read"
    )


def _completed(size: int, slots: int | None, entries: int | None) -> Iterator[IndexGeometry]:
    """The geometry with what is known, if it gives this size."""
    if slots is None:
        assert entries is not None
        slots = (size - HEADER.size - entries * ENTRY_BYTES) // SLOT_BYTES
    if entries is None:
        entries = (size - HEADER.size - slots * SLOT_BYTES) // ENTRY_BYTES
    geometry = IndexGeometry(slots, entries)
    if slots > 0 and entries > 0 and geometry.size == size:
        yield geometry


def _header(path: Path) -> tuple[int, ...]:
    with open(path, "rb") as raw:
        return HEADER.unpack(raw.read(HEADER.size))


def _guesses(path: Path, size: int) -> list[IndexGeometry]:
    """Geometries that fit what is in a file, the most usual first.

    The first number after the header that is not zero is a used slot, and names an entry. The right
    geometry is one under which the hash in that entry leads back to that slot, and under which
    the first and the last entry have the log offsets that the header says.
    """
    _, _, first_log, last_log, _, next_entry = _header(path)
    words = np.memmap(path, ">i4", "r", shape=(size // 4,))
    begin = HEADER.size // 4
    # 4 * slots + 20 * entries is known: so every fifth number of slots is possible.
    slots = np.arange(len(words) - begin, dtype=np.int64)[(len(words) - begin) % 5 :: 5]
    slots = slots[slots > 0]
    entries = (len(words) - begin - slots) // 5
    used = np.flatnonzero(words[begin:])
    if next_entry > 1:
        if not len(used):
            return []
        slot = int(used[0])
        newest = int(words[begin + slot])
        fits = (slots > slot) & (entries > max(newest, next_entry - 1)) & (newest > 0)
        slots, entries = slots[fits], entries[fits]

        def word(entry: int, field: int) -> npt.NDArray[np.int64]:
            found: npt.NDArray[np.int64] = words[begin + slots + 5 * entry + field].astype(np.int64)
            return found

        hashes = word(newest, 0)
        right = (hashes > 0) & (hashes % slots == slot)
        for entry, log in ((1, first_log), (next_entry - 1, last_log)):
            right &= (word(entry, 1) << 32) + (word(entry, 2) & 0xFFFFFFFF) == log
        slots, entries = slots[right], entries[right]
    order = np.argsort(np.abs(entries / slots - _USUAL_RATIO), kind="stable")[:_GUESSES_MAX]
    return [IndexGeometry(int(slots[at]), int(entries[at])) for at in order]


def _is_consistent(path: Path, geometry: IndexGeometry) -> bool:
    """Whether each used slot leads to an entry whose hash belongs in that slot."""
    content = np.memmap(path, np.uint8, "r")
    slots = np.frombuffer(content, ">i4", geometry.slots, HEADER.size)
    table = np.frombuffer(
        content, ENTRY_DTYPE, geometry.entries, HEADER.size + geometry.slots * SLOT_BYTES
    )
    next_entry = HEADER.unpack_from(content.data)[5]
    used = np.flatnonzero(slots)
    newest = slots[used].astype(np.int64)
    in_range = (newest > 0) & (newest < geometry.entries)
    if not 0 <= next_entry <= geometry.entries or not in_range.all():
        return False
    if next_entry > 1 and not len(used):
        return False
    return bool((table["hash"][newest].astype(np.int64) % geometry.slots == used).all())


# -- who ---------------------------------------------------------------------------------------


def written_by(folder: Path) -> str | None:
    """The OneLog that made the store, as it signed; None if only RocketMQ ever wrote to it."""
    path = folder / "onelog.json"
    if not path.exists():
        return None
    signature = json.loads(path.read_text()).get("written_by")
    return signature if isinstance(signature, str) else "onelog"


def lock_holder(folder: Path) -> int | None:
    """The process that has a store open for writing; 0 if it cannot be named, None if none has.

    The kernel is asked; no lock is taken, so a broker that starts just now is not disturbed.
    """
    path = folder / "lock"
    try:
        # To close a file drops all locks that this process has on it, so its own are looked for
        # in another place first.
        if _holds_itself(path):
            return os.getpid()
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        # Somebody may have deleted it; the folder is locked all the same.
        return next(_flock_holders(folder), None)
    except OSError as error:
        raise disk_error(error, path, "read") from error
    try:
        answer = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(*_FLOCK_ASKED)))
    finally:
        os.close(fd)
    kind, pid = (answer[0], answer[4]) if sys.platform == "linux" else (answer[3], answer[2])
    return None if kind == fcntl.F_UNLCK else max(0, pid)


def _holds_itself(path: Path) -> bool:
    """Whether this very process has locked a file."""
    return stat.S_ISREG(path.stat().st_mode) and os.getpid() in _flock_holders(path)


def _flock_holders(path: Path) -> Iterator[int]:
    """The processes that have locked a file or folder, where the system tells."""
    if not path.exists() or not os.path.exists("/proc/locks"):
        return
    inode = str(path.stat().st_ino)
    with open("/proc/locks") as locks:
        for row in map(str.split, locks):
            if len(row) > 5 and row[5].rpartition(":")[2] == inode:
                yield int(row[4])
