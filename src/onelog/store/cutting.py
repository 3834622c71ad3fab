"""Cutting a log's tail, and keeping aside what was cut: nobody needs it, until somebody does.

    onelog-cut/<log offset>[.<n>]      a stretch of the log that was cut there; files with the same
                                       offset are numbered, the newest hundred are kept

Whole segments are moved, the rest is copied. If the disk has not room for that and for as much of
log again, nothing is kept: `StoreFullError`, and who was to cut does so only if that does not
matter.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from onelog.errors import StoreFullError
from onelog.private_files import make_folder, opener
from onelog.store.commitlog import CommitLog
from onelog.store.segment import Segment, disk_error, file_name, sync_file, sync_folder

CUT_FOLDER = "onelog-cut"
_CUT_FILES_MAX = 100
_COPY_BYTES = 16 << 20


class Cut(NamedTuple):
    """What was cut from the end of a log."""

    log_offset: int
    size: int
    """Bytes behind it, without the zeros at their end."""
    why: str
    kept: tuple[Path, ...]
    """Where they are now; empty if there was nothing, or no room for it."""
    rewound: bool
    """Whether queues and index had known of it."""

    def __str__(self) -> str:
        """One line for the log."""
        where = ", ".join(str(path) for path in self.kept)
        return (
            f"{self.size} bytes were cut from the log at {self.log_offset} ({self.why}); "
            + (f"they are in {where}" if self.kept else "no copy was kept" * bool(self.size))
            + "; queues were rewound" * self.rewound
        )


Piece = tuple[Segment, int, int]
"""A segment, a place in it, and how many bytes from there on are more than zeros."""


def pieces_behind(log: CommitLog, end: int) -> list[Piece]:
    """What a log has behind an offset, segment by segment."""
    behind = []
    for segment in log.segments:
        if segment.start + segment.size <= end:
            continue
        at = max(0, end - segment.start)
        if size := segment.data_end(at) - at:
            behind.append((segment, at, size))
    return behind


def put_aside(log: CommitLog, behind: Sequence[Piece]) -> tuple[Path, ...]:
    """Keep what is to be cut, on disk for certain; returns where."""
    folder = log.folder.parent / CUT_FOLDER
    size = sum(size for _, _, size in behind)
    kept: list[Path] = []
    if not behind:
        return ()
    try:
        free = shutil.disk_usage(log.folder).free
        if free < 2 * size:
            raise StoreFullError(
                f"the disk of {log.folder} has not the room to keep {size} bytes that are to be "
                f"cut from the log's end, and to get others: {free} bytes are free"
            )
        make_folder(folder)
        for segment, at, length in behind:
            target = _free_name(folder, segment.start + at)
            if at or segment is log.segments[0]:
                _copy(segment, at, length, target)
            else:
                os.link(segment.path, target)
                os.utime(target)
            kept.append(target)
        sync_folder(folder)
        files = sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime)
        for entry in files[: -max(_CUT_FILES_MAX, len(kept))]:
            os.unlink(entry.path)
    except OSError as error:
        raise disk_error(error, folder, "keep what is to be cut in") from error
    return tuple(kept)


def _free_name(folder: Path, log_offset: int) -> Path:
    name = file_name(log_offset)
    number = 1
    while (folder / name).exists():
        number += 1
        name = f"{file_name(log_offset)}.{number}"
    return folder / name


def _copy(segment: Segment, at: int, size: int, target: Path) -> None:
    with open(target, "wb", opener=opener) as out:
        for position in range(at, at + size, _COPY_BYTES):
            out.write(segment.read_around(position, min(_COPY_BYTES, at + size - position)))
        out.flush()
        sync_file(out.fileno(), target)
