"""How the reading of a store is divided among tasks: by queue, or by ranges of bytes of its log.

By bytes, each part of the log is read once, by one task, which picks out what is wanted. By queue,
a task goes from entry to entry, and touches nothing else of the log: better if only a small part
of it is wanted. A range of bytes starts and ends where a record starts, found in the queues.

Invariants: every message of the ranges is in exactly one split; splits can be pickled.
"""

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onelog.errors import DataLossError
from onelog.record.entries import PADDING_SIZE
from onelog.spark.read.log_files import LogFiles, QueueFiles, entries_of
from onelog.spark.read.offsets import QueueRange, split
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.folder import look

_log = logging.getLogger(__name__)

SplitBy = Literal["bytes", "queue"]

SPLIT_BYTES_MAX = 64 << 20
"""What a task reads, about: enough that starting it does not count, and all cores have some."""
_WORTH_SCANNING = 8
"""A range of the log is read as a whole if at least one byte in so many is wanted."""
_SAMPLED_ENTRIES = 64
_ENTRIES_AT_ONCE = 10_000
_GUIDES_MAX = 8
"""Queues that are asked where records start."""


@dataclass(frozen=True, slots=True)
class QueueSplit:
    """Ranges of queues, read entry by entry."""

    store: str
    ranges: tuple[QueueRange, ...]
    fail_on_data_loss: bool


@dataclass(frozen=True, slots=True)
class LogSplit:
    """A range of the log in which messages of these ranges of queues lie."""

    store: str
    ranges: tuple[QueueRange, ...]
    fail_on_data_loss: bool
    start: int
    stop: int


StoreSplit = QueueSplit | LogSplit


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A range of a queue, and where in the log it lies."""

    range: QueueRange
    queue: ConsumeQueue
    log_start: int
    log_stop: int
    record_bytes: float


def plan(
    folder: str | Path,
    ranges: Sequence[QueueRange],
    *,
    by: SplitBy | None = None,
    splits_min: int | None = None,
    rows_max: int | None = None,
    fail_on_data_loss: bool = True,
) -> list[StoreSplit]:
    """Who reads what. `by` is chosen if it is not given; a limit of rows needs splits by queue."""
    store = Path(folder)
    stretches = look(store, lambda: _stretches(store, ranges, fail_on_data_loss))
    if not stretches:
        return []
    wanted = sum(each.record_bytes * each.range.rows for each in stretches)
    start = min(each.log_start for each in stretches)
    stop = max(each.log_stop for each in stretches)
    if by is None:
        is_worth = wanted * _WORTH_SCANNING >= stop - start
        by = "bytes" if is_worth and rows_max is None else "queue"
    found = tuple(each.range for each in stretches)
    if by == "bytes":
        count = max(splits_min or 1, -(-(stop - start) // SPLIT_BYTES_MAX))
        bounds = _record_starts(stretches, start, stop, count)
        return [
            LogSplit(str(store), found, fail_on_data_loss, low, high)
            for low, high in itertools.pairwise(bounds)
        ]
    rows = sum(each.rows for each in found)
    usual_rows = max(1, int(SPLIT_BYTES_MAX / max(1.0, wanted / rows)))
    tasks = split(found, splits_min, min(rows_max or usual_rows, usual_rows))
    return [QueueSplit(str(store), tuple(task), fail_on_data_loss) for task in tasks]


def _stretches(store: Path, ranges: Sequence[QueueRange], fail: bool) -> list[_Stretch]:
    log_start = LogFiles(store).start
    queues = QueueFiles(store)
    found = []
    for each in ranges:
        if each.rows <= 0:
            continue
        queue = queues.open(each.queue)
        first = max(each.start, queue.start)
        if first < queue.end and queue.entry(first)[0] < log_start:
            first = queue.first_not_before(lambda entry: entry[0] < log_start)
        first, end = max(first, each.start), min(each.end, queue.end)
        if first > each.start or end < each.end:
            what = (
                f"queue {each.queue.queue_id} of {each.queue.topic} holds {queue.start} to "
                f"{queue.end} in {store}, of which what is before {first} is deleted; {each.start} "
                f"to {each.end} was to be read"
            )
            if fail:
                raise DataLossError(f"{what}. Set failOnDataLoss=false to read what is left")
            _log.warning("data is lost, going on with what there is: %s", what)
        stretch = _stretch(QueueRange(each.queue, first, end), queue) if first < end else None
        if stretch is not None:
            found.append(stretch)
    return found


def _stretch(range_: QueueRange, queue: ConsumeQueue) -> _Stretch | None:
    """Where a range lies in the log; None if all of it stands for messages that are in no log."""
    first = last = None
    sizes: dict[int, int] = {}
    offset, sampled = range_.start, 0
    for entries in entries_of(queue, range_.start, range_.end, _ENTRIES_AT_ONCE):
        real = entries[entries["size"] != PADDING_SIZE]
        if len(real):
            for log, size, _ in real[: _SAMPLED_ENTRIES - sampled].tolist():
                sizes[log] = size
                sampled += 1
            first = first if first is not None else int(real[0]["log"])
            break
        offset += len(entries)
    if first is None:
        return None
    for end in range(range_.end, offset, -_ENTRIES_AT_ONCE):
        (entries,) = entries_of(queue, max(offset, end - _ENTRIES_AT_ONCE), end, _ENTRIES_AT_ONCE)
        real = entries[entries["size"] != PADDING_SIZE]
        if len(real):
            last = int(real[-1]["log"]) + int(real[-1]["size"])
            break
    assert last is not None, "the first entry is one"
    return _Stretch(range_, queue, first, last, sum(sizes.values()) / sampled)


def _record_starts(stretches: Sequence[_Stretch], start: int, stop: int, count: int) -> list[int]:
    """Up to `count + 1` places from `start` to `stop`, about evenly; in between, records start."""
    guides = sorted(stretches, key=lambda each: each.range.rows)[-_GUIDES_MAX:]
    bounds = [start]
    for number in range(1, count):
        target = start + (stop - start) * number // count
        nearest = min(_first_entry(each, target) or stop for each in guides)
        if bounds[-1] < nearest < stop:
            bounds.append(nearest)
    return [*bounds, stop]


def _first_entry(stretch: _Stretch, log_offset: int) -> int | None:
    """Where the first record of a range lies that does not lie before a log offset."""
    low, high = stretch.range.start, stretch.range.end
    while low < high:
        middle = (low + high) // 2
        if stretch.queue.entry(middle)[0] < log_offset:
            low = middle + 1
        else:
            high = middle
    return stretch.queue.entry(low)[0] if low < stretch.range.end else None
