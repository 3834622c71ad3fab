"""The files of a store as one task sees them: only those that it needs, opened when it needs them.

Nothing here finds out where a queue or the log ends: a task reads what the driver found settled
(see `store.readonly`), and of a queue only the entries in its range.

Invariant: nothing is locked, written or created, and a file that was deleted meanwhile is
`DataLossError`, not a surprise.
"""

import bisect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onelog.client.message import Queue
from onelog.errors import DataLossError, StoreError
from onelog.store.consumequeue import ConsumeQueue, MapBudget
from onelog.store.folder import look, queue_file_entries
from onelog.store.queue_folders import QUEUES_FOLDER, queue_folder
from onelog.store.segment import Segment, file_name, numbered_files

ENTRY = np.dtype([("log", ">i8"), ("size", ">i4"), ("code", ">i8")])
EntryArray = npt.NDArray[np.void]

_QUEUE_MAPS_MAX = 64


class LogFiles:
    """The segments of a log that were there when it was opened."""

    def __init__(self, store: Path) -> None:
        self._folder = store / "commitlog"
        files = look(store, lambda: numbered_files(self._folder))
        self._sizes = {start: size for start, size in files if size}
        self._starts = sorted(self._sizes)
        self._open: Segment | None = None

    @property
    def start(self) -> int:
        """The first byte that is still there."""
        return self._starts[0] if self._starts else 0

    def segment_at(self, log_offset: int) -> Segment:
        """The segment that holds a log offset; only the last one asked for is kept open."""
        held = self._open
        if held is None or not held.start <= log_offset < held.start + held.size:
            place = bisect.bisect_right(self._starts, log_offset) - 1
            start = self._starts[place] if place >= 0 else -1
            if start < 0 or log_offset >= start + self._sizes[start]:
                raise DataLossError(
                    f"log offset {log_offset} is in no file of {self._folder} any more"
                )
            path = self._folder / file_name(start)
            if not path.exists():
                raise DataLossError(f"{path} was deleted while it was to be read")
            held = self._open = Segment(path, start, self._sizes[start], writable=False)
        return held

    def next_start(self, log_offset: int) -> int | None:
        """Where the next segment after a log offset starts."""
        place = bisect.bisect_right(self._starts, log_offset)
        return self._starts[place] if place < len(self._starts) else None


class QueueFiles:
    """The queues of a store, each opened when it is asked for."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._folder = store / QUEUES_FOLDER
        self._file_entries = look(store, lambda: queue_file_entries(store))
        self._budget = MapBudget(_QUEUE_MAPS_MAX)

    def open(self, queue: Queue) -> ConsumeQueue:
        """One queue, as it is now; without entries if it has no files."""
        folder = queue_folder(self._folder, queue.topic, queue.queue_id)

        def opened() -> ConsumeQueue:
            return ConsumeQueue(
                folder, queue.topic, queue.queue_id, self._file_entries, self._budget,
                writable=False,
            )  # fmt: skip

        return look(self._store, opened)


def entries_of(queue: ConsumeQueue, start: int, end: int, at_once: int) -> Iterator[EntryArray]:
    """The entries from `start` to `end`, so many at once; all of them must be in the queue.

    `FileNotFoundError` if a file of the queue was deleted since it was opened.
    """
    assert queue.start <= start
    assert end <= queue.end
    while start < end:
        count = min(at_once, end - start)
        try:
            parts = [np.frombuffer(raw, ENTRY) for raw in queue.raw_entries(start, count)]
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            raise
        yield np.concatenate(parts) if len(parts) > 1 else parts[0]
        start += count
