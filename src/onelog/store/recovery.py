"""Recovery: find the end of the log, and bring queues and index in line with it.

Everything below the checkpoint's safe offset is on disk, in the log, the queues and the index. So
after a crash queues and index are cut back to that point, and the log is replayed from there:
each whole record is entered anew. The work is bounded by what was written since the last
checkpoint, never by the size of the log; only if there are no queues at all, the whole log is read.

The log ends after its last whole record, and never below the safe offset. What lies behind is a
write that was not finished: it is put aside, cut and reported. What lies before it, between whole
records, is damage: it is stepped over and reported, and stays as it is. A sender may have been told
that what follows is on disk, and the damaged bytes may become readable again.

After a clean stop there is nothing to replay. A store that RocketMQ wrote has no safe offset: if it
was stopped cleanly the queues tell where the log's end must be near; if not, its checkpoint's
store times say in which segment to begin, as RocketMQ itself does it. RocketMQ leaves what it cuts
where it is, so there whole records may follow that were given up: they are older than what is
before them.

With a gate (`tail`) only what is below the safe offset is entered: what follows may yet be cut. The
log then ends before the first damage that follows: replicas must not differ, and others have it.
"""

import itertools
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass

from onelog.errors import StoreError
from onelog.message import LogOffset, Message
from onelog.record.dispatch import TagsCodes
from onelog.store.checkpoint import Checkpoint
from onelog.store.commitlog import CommitLog, next_record
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.cutting import pieces_behind, put_aside
from onelog.store.damage import Damage, Damages, scan
from onelog.store.keyindex import KeyIndex
from onelog.store.queue_ends import QueueEnds
from onelog.store.queues import Queues
from onelog.store.readonly import real_end
from onelog.store.replay import Replay, only_of
from onelog.store.walk import RecordWalk, Stretch, TopicNumbers

_log = logging.getLogger(__name__)

_RESTART_MS = 500
"""No broker starts again in less time; so much may a clock have been set back without harm."""
_CLOCK_SLACK_MS = 3_000
"""RocketMQ's allowance for times that were recorded a little before the bytes were flushed."""


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a store found and did."""

    clean: bool
    replayed_from: int
    log_end: int
    entered_end: int
    """Up to where queues and index know the log."""
    records_replayed: int
    entries_missing: int
    """Queue positions between what was left of a queue and the next record of it: lost."""
    cut_bytes: int
    cut_reason: str
    last_store_ms: int
    last_record: int
    took_ms: int
    damage: tuple[Damage, ...] = ()
    """The first ranges of the log that are no whole records, or are in no queue's order."""
    damage_count: int = 0
    damaged_bytes: int = 0

    def __str__(self) -> str:
        """One line for the log."""
        if self.clean and not (self.cut_bytes or self.records_replayed or self.damage):
            return f"clean, log ends at {self.log_end}"
        text = (
            f"{'clean stop' if self.clean else 'crash'}: replayed {self.records_replayed} records "
            f"from {self.replayed_from}, log ends at {self.log_end}"
        )
        if self.cut_bytes:
            text += f", cut {self.cut_bytes} bytes after it ({self.cut_reason})"
        if self.damage:
            text += (
                f", left out {self.damaged_bytes} damaged bytes in {self.damage_count} places, the "
                f"first at log offset {self.damage[0].start}: {self.damage[0].reason}"
            )
        if self.entries_missing:
            text += f", {self.entries_missing} queue entries could not be rebuilt"
        return f"{text}, in {self.took_ms} ms"


def recover(
    log: CommitLog,
    queues: Queues,
    index: KeyIndex,
    checkpoint: Checkpoint,
    ends: QueueEnds,
    tags_codes: TagsCodes,
    *,
    crashed: bool,
    gated: bool = False,
) -> RecoveryReport:
    """Make the parts of a store agree, and set the log's end."""
    began = time.monotonic()
    if not crashed and not checkpoint.ours:
        for queue in queues:
            if (end := real_end(queue, log)) < queue.end:
                queue.cut(end)
    start = _replay_start(log, queues, checkpoint, crashed)
    # No queues, or a checkpoint that knows of more log than there is: everything is made anew.
    rebuilt = start < checkpoint.safe_offset or not any(True for _ in queues)
    if crashed or rebuilt:
        _rewind(log, queues, index, start)
    _lengthen(log, queues, ends, start, is_known=checkpoint.ours and not rebuilt)
    # The checkpoint knows of checksums from the safe offset on, not before.
    require_crc = crashed and checkpoint.record_crc and start >= checkpoint.safe_offset
    topics = TopicNumbers()
    walk = RecordWalk(tags_codes, topics, require_crc=require_crc)
    damages = Damages()
    replay = Replay(queues, index, topics, damages, may_begin_anywhere=log.start > 0)
    # Whoever wrote it last: what is behind may not have been confirmed.
    enter_until = checkpoint.safe_offset if gated else None
    end, last_ms, last_record, tail = _replay(log, walk, replay, checkpoint, start, enter_until)
    if checkpoint.ours and checkpoint.safe_offset <= _limit(log):
        end = max(end, checkpoint.safe_offset)
    for each in tail:
        if each.start < end:
            damages.add(each._replace(end=min(each.end, end)))
    cut_bytes = _cut(log, end)
    replay.finish()
    for queue in queues:
        if crashed:
            queue.clear_behind()
        queue.delete_before(log.start)
    log.flushed = LogOffset(min(start, end))
    return RecoveryReport(
        clean=not crashed,
        replayed_from=start,
        log_end=end,
        entered_end=end if enter_until is None else max(start, min(end, enter_until)),
        records_replayed=replay.records,
        entries_missing=replay.entries_missing,
        cut_bytes=cut_bytes,
        cut_reason=next((each.reason for each in tail if each.end > end), "") if cut_bytes else "",
        last_store_ms=last_ms,
        last_record=last_record,
        took_ms=int((time.monotonic() - began) * 1000),
        damage=tuple(sorted(damages.ranges)),
        damage_count=damages.count,
        damaged_bytes=damages.size,
    )


