"""The wheel: which timed messages are pending, by due time, however many they are.

    queue of timed messages   0 ............................................ end
    sorted files, on disk     |----------------|-------|---|
    sealed, becoming a file                                |---|
    open, in memory                                            |-------|

Entries come in the order of the queue. So many of them make a file (`sorted_files`), neighbouring
files of a size are merged into one, by a worker, so that there are few. What is due next is a cache
over all of them: the `_near` entries, in order, and those that came since, in a heap. It holds
every pending entry before the horizon and none behind it, and may be dropped at any time.

Nothing leaves by being taken: an entry has left when `progress` covers it, which the owner sets
when it has recorded that. `cancelled` messages are those whose cancellation was taken; that one
comes first.

Invariant: entries of all messages below `end` are here, unless they have left; memory holds some
ten thousands of them.
"""

import heapq
import itertools
import logging
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onelog.core.schedule.progress import DeliveryProgress, Entry, Numbers
from onelog.core.schedule.sorted_files import (
    Columns,
    SortedFile,
    join,
    load_sorted,
    merge,
    sorted_files_in,
    write_sorted,
)
from onelog.errors import StoreCorruptError, StoreError

log = logging.getLogger(__name__)

FILE_COUNT = 32_768
"""Entries that are worth a file."""
NEAR_COUNT = 4_096
"""Entries that the cache is filled with; it grows to four times that before it is cut."""
MERGE_FILES = 6
MERGE_COUNT_MAX = 2_000_000
"""Entries of merged files: a worker needs some 100 bytes for each of them while it merges."""
_SCAN_COUNT = 65_536
_NEVER: Entry = ((1 << 63) - 1, (1 << 63) - 1)
_JOB_SECONDS_MAX = 60.0


class _Stretch:
    """Entries in memory, for the messages from queue offset `first` up to `end`."""

    __slots__ = ("_dues", "_offsets", "end", "first", "last_at")

    def __init__(self, first: int) -> None:
        self.first = self.end = first
        self.last_at = -1
        self._dues = array("q")
        self._offsets = array("q")

    def __len__(self) -> int:
        return len(self._dues)

    def add(self, columns: Columns, end: int, last_at: int) -> None:
        self._dues.frombytes(columns.dues.tobytes())
        self._offsets.frombytes(columns.offsets.tobytes())
        self.end = end
        self.last_at = last_at

    @property
    def columns(self) -> Columns:
        """A copy: an array that is looked at cannot grow."""
        return Columns(np.array(self._dues, np.int64), np.array(self._offsets, np.int64))


_Source = SortedFile | _Stretch


class _Job:
    """Work for another thread: what it reads, and the file that comes of it."""

    def __init__(self, made_of: "Sequence[_Source]", work: Callable[[], SortedFile]) -> None:
        self.made_of = made_of
        self.file: SortedFile | None = None
        self.error: StoreError | None = None
        self._work = work
        self._ended = threading.Event()

    def __call__(self) -> None:
        try:
            self.file = self._work()
        except StoreError as error:
            self.error = error
        finally:
            self._ended.set()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> None:
        self._ended.wait(_JOB_SECONDS_MAX)


