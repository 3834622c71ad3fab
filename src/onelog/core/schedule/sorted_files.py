"""Sorted files: stretches of the timer queue, sorted by due time, in files that never change.

A file knows everything about the messages from queue offset `first` up to `end`: when each of them
is due that had not left when the file was written. It is named by the two, and holds

    magic     8   OLTIMER1
    count     8   entries
    first     8   the queue offsets that it knows about
    end       8
    last_at   8   where in the log the last of these messages is
    crc       8   CRC-32 of the two columns
    dues      8   * count, ascending, in milliseconds since the epoch
    offsets   8   * count, ascending where due times are equal; `~offset` cancels a message

with all integers little-endian. They are derived data: what is missing or damaged is read from the
queue again. They are written beside their place and moved there, so what has its name is whole,
unless the machine lost power, which the checksum tells.

Invariant: entries of a file are in order, and `cursor` never passes over one that is pending.
"""

import mmap
import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from onelog.core.schedule.progress import DeliveryProgress, Numbers
from onelog.errors import StoreCorruptError
from onelog.private_files import make_folder, opener
from onelog.store.segment import disk_error

MAGIC = b"OLTIMER1"
HEADER = struct.Struct("<8sqqqqq")
_NAME = re.compile(r"(\d{20})-(\d{20})")
_LITTLE = np.dtype("<i8")
_SKIP_COUNT = 8_192


class Columns(NamedTuple):
    """Entries, as two columns of equal length."""

    dues: Numbers
    offsets: Numbers

    def part(self, chosen: "slice | npt.NDArray[np.bool_] | npt.NDArray[np.intp]") -> "Columns":
        return Columns(self.dues[chosen], self.offsets[chosen])

    def sorted(self) -> "Columns":
        """The entries in the order in which they leave."""
        return self.part(np.lexsort((self.offsets, self.dues)))

    def pending(self, progress: DeliveryProgress) -> "Columns":
        """The entries that have not left."""
        return self.part(~progress.covered(self.dues, self.offsets))

    def useful(self, progress: DeliveryProgress) -> "Columns":
        """The entries of messages that have not left.

        What cancels a message is of use as long as that one, though it leaves before it: of many
        that are due at once, some may leave before a restart and some after.
        """
        messages = np.where(self.offsets < 0, ~self.offsets, self.offsets)
        return self.part(~progress.covered(self.dues, messages))

    def has(self, dues: Numbers, offsets: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these are among the entries, which are in order."""
        begins = np.searchsorted(self.dues, dues, "left")
        ends = np.searchsorted(self.dues, dues, "right")
        found = np.zeros(len(dues), np.bool_)
        for number in np.flatnonzero(begins < ends):
            same = self.offsets[begins[number] : ends[number]]
            row = int(np.searchsorted(same, offsets[number]))
            found[number] = row < len(same) and same[row] == offsets[number]
        return found


def join(parts: Sequence[Columns]) -> Columns:
    """All entries, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    return Columns(
        np.concatenate([part.dues for part in parts] or [np.zeros(0, np.int64)]),
        np.concatenate([part.offsets for part in parts] or [np.zeros(0, np.int64)]),
    )


def merge(parts: Sequence[Columns], progress: DeliveryProgress) -> Columns:
    """What is still of use of the entries, in order; not both of a pair that cancel each other."""
    left = join(parts).useful(progress)
    cancels = ~left.offsets[left.offsets < 0]
    if len(cancels):
        met = cancels[np.isin(cancels, left.offsets)]
        left = left.part(~(np.isin(left.offsets, met) | np.isin(~left.offsets, met)))
    return left.sorted()


class SortedFile:
    """One file. Made by `write_sorted` or `load_sorted`."""

    def __init__(self, path: Path, first: int, end: int, last_at: int, columns: Columns) -> None:
        self.path = path
        self.first = first
        self.end = end
        self.last_at = last_at
        self.columns = columns
        self.cursor = 0

    def __len__(self) -> int:
        return len(self.columns.dues)

    @property
    def live(self) -> int:
        """How many entries have not left, or a few more."""
        return len(self) - self.cursor

    def skip(self, progress: DeliveryProgress) -> None:
        """Move the cursor to the first entry that is pending."""
        while self.cursor < len(self):
            part = self.columns.part(slice(self.cursor, self.cursor + _SKIP_COUNT))
            left = progress.covered(*part)
            if not left.all():
                self.cursor += int(left.argmin())
                return
            self.cursor += len(left)

    def is_done(self, progress: DeliveryProgress) -> bool:
        """Whether nothing of it is pending; sometimes a moment late."""
        if not len(self):
            return True
        if not progress.steps or progress.steps[-1].end < self.end:
            return False
        last = progress.steps[-1]
        return (int(self.columns.dues[-1]), int(self.columns.offsets[-1])) <= last[1:]


def write_sorted(folder: Path, first: int, end: int, last_at: int, columns: Columns) -> SortedFile:
    """Write entries, which are in order, as a file; on disk when this returns."""
    dues, offsets = (np.ascontiguousarray(column, _LITTLE).data for column in columns)
    crc = crc32(offsets, crc32(dues))
    head = HEADER.pack(MAGIC, len(columns.dues), first, end, last_at, crc)
    path = folder / f"{first:020d}-{end:020d}"
    temporary = path.with_suffix(".tmp")
    try:
        make_folder(folder)
        with open(temporary, "wb", opener=opener) as file:
            file.write(head)
            file.write(dues)
            file.write(offsets)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise disk_error(error, path, "write") from error
    return load_sorted(path)


def load_sorted(path: Path) -> SortedFile:
    """A file that was written before; `StoreCorruptError` if it is not whole."""
    try:
        with open(path, "rb", buffering=0) as file:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, count, first, end, last_at, crc = HEADER.unpack_from(view)
        data = memoryview(view)[HEADER.size :]
        if magic != MAGIC or len(data) != 2 * 8 * count or crc32(data) != crc:
            raise StoreCorruptError(f"{path} is damaged")
    except OSError as error:
        raise disk_error(error, path, "read") from error
    except (struct.error, ValueError) as error:
        raise StoreCorruptError(f"{path} is cut off: {error}") from error
    numbers = np.frombuffer(data, _LITTLE)
    return SortedFile(path, first, end, last_at, Columns(numbers[:count], numbers[count:]))


def sorted_files_in(folder: Path) -> list[tuple[int, int, Path]]:
    """The files in a folder, with `first` and `end`: those that begin first, and of these the
    longest, in front. What was not finished is removed.
    """
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix == ".tmp":
            path.unlink(missing_ok=True)
        elif (name := _NAME.fullmatch(path.name)) is not None:
            found.append((int(name[1]), int(name[2]), path))
    return sorted(found, key=lambda file: (file[0], -file[1]))
