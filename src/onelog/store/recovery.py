"""Recovery: find the end of the log, and bring queues and index in line with it.

Everything below the checkpoint's safe offset is on disk, in the log, the queues and the index. So
after a crash queues and index are cut back to that point, and the log is replayed from there:
each whole record is entered anew, and the first one that is not whole ends the log. What follows
is cut and reported. The work is bounded by what was written since the last checkpoint, never by
the size of the log.

After a clean stop there is nothing to replay. A store that RocketMQ wrote has no safe offset: if it
was stopped cleanly the queues tell where the log's end must be near; if not, its checkpoint's
store times say in which segment to begin, as RocketMQ itself does it.
"""

import time
from dataclasses import dataclass

from onelog.message import Appended, LogOffset, Message, NewMessage
from onelog.store.checkpoint import Checkpoint
from onelog.store.commitlog import CommitLog
from onelog.store.consumequeue import ENTRY, ConsumeQueue
from onelog.store.dispatch import TagsCodes, is_plain, targets
from onelog.store.keyindex import KeyIndex
from onelog.store.queues import Queues
from onelog.store.readonly import entry_is_real
from onelog.store.record import Broken, check

_FLUSH_RECORDS = 65_536
_CLOCK_SLACK_MS = 3_000
"""RocketMQ's allowance for times that were recorded a little before the bytes were flushed."""


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a store found and did."""

    clean: bool
    replayed_from: int
    log_end: int
    records_replayed: int
    entries_missing: int
    """Queue positions between what was left of a queue and the next record of it: lost."""
    cut_bytes: int
    cut_reason: str
    last_store_ms: int
    last_record: int
    took_ms: int

    def __str__(self) -> str:
        """One line for the log."""
        if self.clean and not self.cut_bytes and not self.records_replayed:
            return f"clean, log ends at {self.log_end}"
        text = (
            f"{'clean stop' if self.clean else 'crash'}: replayed {self.records_replayed} records "
            f"from {self.replayed_from}, log ends at {self.log_end}"
        )
        if self.cut_bytes:
            text += f", cut {self.cut_bytes} bytes after it ({self.cut_reason})"
        if self.entries_missing:
            text += f", {self.entries_missing} queue entries could not be rebuilt"
        return f"{text}, in {self.took_ms} ms"


class _Run:
    """Entries that follow each other in a queue and are not in it yet."""

    __slots__ = ("entries", "next", "queue")

    def __init__(self, queue: ConsumeQueue) -> None:
        self.queue = queue
        self.next = queue.reserved
        self.entries: list[bytes] = []

    def write(self) -> None:
        if self.entries:
            self.queue.reserve(self.next - self.queue.reserved)
            self.queue.put(b"".join(self.entries))
            self.entries = []


class Replay:
    """Enters records of the log into the queues and the index, some thousands at a time."""

    def __init__(self, queues: Queues, index: KeyIndex, tags_codes: TagsCodes) -> None:
        self._queues = queues
        self._index = index
        self._tags_codes = tags_codes
        self._runs: dict[tuple[str, int], _Run] = {}
        self._keyed: list[NewMessage] = []
        self._places: list[Appended] = []
        self._keyed_ms = 0
        self.entries_missing = 0
        self.records = 0

    def enter(self, message: Message) -> None:
        """Do for a stored record what append did, where it is not done yet."""
        properties, flags = message.properties, message.sys_flag
        code = self._tags_codes.of(message.topic, properties, message.store_ms)
        entry = ENTRY.pack(message.log_offset, message.size, code)
        if is_plain(flags, properties):
            run = self._runs.get((message.topic, message.queue_id))
            if run is not None and run.next == message.queue_offset:
                run.entries.append(entry)
                run.next += 1
            else:
                self._put(message.topic, message.queue_id, message.queue_offset, 1, entry)
        else:
            for place in targets(message):
                self._put(*place, entry)
        if properties:
            if message.store_ms != self._keyed_ms:
                self._note_keys()
                self._keyed_ms = message.store_ms
            self._keyed.append(NewMessage(message.topic, 0, b"", properties, 0, flags))
            self._places.append(Appended(message.log_offset, message.queue_offset, message.size))
        self.records += 1
        if self.records % _FLUSH_RECORDS == 0:
            self.finish()

    def _put(self, topic: str, queue_id: int, offset: int, count: int, entry: bytes) -> None:
        run = self._runs.get((topic, queue_id))
        if run is None:
            run = self._runs[topic, queue_id] = _Run(self._queues.get(topic, queue_id))
        if offset < run.next:
            return
        if offset > run.next:
            run.write()
            queue = run.queue
            if queue.end > queue.start:
                self.entries_missing += offset - queue.end
            queue.pad_to(offset)
        run.entries.append(entry * count)
        run.next = offset + count

    def _note_keys(self) -> None:
        """Hand the records of one moment over to the index."""
        if self._keyed:
            self._index.add(self._keyed, self._places, self._keyed_ms)
            self._keyed, self._places = [], []

    def finish(self) -> None:
        """Write what was collected."""
        self._note_keys()
        for run in self._runs.values():
            run.write()
        self._index.build()


def recover(
    log: CommitLog,
    queues: Queues,
    index: KeyIndex,
    checkpoint: Checkpoint,
    tags_codes: TagsCodes,
    *,
    crashed: bool,
) -> RecoveryReport:
    """Make the parts of a store agree, and set the log's end."""
    began = time.monotonic()
    if not crashed and not checkpoint.ours:
        for queue in queues:
            drop_stale_entries(queue, log)
    start = _replay_start(log, queues, checkpoint, crashed)
    if crashed:
        for queue in queues:
            queue.rewind(start)
        index.truncate(start)
    replay = Replay(queues, index, tags_codes)
    end = start
    last_ms = checkpoint.log_ms
    last_record = checkpoint.last_record
    broken = None
    # The checkpoint knows of checksums from the safe offset on, not before.
    require_crc = crashed and checkpoint.record_crc and start >= checkpoint.safe_offset
    for found in log.scan(start, require_crc):
        if isinstance(found, Broken):
            broken = found
            break
        replay.enter(found)
        last_ms, last_record = max(last_ms, found.store_ms), int(found.log_offset)
        end = found.log_offset + found.size
    if broken is not None:
        end = max(end, broken.log_offset)
    cut_bytes = _cut(log, end)
    replay.finish()
    for queue in queues:
        if crashed:
            queue.clear_behind()
        queue.delete_before(log.start)
    return RecoveryReport(
        clean=not crashed,
        replayed_from=start,
        log_end=end,
        records_replayed=replay.records,
        entries_missing=replay.entries_missing,
        cut_bytes=cut_bytes,
        cut_reason=broken.reason if broken and cut_bytes else "",
        last_store_ms=last_ms,
        last_record=last_record,
        took_ms=int((time.monotonic() - began) * 1000),
    )