@dataclass(eq=False)
class TimerWheel:
    """The pending entries of one store."""

    _folder: Path
    _offload: Callable[[Callable[[], None]], None]
    _barrier: Callable[[], Callable[[], None]]

    def __post_init__(self) -> None:
        self.progress = DeliveryProgress()
        self._files: list[SortedFile] = []
        self._sealed: list[_Stretch] = []
        self._open = _Stretch(0)
        self._job: _Job | None = None
        self._failed = False
        self._near: list[Entry] = []
        self._arrived: list[Entry] = []
        self._horizon: Entry = (0, 0)
        self.fills = 0
        """How often the cache was filled."""

    # -- life ----------------------------------------------------------------------------------

    def load(
        self,
        position: int,
        end: int,
        progress: DeliveryProgress,
        log_offset_of: Callable[[int], int],
    ) -> None:
        """Take over what was written before, up to the first thing that is wrong with it.

        Nothing below queue offset `position` is pending or still there, and the queue ends at
        `end`. `log_offset_of` tells where in the log the message at a queue offset is: if it is
        somewhere else than a file knows, the queue was cut and went on with other messages.
        """
        self.progress = progress
        at = position
        files = sorted_files_in(self._folder)
        while files:
            first, file_end, path = files[0]
            if file_end > at:
                file = self._usable(first, file_end, path) if first <= at else None
                if file is None or file_end > end or log_offset_of(file_end - 1) != file.last_at:
                    log.warning("timed messages from offset %d to %d are read again", at, end)
                    break
                self._files.append(file)
                at = file_end
            else:
                path.unlink(missing_ok=True)
            del files[0]
        for _, _, path in files:
            path.unlink(missing_ok=True)
        self._open = _Stretch(at)

    @staticmethod
    def _usable(first: int, end: int, path: Path) -> SortedFile | None:
        try:
            file = load_sorted(path)
        except StoreCorruptError as error:
            log.warning("%s", error)
            return None
        return file if (file.first, file.end) == (first, end) else None

    def close(self) -> None:
        """Write what is in memory, so that the next start need not read it again."""
        self._finish_job()
        if self.next_due_ms() is None:
            while self._files:
                self._files.pop().path.unlink(missing_ok=True)
            self._sealed, self._open = [], _Stretch(self._open.end)
        if self._open.first < self._open.end:
            self._seal()
        while self._sealed:
            self._files.append(self._write(self._sealed[:1], self.progress, self._barrier()))
            del self._sealed[0]

    # -- entries -------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Entries of all messages below this queue offset are here."""
        return self._open.end

    @property
    def position(self) -> int:
        """No message below this queue offset is pending, but for those that are taken now."""
        if self._horizon == _NEVER and not self._near and not self._arrived:
            return self.end
        for file in self._files:
            if not file.is_done(self.progress):
                return file.first
        return self._sealed[0].first if self._sealed else self._open.first

    @property
    def count(self) -> int:
        """How many entries there are, with some that have left already."""
        in_memory = sum(map(len, (*self._sealed, self._open)))
        return sum(file.live for file in self._files) + in_memory

    def _sources(self) -> Iterator[_Source]:
        return itertools.chain(self._files, self._sealed, (self._open,))

    def add(self, columns: Columns, end: int, last_at: int) -> None:
        """Enter what the messages from `self.end` up to `end` say; the last is at `last_at`."""
        self._open.add(columns, end, last_at)
        near = _before(columns, self._horizon)
        for entry in zip(near.dues.tolist(), near.offsets.tolist(), strict=True):
            heapq.heappush(self._arrived, entry)
        if len(self._arrived) > 3 * NEAR_COUNT:
            self.drop_cache()
        if len(self._open) >= FILE_COUNT:
            self._seal()
            self.work()

    def take(self, now_ms: int, count_max: int) -> list[Entry]:
        """The next entries that are due, in order; they stay pending until `progress` covers them.

        To be given out again, they need `drop_cache`.
        """
        taken: list[Entry] = []
        near, arrived = self._near, self._arrived
        while len(taken) < count_max:
            if not near and not arrived:
                # What was taken is pending still, and would be found again.
                if taken or not self._fill():
                    break
                near = self._near
            from_near = bool(near) and (not arrived or near[-1] < arrived[0])
            if (near[-1] if from_near else arrived[0])[0] > now_ms:
                break
            taken.append(near.pop() if from_near else heapq.heappop(arrived))
        return taken

    def next_due_ms(self) -> int | None:
        """When the next entry is due; None if nothing is pending."""
        if not self._near and not self._arrived and not self._fill():
            return None
        return min(entries[0] for entries in (self._near[-1:] + self._arrived[:1]))

    def upcoming(self) -> list[int]:
        """The queue offsets of messages that are next, in order, as far as they are in memory."""
        return [offset for _, offset in reversed(self._near) if offset >= 0]

    def fill_ahead(self) -> None:
        """Fill the cache before it is empty; not between `take` and its record."""
        if len(self._near) + len(self._arrived) < NEAR_COUNT // 4:
            self._fill()

    def drop_cache(self) -> None:
        """Begin again with the first entry that is pending."""
        self._near, self._arrived[:], self._horizon = [], [], (0, 0)

    def _fill(self) -> bool:
        """Fill the cache with what is pending from the horizon on; False if that is nothing."""
        if self._horizon == _NEVER:
            return False
        self.drop_cache()
        parts: list[Columns] = []
        bound = _NEVER
        for file in self._files:
            file.skip(self.progress)
            following = file.cursor + NEAR_COUNT
            parts.append(file.columns.part(slice(file.cursor, following)))
            if following < len(file):
                key = (int(file.columns.dues[following]), int(file.columns.offsets[following]))
                bound = min(bound, key)
        memory = (*self._sealed, self._open)
        parts += [stretch.columns.useful(self.progress) for stretch in memory]
        self._forget_open_if(len(parts[-1].dues) == 0)
        parts = [part.pending(self.progress) for part in parts]
        entries = join(parts)
        if bound != _NEVER or len(entries.dues) > 2 * NEAR_COUNT:
            entries, bound = _first(entries, bound)
        order = entries.sorted()
        self._near = list(zip(order.dues.tolist(), order.offsets.tolist(), strict=True))
        self._near.reverse()
        self._horizon = bound
        self.fills += 1
        return bool(self._near)

    def _forget_open_if(self, is_done: bool) -> None:
        """Once everything before it has left too, what was here need not be written any more."""
        if is_done and len(self._open):
            end, last_at = self._open.end, self._open.last_at
            first = self._open.first if self._files or self._sealed else end
            self._open = _Stretch(first)
            self._open.end, self._open.last_at = end, last_at

    # -- cancellations -------------------------------------------------------------------------

    def pending(self, dues: Numbers, offsets: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these messages are here, have not left, and are not cancelled."""
        left = self.progress.covered(dues, offsets)
        return ~left & self._has(dues, offsets) & ~self._has(dues, ~offsets)

    def _has(self, dues: Numbers, offsets: Numbers) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(dues), np.bool_)
        for file in self._files:
            found |= file.columns.has(dues, offsets)
        for stretch in (*self._sealed, self._open):
            found |= np.isin(offsets, stretch.columns.offsets)
        return found

    def is_pending(self, due_ms: int, offset: int) -> bool:
        """The same for one message."""
        return bool(self.pending(np.array([due_ms]), np.array([offset]))[0])

    def cancelled_halfway(self) -> dict[int, int]:
        """Messages whose cancellation has left, and they have not; with when they are due.

        That is so for those that are due at the very time of the last one that left.
        """
        found: dict[int, int] = {}
        sources = [file.columns for file in self._files]
        sources += [stretch.columns.sorted() for stretch in (*self._sealed, self._open)]
        for _, due_ms, _ in self.progress.steps:
            for columns in sources:
                begin, end = np.searchsorted(columns.dues, [due_ms, due_ms + 1])
                for offset in columns.offsets[begin:end]:
                    message = ~int(offset)
                    if offset < 0 and not self.progress.covers(due_ms, message):
                        found[message] = due_ms
        return found

    # -- old messages --------------------------------------------------------------------------

    def pending_below(self, offset: int, due_after_ms: int) -> Iterator[Columns]:
        """Pending messages below a queue offset that are due after a time, some at a time.

        What is added or leaves meanwhile may or may not be seen. A worker may go through them.
        """
        parts = [each.columns for each in self._sources() if each.first < offset]
        return self._pending_of(parts, offset, due_after_ms)

    def _pending_of(
        self, parts: list[Columns], offset: int, due_after_ms: int
    ) -> Iterator[Columns]:
        for columns in parts:
            for at in range(0, len(columns.dues), _SCAN_COUNT):
                part = columns.part(slice(at, at + _SCAN_COUNT))
                below = (part.offsets >= 0) & (part.offsets < offset)
                found = part.part(below & (part.dues > due_after_ms)).pending(self.progress)
                if len(found.dues):
                    yield found

    def pending_messages(self) -> Iterator[Columns]:
        """All messages that are pending and not cancelled, some at a time; as `pending_below`."""
        sources = [each.columns.offsets for each in self._sources()]
        return _without_cancelled(self.pending_below(self.end, -1), sources)

    # -- files ---------------------------------------------------------------------------------

    def forget_below(self, position: int) -> None:
        """Delete the files that are no longer needed, as nothing below `position` is pending."""
        while self._files and self._files[0].end <= position and self._is_free(self._files[0]):
            self._files.pop(0).path.unlink(missing_ok=True)

    def _is_free(self, file: SortedFile) -> bool:
        return self._job is None or file not in self._job.made_of

    def _seal(self) -> None:
        self._sealed.append(self._open)
        following = _Stretch(self._open.end)
        following.last_at = self._open.last_at
        self._open = following

    def _write(
        self, sources: Sequence[_Source], progress: DeliveryProgress, barrier: Callable[[], None]
    ) -> SortedFile:
        """Make one file of what is left of neighbours."""
        first, last = sources[0], sources[-1]
        columns = merge([each.columns for each in sources], progress)
        barrier()
        return write_sorted(self._folder, first.first, last.end, last.last_at, columns)

    def work(self) -> None:
        """See to it that there are files, and not too many; called now and then."""
        self._take_over()
        while self._job is None:
            job = self._next_job()
            if job is None:
                return
            self._job = job
            self._offload(job)
            if not job.has_ended:
                return
            self._take_over()
            if self._failed:
                return

    def _next_job(self) -> _Job | None:
        sources = self._sealed[:1] or _worth_merging(self._files)
        if not sources:
            return None
        return _Job(sources, partial(self._write, sources, self.progress, self._barrier()))

    def _finish_job(self) -> None:
        if self._job is not None:
            self._job.wait()
            self._take_over()

    def _take_over(self) -> None:
        """Use what a worker has made."""
        job = self._job
        if job is None or not job.has_ended:
            return
        self._job = None
        had_failed, self._failed = self._failed, job.file is None
        if job.file is None:
            if not had_failed:
                log.warning("timed messages are kept in memory for now: %s", job.error)
        elif job.made_of[0] in self._sealed:
            del self._sealed[0]
            self._files.append(job.file)
        else:
            at = next(n for n, file in enumerate(self._files) if file is job.made_of[0])
            old = self._files[at : at + len(job.made_of)]
            self._files[at : at + len(job.made_of)] = [job.file]
            for file in old:
                if file.path != job.file.path:
                    file.path.unlink(missing_ok=True)


def _without_cancelled(pending: Iterator[Columns], sources: list[Numbers]) -> Iterator[Columns]:
    cancelled = np.concatenate([~offsets[offsets < 0] for offsets in sources])
    for columns in pending:
        yield columns.part(~np.isin(columns.offsets, cancelled))


def _before(entries: Columns, bound: Entry) -> Columns:
    due_ms, offset = bound
    is_same = entries.dues == due_ms
    return entries.part((entries.dues < due_ms) | (is_same & (entries.offsets < offset)))


def _first(entries: Columns, bound: Entry) -> tuple[Columns, Entry]:
    """The first entries, at most `NEAR_COUNT` and none from `bound` on, and the new bound."""
    entries = _before(entries, bound)
    if len(entries.dues) <= NEAR_COUNT:
        return entries, bound
    # Sorting all of them would take milliseconds; those after the last due time need not be.
    last_ms = np.partition(entries.dues, NEAR_COUNT)[NEAR_COUNT]
    ordered = entries.part(entries.dues <= last_ms).sorted()
    bound = (int(ordered.dues[NEAR_COUNT]), int(ordered.offsets[NEAR_COUNT]))
    return ordered.part(slice(NEAR_COUNT)), bound


def _worth_merging(files: list[SortedFile]) -> list[SortedFile]:
    """Neighbouring files to make one of; none if all is well.

    The newest few of a size become one of the next size, with what is smaller between them. A file
    of which little is left is written anew by itself, and neighbours that are empty become one.
    """
    for tier in range(_tier(MERGE_COUNT_MAX) + 1):
        begin, total, same = len(files), 0, 0
        while begin and _tier(files[begin - 1].live) <= tier:
            total += files[begin - 1].live
            if total > MERGE_COUNT_MAX:
                break
            begin -= 1
            same += _tier(files[begin].live) == tier
        if same >= MERGE_FILES:
            return files[begin:]
    for number, file in enumerate(files):
        if len(file) >= FILE_COUNT and 4 * file.live < len(file):
            return [file]
        if number and len(file) == len(files[number - 1]) == 0:
            return files[number - 1 : number + 1]
    return []


def _tier(count: int) -> int:
    """Sizes that are worth telling apart: from 4 files on it is 1, from 32 on 2."""
    return (count // FILE_COUNT).bit_length() // 3
