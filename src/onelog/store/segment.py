"""One file of the log: preallocated, written once from front to back, read through a map.

A segment is created at its full size as a sparse file, named by the log offset of its first byte.
Reads are slices of one read-only map; a slice keeps the map alive, so a segment may be deleted
while somebody still reads from it: the bytes go when the last slice does.

A touch of a map where the disk cannot read ends the process (SIGBUS). So what `is_warm` does not
know to be in memory is read with a system call first, which fails with an error instead.

Invariant: bytes below the log's end never change, except that `truncate` zeroes what lies after it.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from onelog.errors import (
    FlushFailedError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StorePermissionError,
)
from onelog.private_files import FILE_MODE, FOLDER_MODE, opener

FILE_NAME = re.compile(r"\d{20}")
IOV_MAX = 1024
_DATA_BYTES = 1 << 20
_JOIN_BYTES_MAX = 64 * 1024
_WRITE_BYTES_MAX = 128 * 1024
"""The kernel takes memory for a write in pieces as large as the write. Of large ones it has only
those that nobody used for long, and a virtual machine's host has to find these again: seven times
as slow. Where it does not, smaller writes cost next to nothing."""
_ALLOCATE_BYTES_MIN = 1 << 20
_ALLOCATE_BYTES_MAX = 16 << 20
_RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_MINCORE = getattr(ctypes.CDLL(None), "mincore", None) if sys.platform == "linux" else None
if _MINCORE is not None:
    _MINCORE.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)

Buffer = bytes | bytearray | memoryview


def disk_error(error: OSError, path: Path, what: str) -> Exception:
    """The typed error for a failed system call on a store's file."""
    if error.errno in _FULL:
        return StoreFullError(
            f"no room on the disk to {what} {path}: free some space ({error.strerror})"
        )
    if error.errno in _SHORT:
        return StoreBusyError(
            f"cannot {what} {path} for the moment: {error.strerror}. If that lasts, raise the "
            "limit of open files (ulimit -n) or free some memory"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StorePermissionError(f"may not {what} {path}: {error.strerror}")
    return StoreFailedError(f"the disk failed to {what} {path}: {error}")


def flush_error(error: OSError, path: Path) -> FlushFailedError:
    """A failed flush, whatever the reason. It is final: the kernel may have dropped the pages.

    A full disk is no exception (it fails so where space is only allocated when data is written
    back), so this is never `StoreFullError`, which would be tried again.
    """
    return FlushFailedError(
        f"the disk failed to flush {path}: {error}. What was written last may be lost, so nothing "
        "more is taken: look after the disk, then start again"
    )


def sync_file(fd: int, path: Path) -> None:
    """Return when the content of a file is on disk."""
    try:
        os.fdatasync(fd)
    except OSError as error:
        raise flush_error(error, path) from error


def file_name(offset: int) -> str:
    """The 20 digits that name a file by the offset it starts at."""
    return f"{offset:020d}"


def numbered_files(folder: Path) -> list[tuple[int, int]]:
    """The (start offset, size) of each file in a folder that has 20 digits for a name, in order."""
    with os.scandir(folder) as found:
        return sorted((int(e.name), e.stat().st_size) for e in found if FILE_NAME.fullmatch(e.name))


@contextlib.contextmanager
def opened(path: Path | str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """The descriptor of a file, for as long as the block lasts."""
    fd = os.open(path, flags, FILE_MODE)
    try:
        yield fd
    finally:
        os.close(fd)


def written_ranges(fd: int, at: int) -> Iterator[tuple[int, int]]:
    """Where a file was ever written to, from `at` on; between these are holes, which are zeros."""
    with contextlib.suppress(OSError):  # There is nothing more.
        while True:
            at = os.lseek(fd, at, os.SEEK_DATA)
            hole = os.lseek(fd, at, os.SEEK_HOLE)
            yield at, hole
            at = hole


def end_of_data(fd: int, at: int) -> int:
    """One past the last byte of a file that is not zero; `at` if all are from there on.

    Holes are not read.
    """
    last = at
    for begin, end in written_ranges(fd, at):
        for here in range(begin, end, _DATA_BYTES):
            if rest := os.pread(fd, min(_DATA_BYTES, end - here), here).rstrip(b"\0"):
                last = here + len(rest)
    return last


def sync_folder(folder: Path) -> None:
    """Make new and removed names in a folder durable."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise disk_error(error, folder, "open") from error
    try:
        os.fsync(fd)
    except OSError as error:
        raise flush_error(error, folder) from error
    finally:
        os.close(fd)


def write_whole(path: Path, text: str) -> None:
    """Make a small file, or replace it: after a crash it has the old content or the new one."""
    new = path.with_suffix(".new")
    try:
        with open(new, "w", opener=opener) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise disk_error(error, path, "write to") from error
    sync_folder(path.parent)


def make_folders(folder: Path) -> None:
    """Make a folder and those above it that are missing, and make their names durable."""
    made = []
    for each in (folder, *folder.parents):
        if each.is_dir():
            break
        made.append(each)
    for each in reversed(made):
        each.mkdir(FOLDER_MODE, exist_ok=True)
        sync_folder(each.parent)


def _parts(buffers: Sequence[Buffer], at: int) -> Iterator[list[memoryview]]:
    """What is to be written at `at`, cut where writes are to end."""
    part: list[memoryview] = []
    room = _WRITE_BYTES_MAX - at % _WRITE_BYTES_MAX
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view) >= room:
            yield [*part, view[:room]]
            view, part, room = view[room:], [], _WRITE_BYTES_MAX
        if view:
            part.append(view)
            room -= len(view)
    if part:
        yield part


class Segment:
    """A file of the log, open for as long as the object lives."""

    def __init__(self, path: Path, start: int, size: int, *, writable: bool) -> None:
        self.path = path
        self.start = start
        self.size = size
        self._name_durable = path.exists()
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        try:
            self._fd = os.open(path, flags, FILE_MODE)
            if writable and os.fstat(self._fd).st_size != size:
                os.ftruncate(self._fd, size)
        except OSError as error:
            raise disk_error(error, path, "open") from error
        self._view: memoryview | None = None
        self._address = 0
        self._allocated = 0

    def __del__(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)

    @property
    def view(self) -> memoryview:
        """The whole file as read-only memory."""
        if self._view is None:
            if os.fstat(self._fd).st_size < self.size:
                raise StoreCorruptError(f"{self.path} is shorter than its {self.size} bytes")
            try:
                self._view = memoryview(mmap.mmap(self._fd, self.size, prot=mmap.PROT_READ))
            except OSError as error:
                raise disk_error(error, self.path, "map") from error
        return self._view

    def write(self, buffers: Sequence[Buffer], at: int, size: int) -> bool:
        """Write the buffers, `size` bytes in all, with one system call or, if large, a few.

        Whether that took more of the disk.
        """
        if size <= _JOIN_BYTES_MAX or len(buffers) > IOV_MAX:
            buffers = (b"".join(buffers),)
        has_grown = at + size > self._allocated
        if has_grown:
            self._allocate(at + size)
        try:
            for part in (buffers,) if size <= _WRITE_BYTES_MAX else _parts(buffers, at):
                size = sum(map(len, part))
                written = os.pwritev(self._fd, part, at)
                while written < size:  # A disk that is nearly full takes a part, then says so.
                    rest = memoryview(b"".join(part))[written:]
                    written += os.pwrite(self._fd, rest, at + written)
                at += size
        except OSError as error:
            raise disk_error(error, self.path, "write to") from error
        return has_grown

    def _allocate(self, until: int) -> None:
        """Have the disk set space aside ahead of the end: writes into it are a quarter faster.

        In steps that grow with the segment, so that a small log stays small. A disk without room
        for the step may still have some for the message: then the write itself will tell.
        """
        at = self._allocated
        step = min(max(at, _ALLOCATE_BYTES_MIN), _ALLOCATE_BYTES_MAX)
        self._allocated = min(max(until, at + step), self.size)
        with contextlib.suppress(OSError):
            os.posix_fallocate(self._fd, at, self._allocated - at)

    def truncate(self, at: int) -> None:
        """Turn everything from `at` on into zeros again. Needs no room, also on a full disk."""
        try:
            os.ftruncate(self._fd, at)
            os.ftruncate(self._fd, self.size)
        except OSError as error:
            raise disk_error(error, self.path, "truncate") from error
        self._allocated = min(self._allocated, at)

    def flush(self) -> None:
        """Return when what was written is on the disk."""
        sync_file(self._fd, self.path)
        if not self._name_durable:
            sync_folder(self.path.parent)
            sync_folder(self.path.parent.parent)
            self._name_durable = True

    def is_warm(self, at: int, size: int, scratch: memoryview) -> bool:
        """Whether a range can be read without waiting for the disk.

        Where neither the kernel nor the file system can tell, the answer is yes.
        """
        if size > mmap.PAGESIZE and (resident := self._is_resident(at, size)) is not None:
            return resident
        end = at + size
        try:
            while at < end:
                part = scratch[: min(len(scratch), end - at)]
                if os.preadv(self._fd, [part], at, _RWF_NOWAIT) < len(part):
                    return False
                at += len(part)
        except BlockingIOError:
            return False
        except OSError as error:
            # Anything else a worker will find out: it reads, and says what is wrong.
            return error.errno == errno.EOPNOTSUPP and self._is_resident(at, end - at) is not False
        return True

    def _is_resident(self, at: int, size: int) -> bool | None:
        """Whether every page of a range is in the page cache; None if nobody can tell.

        Reading the range would copy it; this costs 30 ns a page.
        """
        if _MINCORE is None:
            return None
        if not self._address:
            self._address = np.frombuffer(self.view, np.uint8).ctypes.data
        first = at // mmap.PAGESIZE
        count = -(-(at + size) // mmap.PAGESIZE) - first
        pages = ctypes.create_string_buffer(count)
        start = self._address + first * mmap.PAGESIZE
        if _MINCORE(start, count * mmap.PAGESIZE, pages) != 0:
            return None
        return b"\0" not in pages.raw

    def read(self, at: int, size: int) -> bytes:
        """A copy of a range, read with a system call: for worker threads and cold data."""
        try:
            found = os.pread(self._fd, size, at)
            while len(found) < size:  # Up to a bad sector the kernel gives what there is.
                more = os.pread(self._fd, size - len(found), at + len(found))
                if not more:
                    raise OSError(errno.EIO, f"the file ends at byte {at + len(found)}")
                found += more
        except OSError as error:
            raise disk_error(error, self.path, "read") from error
        return found

    def read_around(self, at: int, size: int) -> bytes:
        """The same, with zeros where the disk cannot read."""
        try:
            return self.read(at, size)
        except StoreError:
            found = b""
        end = at + size
        while at < end:
            upto = min(end, (at // mmap.PAGESIZE + 1) * mmap.PAGESIZE)
            try:
                found += self.read(at, upto - at)
            except StoreError:
                found += bytes(upto - at)
            at = upto
        return found

    def data_end(self, at: int) -> int:
        """Where the last byte that is not zero ends, from `at` on; `at` if there is none."""
        last = at
        for start, hole in written_ranges(self._fd, at):  # A sparse file answers at once.
            for position in range(start, hole, 1 << 20):
                part = self.read_around(position, min(1 << 20, hole - position))
                if stripped := part.rstrip(b"\0"):
                    last = position + len(stripped)
        return last

    def next_data(self, at: int) -> int:
        """The first place from `at` on that was ever written to; the size if there is none."""
        try:
            return os.lseek(self._fd, at, os.SEEK_DATA)
        except OSError:
            return self.size

    def data_until(self, at: int) -> int:
        """Where what was written at `at` ends at the latest: behind it is a hole."""
        try:
            return os.lseek(self._fd, at, os.SEEK_HOLE)
        except OSError:
            return self.size