def _replay_start(log: CommitLog, queues: Queues, checkpoint: Checkpoint, crashed: bool) -> int:
    limit = log.segments[-1].start + log.segment_bytes if log.segments else 0
    safe = checkpoint.safe_offset if log.start <= checkpoint.safe_offset <= limit else log.start
    if not log.segments or not any(True for _ in queues):
        return int(log.start)  # No queues at all: rebuild them from the whole log.
    if crashed:
        return int(safe if checkpoint.ours else max(safe, _start_by_time(log, checkpoint)))
    return int(safe if checkpoint.ours else max([safe, *(_log_end(queue) for queue in queues)]))


def _log_end(queue: ConsumeQueue) -> int:
    """One past the record of a queue's last entry."""
    last = queue.last_entry()
    return last[0] + last[1] if last else 0


def _start_by_time(log: CommitLog, checkpoint: Checkpoint) -> int:
    """The newest segment that begins before the times of RocketMQ's checkpoint."""
    safe_ms = min(checkpoint.log_ms, checkpoint.queues_ms) - _CLOCK_SLACK_MS
    for segment in reversed(log.segments):
        first = check(segment.view, 0, segment.start)
        if isinstance(first, Message) and first.store_ms <= safe_ms:
            return segment.start
    return int(log.start)


def drop_stale_entries(queue: ConsumeQueue, log: CommitLog) -> None:
    """Cut entries behind a queue's real end.

    RocketMQ does not clear what it cuts after a crash, so old entries may stand behind the end. An
    entry is real if the record it points at says that it belongs there.
    """
    last = queue.last_entry()
    if last is None or entry_is_real(queue, queue.end - 1, log):
        return
    low, high = queue.start, queue.end - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if entry_is_real(queue, middle, log) else (low, middle)
    queue.cut(low)


def _cut(log: CommitLog, end: int) -> int:
    """End the log at `end`; returns how many bytes lay after it."""
    cut_bytes = 0
    empty_after = True
    for segment in log.segments:
        if segment.start + segment.size <= end:
            continue
        at = max(0, end - segment.start)
        after = segment.data_end(at) - at
        cut_bytes += after
        empty_after = empty_after and segment.start <= end
    if cut_bytes or not empty_after:
        log.truncate(LogOffset(end))
    else:
        log.end = LogOffset(end)
    return cut_bytes