def deleted_topics(log: CommitLog, start: int, end: int, tags_codes: TagsCodes) -> set[str]:
    """The topics that were deleted in a stretch of the log."""
    walk = RecordWalk(tags_codes, TopicNumbers())
    found = scan(log.segments, start, walk, end)
    return {each[0] for part in found if isinstance(part, Stretch) for each in part.deleted}


def rebuild(
    log: CommitLog, queues: Queues, index: KeyIndex, tags_codes: TagsCodes, names: Collection[str]
) -> None:
    """Make the queues of some topics anew, from the whole log."""
    for name in names:
        queues.delete_topic(name)
    topics = TopicNumbers()
    replay = Replay(queues, index, topics, Damages(), may_begin_anywhere=log.start > 0)
    walk = RecordWalk(tags_codes, topics)
    for found in scan(log.segments, int(log.start), walk, int(log.end)):
        if isinstance(found, Damage):
            replay.skip(found)
        else:
            replay.enter(only_of(found, topics, names))
    replay.finish()


def _rewind(log: CommitLog, queues: Queues, index: KeyIndex, start: int) -> None:
    """Let queues and index forget what is in the log from `start` on."""
    log.end = LogOffset(_limit(log))  # Where it ends is not known yet, and entries are looked at.
    for queue in queues:
        queue.rewind(start)
    index.truncate(start)


def _lengthen(
    log: CommitLog, queues: Queues, ends: QueueEnds, start: int, *, is_known: bool
) -> None:
    """Let queues end where they did: with zeros at its end a queue seems shorter than it is."""
    if not is_known:
        ends.forget()
        return
    log.end = LogOffset(max(int(log.end), start))
    for (topic, queue_id), known in ends.known(start).items():
        queue = queues.find(topic, queue_id)
        if queue is not None and queue.check is not None:
            queue.check.lengthen(queue, known)


def _replay(
    log: CommitLog,
    walk: RecordWalk,
    replay: Replay,
    checkpoint: Checkpoint,
    start: int,
    enter_until: int | None,
) -> tuple[int, int, int, list[Damage]]:
    """Enter every record from `start` on, or only those before `enter_until`.

    Returns where the last one ends, when it was stored, where the last one that was entered starts,
    and what lies behind it.
    """
    end, last_ms, last_record = start, checkpoint.log_ms, checkpoint.last_record
    behind: list[Damage] = []
    below = start if enter_until is None else max(start, enter_until)
    found_below = scan(log.segments, start, walk, below)
    for found in itertools.chain(found_below, scan(log.segments, below, walk)):
        if isinstance(found, Damage):
            behind.append(found)
            continue
        if behind:
            if not checkpoint.ours and _was_given_up(found, log, end, last_ms):
                break
            if enter_until is not None and end >= enter_until:
                break  # Others have what is behind it, and have it whole.
            for each in behind:
                replay.skip(each)
            behind = []
        last_ms = max(last_ms, int(found.store_ms[-1]))
        end = found.end
        if enter_until is None or end <= enter_until:
            replay.enter(found)
            last_record = int(found.log[-1])
    return end, last_ms, last_record, behind


def _was_given_up(found: Stretch, log: CommitLog, end: int, last_ms: int) -> bool:
    """Whether records behind damage are what RocketMQ cut after a crash, and left there.

    They are older than what was written since. Later segments it deletes, so where these have
    records, it was no such cut.
    """
    segment = log.segment_at(int(found.log[0]))
    return (
        int(found.store_ms[0]) < last_ms - _RESTART_MS
        and segment.start < end
        and not any(
            next_record(each, -1) < each.size for each in log.segments if each.start > segment.start
        )
    )


def _limit(log: CommitLog) -> int:
    return log.segments[-1].start + log.segment_bytes if log.segments else 0


def _replay_start(log: CommitLog, queues: Queues, checkpoint: Checkpoint, crashed: bool) -> int:
    inside = log.start <= checkpoint.safe_offset <= _limit(log)
    safe = checkpoint.safe_offset if inside else log.start
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
        try:
            first = log.look_at(segment.start)
        except StoreError:
            continue  # The disk cannot read it; an earlier one will do.
        if isinstance(first, Message) and first.store_ms <= safe_ms:
            return segment.start
    return int(log.start)


def _cut(log: CommitLog, end: int) -> int:
    """End the log at `end`; returns how many bytes lay after it, which are put aside."""
    behind = pieces_behind(log, end)
    if behind or any(segment.start > end for segment in log.segments):
        try:
            put_aside(log, behind)
        except StoreError as error:
            _log.warning("no copy is kept of what is no whole record: %s", error)
        log.truncate(LogOffset(end))
    else:
        log.end = LogOffset(end)
    return sum(size for _, _, size in behind)
