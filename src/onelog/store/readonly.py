"""Opening a store only to read it: one that OneLog or RocketMQ wrote, also while a broker runs.

Nothing is locked, written or created. Of a store that is in use the reader sees one moment: where
each queue ends is read first, then the log, which is always ahead of its queues, so every entry
that is shown has its record. What is appended later is not seen; open again to see it.
"""

import logging
from pathlib import Path

from onelog.errors import StoreError
from onelog.message import LogOffset, Message
from onelog.record.dispatch import TagsCodes
from onelog.record.entries import PADDING_SIZE
from onelog.store.checkpoint import AbortMark, Checkpoint
from onelog.store.commitlog import CommitLog
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.damage import scan
from onelog.store.folder import (
    geometry_advice,
    index_geometry,
    look,
    queue_file_entries,
    segment_bytes,
)
from onelog.store.keyindex import KeyIndex
from onelog.store.mending import occupies
from onelog.store.queue_folders import QUEUES_FOLDER
from onelog.store.queues import Queues
from onelog.store.reader import StoreReader
from onelog.store.segment import file_name, numbered_files
from onelog.store.walk import RecordWalk, Stretch, TopicNumbers

_log = logging.getLogger(__name__)


def open_readonly(
    folder: Path, index_slots: int | None = None, index_entries: int | None = None
) -> StoreReader:
    """A reader of the store in a folder, as it is now.

    The geometry of its index files need only be given if it is unusual; if it cannot be found out,
    the store opens without its index, and a warning says so.
    """
    return look(folder, lambda: _open(folder, index_slots, index_entries))


def _open(folder: Path, index_slots: int | None, index_entries: int | None) -> StoreReader:
    checkpoint = Checkpoint(folder / "checkpoint")
    stopped = not AbortMark(folder / "abort").present()
    file_entries = queue_file_entries(folder)
    queues = Queues(folder / QUEUES_FOLDER, file_entries, writable=False)
    log = CommitLog(folder / "commitlog", segment_bytes(folder), writable=False)
    _warn_of_short_file(log)
    limit = log.segments[-1].start + log.segment_bytes if log.segments else 0
    has_safe = log.start <= checkpoint.safe_offset <= limit
    known = checkpoint.safe_offset if has_safe else int(log.start)
    for queue in queues:
        _skip_deleted(queue, log)
        if not (stopped and checkpoint.ours and has_safe):
            known = max(known, _settle_end(queue, log))
        # Most queues of a store are never read: do not keep a file of each mapped.
        for file in range(queue.start // file_entries, queue.end // file_entries + 1):
            queue.unmap(file)
    log.end = log.flushed = LogOffset(_log_end(log, known, over_damage=checkpoint.ours))
    geometry = index_geometry(folder, index_slots, index_entries)
    if geometry is None:
        _log.warning("%s", geometry_advice(folder))
        # A folder that is not there has no files: the reader then finds no keys.
        index = KeyIndex(folder / "index" / "left-out", 1, 2, writable=False)
    else:
        index = KeyIndex(folder / "index", *geometry, writable=False)
    return StoreReader(folder, log, queues, index)


def _warn_of_short_file(log: CommitLog) -> None:
    """The log leaves out a last file that lacks its end: say so, unless it was only just made."""
    opened = {segment.start for segment in log.segments}
    for start, size in numbered_files(log.folder) if log.folder.is_dir() else []:
        if size and size != log.segment_bytes and start not in opened:
            _log.warning(
                "%s has %d of %d bytes, and is left out",
                log.folder / file_name(start),
                size,
                log.segment_bytes,
            )


def _skip_deleted(queue: ConsumeQueue, log: CommitLog) -> None:
    """Let a queue begin with the first message whose segment is still there."""
    log_start = log.start
    if queue.start < queue.end and 0 <= queue.entry(queue.start)[0] < log_start:
        queue.start = queue.first_not_before(lambda entry: entry[0] < log_start)


def _settle_end(queue: ConsumeQueue, log: CommitLog) -> int:
    """Let a queue end with an entry that leads to its record; returns where that one starts.

    After a clean stop of OneLog there is nothing to settle: what leads nowhere then is damage, and
    must show.
    """
    queue.end = queue.reserved = real_end(queue, log)
    last = queue.last_entry()
    return last[0] if last else 0


def real_end(queue: ConsumeQueue, log: CommitLog) -> int:
    """Where a queue ends with an entry that leads to its record.

    Behind it may be entries that lead nowhere: of a crash that nobody has recovered from yet, or of
    an earlier one that RocketMQ recovered from, for it does not clear what it cuts.
    """
    low, high = queue.start, queue.end
    if low == high or entry_is_real(log, queue, high - 1):
        return high
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if entry_is_real(log, queue, middle) else (low, middle)
    return low


def entry_is_real(log: CommitLog, queue: ConsumeQueue, offset: int) -> bool:
    """Whether an entry leads to a whole record that says it belongs there."""
    log_offset, size, _ = queue.entry(offset)
    if log_offset < log.start or size == PADDING_SIZE:
        return True  # Its segment was deleted; the queue still counts from there.
    if not log.segments or log_offset >= log.segments[-1].start + log.segment_bytes:
        return False
    try:
        found = log.look_at(log_offset)
    except StoreError:
        return True  # The disk cannot read it, so nothing speaks against it.
    return (
        isinstance(found, Message)
        and found.size == size
        and occupies(found, queue.topic, queue.queue_id, offset)
    )


def _log_end(log: CommitLog, known: int, *, over_damage: bool) -> int:
    """Where the log ends, found by going on from a record that is known to be in it.

    Behind what RocketMQ wrote there may be whole records that it gave up after a crash.
    """
    end = known
    for found in scan(log.segments, known, RecordWalk(TagsCodes(""), TopicNumbers())):
        if isinstance(found, Stretch):
            end = found.end
        elif not over_damage:
            break
    return end
