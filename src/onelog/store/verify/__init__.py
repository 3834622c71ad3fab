"""Verification: is every byte of a store what the format says, and do its parts agree?

    log      lengths, checksums and places of all records
    queues   each entry leads to the record that belongs there; each record has its entries
    index    each entry leads to a record with such a key; chains and slots are right

The store is only read, and may be in use: then it is checked up to the last message that was in
its queue when the verification began, but for queues that are so new that they have no files.
After a crash that nobody has recovered from, queues and index are checked up to the checkpoint's
safe offset, because recovery makes the rest anew.

A broken record does not end it: the next whole one is found, in a later segment if need be, and the
range that was skipped is reported.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onelog.config import StoreConfig
from onelog.message import Message
from onelog.record.columns import Ints
from onelog.record.decode import Blank, Broken
from onelog.record.dispatch import TagsCodes
from onelog.store.checkpoint import AbortMark, Checkpoint
from onelog.store.commitlog import next_record
from onelog.store.folder import (
    geometry_advice,
    index_files,
    index_geometry,
    lock_holder,
    look,
    queue_file_entries,
    segment_bytes,
)
from onelog.store.mending import occupies
from onelog.store.queue_folders import QUEUES_FOLDER, folder_of, queue_folders
from onelog.store.segment import Segment, disk_error
from onelog.store.verify.findings import Findings, Problem
from onelog.store.verify.index import IndexCheck, IndexWalk
from onelog.store.verify.logview import LogView
from onelog.store.verify.queues import QueueCheck
from onelog.store.walk import QueueEntryColumns, RecordWalk, Stretch, TopicNumbers

__all__ = ["OnProgress", "Problem", "Verification", "verify"]

_PROBLEMS_MAX = 1_000
OnProgress = Callable[[int, int], None]
"""Called with the bytes done and the bytes there are."""

_LAST_ENTRIES = 4


@dataclass(frozen=True, slots=True)
class Verification:
    """What was looked at, and what was found."""

    folder: str
    state: str
    """stopped, crashed or running"""
    log_start: int
    log_end: int
    """Of a running store: up to where it was checked."""
    segments: int
    records: int
    queues: int
    queue_entries: int
    index_files: int
    index_entries: int
    problems: tuple[Problem, ...]
    """The first ones; `problems_total` counts all."""
    problems_total: int
    notes: tuple[str, ...]
    took_ms: int

    @property
    def clean(self) -> bool:
        """Whether everything is as it should be."""
        return self.problems_total == 0


def verify(
    folder: Path,
    *,
    index_slots: int | None = None,
    index_entries: int | None = None,
    delay_levels: str = StoreConfig().delay_levels,
    problems_max: int = _PROBLEMS_MAX,
    on_progress: OnProgress = lambda done, total: None,
) -> Verification:
    """Check a store from one end to the other.

    `delay_levels` are the broker's: the queues of delayed messages say when each one is due.
    """
    began = time.monotonic()

    def opened() -> Checking:
        checking = Checking(folder, Findings(problems_max), delay_levels, on_progress)
        checking.open_index(index_slots, index_entries)
        return checking

    checking = look(folder, opened)
    try:
        checking.walk()
        checking.sum_up()
    except OSError as error:
        raise disk_error(error, folder, "read") from error
    findings = checking.findings
    return Verification(
        folder=str(folder),
        state=checking.state,
        log_start=checking.log.log_start,
        log_end=checking.log_end,
        segments=len(checking.log.segments),
        records=checking.records,
        queues=len(checking.queues),
        queue_entries=sum(queue.matched for queue in checking.queues.values()),
        index_files=checking.index_files,
        index_entries=checking.index.matched,
        problems=tuple(findings.problems),
        problems_total=findings.total,
        notes=tuple(findings.notes),
        took_ms=int((time.monotonic() - began) * 1000),
    )


class _Queueless(NamedTuple):
    """What the log has of a queue that has no files."""

    records: int
    began: int
    """The log offset of its first message; of the last such, if it was made anew."""
    last_log: int


class Checking:
    """One verification under way: the parts of a store, and how far they have been compared."""

    def __init__(
        self, folder: Path, findings: Findings, delay_levels: str, on_progress: OnProgress
    ) -> None:
        self._folder = folder
        self.findings = findings
        self._on_progress = on_progress
        self._topics = TopicNumbers()
        self._walk = RecordWalk(TagsCodes(delay_levels), self._topics)
        self._queueless: dict[int, _Queueless] = {}
        self.index = IndexWalk([], findings)
        self.index_files = 0
        self.records = 0
        self._unconfirmed = 0
        checkpoint = Checkpoint(folder / "checkpoint")
        self._safe_offset = checkpoint.safe_offset
        # RocketMQ makes the files of its queues at once.
        self._young_from = checkpoint.safe_offset if checkpoint.ours else 1 << 63
        running = lock_holder(folder) is not None
        crashed = AbortMark(folder / "abort").present()
        self.state = "running" if running else "crashed" if crashed else "stopped"
        # Before the log, which is always ahead of the queues.
        early = self._open_queues(Findings(0)) if running or crashed else {}
        self.log = LogView(folder / "commitlog", segment_bytes(folder), findings, crashed=crashed)
        self.log.running = running
        self.log.settled = self.state == "stopped"
        self.log.stale_tails = not checkpoint.ours
        if running or (crashed and not checkpoint.ours):
            self.log.trusted_end = self._last_known_record(early.values())
        elif crashed or (checkpoint.ours and checkpoint.safe_offset >= self.log.log_start):
            # After a clean stop, what is behind it was not confirmed by replicas.
            self.log.trusted_end = checkpoint.safe_offset
        # Only now: of a store in use, whatever precedes the last known record is in its queue.
        self.queues = self._open_queues(findings)
        self._end = self.log.log_start

    # -- opening -------------------------------------------------------------------------------

    def _open_queues(self, findings: Findings) -> dict[int, QueueCheck]:
        entries = queue_file_entries(self._folder)
        opened = {}
        for topic, queue_id, path in queue_folders(self._folder / QUEUES_FOLDER):
            try:
                check = QueueCheck(path, topic, queue_id, entries, findings)
            except FileNotFoundError:
                if path.is_dir():
                    raise  # Only a file of it has gone: the whole store is looked at again.
                continue  # Its topic was deleted just now.
            if not check.end and self.state != "stopped":
                continue  # It has only just been made, maybe for a new topic of an old name.
            opened[(self._topics.of(topic) << 32) + queue_id] = check
        return opened

    def open_index(self, slots: int | None, entries: int | None) -> None:
        """Find the index files, if their geometry is known."""
        geometry = index_geometry(self._folder, slots, entries)
        if geometry is None:
            self.findings.add("index", geometry_advice(self._folder))
            return
        paths = index_files(self._folder)
        if paths and not self.log.settled and not paths[-1].stat().st_size:
            paths.pop()  # It has only just been made.
        files = [IndexCheck(path, geometry, self.findings) for path in paths]
        self.index_files = len(files)
        self.index = IndexWalk(files, self.findings)

    def _last_known_record(self, queues: Iterable[QueueCheck]) -> int:
        """The start of the newest record that is in a queue."""
        newest = self.log.log_start
        for queue in queues:
            low = max(queue.first, queue.end - _LAST_ENTRIES)
            for row, entry in enumerate(queue.read(low, queue.end)):
                at = int(entry["log"])
                if at > newest:
                    found = self.log.at(at)
                    if isinstance(found, Message) and occupies(
                        found, queue.topic, queue.queue_id, low + row
                    ):
                        newest = at
        return newest

    # -- walking -------------------------------------------------------------------------------

    @property
    def log_end(self) -> int:
        """Up to where records were read."""
        return self.log.trusted_end if self.log.running else self._end

    def walk(self) -> None:
        """From the first record to the last, then what is left over."""
        at = self.log.log_start
        limit = self.log.trusted_end if self.log.running else self.log.limit
        while at < limit:
            segment = self.log.segment_of(at)
            if segment is None:
                at = self._next_segment(at, limit)  # The missing file was reported already.
                continue
            following = self._walk_segment(segment, at, limit)
            if following is None:
                break
            at = following
        for queue in self.queues.values():
            queue.finish(self.log)
        self.index.finish(self.log)
        self._on_progress(limit - self.log.log_start, limit - self.log.log_start)

    def _next_segment(self, at: int, limit: int) -> int:
        return min((s.start for s in self.log.segments if s.start > at), default=limit)

    def _walk_segment(self, segment: Segment, at: int, limit: int) -> int | None:
        """Read on in a segment; returns where to go on, None at the end of the log."""
        here = at - segment.start
        end = min(segment.size, limit - segment.start)
        total = limit - self.log.log_start
        while here < end:
            # Stretches end where the trust in queues and index does.
            trusted = self.log.trusted_end - segment.start
            stretch, here, stop = self._walk.read(
                segment, here, min(end, trusted) if here < trusted else end
            )
            if stretch is not None:
                self._take(stretch)
            self._on_progress(segment.start + here - self.log.log_start, total)
            if isinstance(stop, Broken):
                return self._resume(segment, stop)
            if isinstance(stop, Blank):
                self._end = segment.start + segment.size
                break
        return segment.start + segment.size

    def _take(self, stretch: Stretch) -> None:
        self.records += len(stretch.log)
        self._end = stretch.end
        if int(stretch.log[0]) >= self.log.trusted_end:
            self._unconfirmed += len(stretch.log)
            return
        if self.state == "running":
            for topic, log_offset in stretch.deleted:
                if log_offset >= self._young_from:
                    self._leave_out(topic, log_offset)
        entries = stretch.entries
        order = np.argsort(entries.queue, kind="stable")
        queue = entries.queue[order]
        cuts = np.flatnonzero(np.diff(queue)) + 1
        for rows in np.split(order, cuts):
            if len(rows):
                self._enter(int(entries.queue[rows[0]]), entries, rows)
        self.index.match(self.log, stretch)

    def _leave_out(self, topic: str, deleted_at: int) -> None:
        """A topic was deleted just now: files that it had before that are about to go."""
        for number, queue in list(self.queues.items()):
            if queue.topic == topic:
                first = queue.read(queue.first, queue.first + 1)[0]
                if int(first["log"]) < deleted_at:
                    del self.queues[number]

    def _enter(self, number: int, entries: QueueEntryColumns, rows: Ints) -> None:
        check = self.queues.get(number)
        if check is None:
            count, began, _ = self._queueless.get(number, (0, -1, 0))
            firsts = rows[entries.offset[rows] == 0]
            if len(firsts):
                began = int(entries.log[firsts[-1]])
            self._queueless[number] = _Queueless(
                count + len(rows), began, int(entries.log[rows[-1]])
            )
            return
        check.match(
            self.log,
            entries.offset[rows],
            entries.log[rows],
            entries.size[rows],
            entries.code[rows],
        )

    # -- broken records ------------------------------------------------------------------------

    def _resume(self, segment: Segment, broken: Broken) -> int | None:
        """Where to go on behind a broken record; None if it is the end of the log."""
        at = broken.log_offset
        here = next_record(segment, at - segment.start)
        found = segment.start + here if here < segment.size else self._next_used_segment(at)
        if found is None:
            self._report_end(segment, broken)
            return None
        where = self.log.described(at)
        self.findings.add(where, f"{broken.reason}; skipped {found - at} bytes, up to {found}")
        self.log.skip(at, found)
        return found

    def _next_used_segment(self, at: int) -> int | None:
        """Where the next segment starts that has a whole record."""
        for segment in self.log.segments:
            if segment.start > at and (
                isinstance(self.log.at(segment.start), Message)
                or next_record(segment, 0) < segment.size
            ):
                return segment.start
        return None

    def _report_end(self, segment: Segment, broken: Broken) -> None:
        """The log ends here: what lies behind its end?"""
        at = broken.log_offset
        self._end = max(self._end, at)
        here = at - segment.start
        rest = segment.data_end(here) - here
        self.log.skip(at, self.log.limit)
        if not rest:
            return
        text = f"after the last whole record lie {rest} bytes that are none: {broken.reason}"
        sure = self.state == "stopped" and not self.log.stale_tails
        if sure or at < self._safe_offset:
            self.findings.add(self.log.described(at), text)
        else:
            self.findings.note(f"{self.log.described(at)}: {text}")

    # -- the end -------------------------------------------------------------------------------

    def sum_up(self) -> None:
        """Report what shows only when everything has been compared."""
        for number, each in self._queueless.items():
            # A checkpoint waits for the files of new queues, which are in memory until then.
            if not (self.state == "running" and each.began >= self._young_from):
                self._report_queueless(number, each.records, each.last_log)
        if self.state == "stopped" and self._unconfirmed:
            self.findings.note(
                f"{self._unconfirmed} records from {self.log.trusted_end} on are in no queue: "
                "replicas had not confirmed them"
            )
        if self.state == "stopped" and not self.log.stale_tails and self._safe_offset > self._end:
            self.findings.add(
                "checkpoint",
                f"says that the log is on disk up to {self._safe_offset}; it ends at {self._end}",
            )
        if self.state == "crashed":
            whence = "" if self.log.stale_tails else f" from log offset {self._safe_offset} on"
            self.findings.note(
                "the store was not stopped cleanly: the next start makes queues and index anew"
                f"{whence}, and cuts what lies behind the last whole record"
            )
        for queue in self.queues.values():
            name = f"topic {queue.topic!r} queue {queue.queue_id}"
            if queue.padded:
                self.findings.note(f"{name}: {queue.padded} entries are padding for lost messages")
            if queue.stale:
                self.findings.note(
                    f"{name}: behind its end are {queue.stale} old entries; RocketMQ leaves such "
                    "after a crash"
                )
            if queue.former:
                self.findings.note(
                    f"{name}: {queue.former} records in the log are of an earlier topic of that "
                    "name"
                )
        if self.index.keys_missing:
            self.findings.note(f"{self.index.keys_missing} keys are in no index file")

    def _report_queueless(self, number: int, count: int, last_log: int) -> None:
        """Records of a queue that is not there: the topic was deleted, or the queue is lost.

        It is lost if another queue of the topic has messages from before the last of them.
        """
        topic, queue_id = self._topics.names[number >> 32], number & 0xFFFFFFFF
        others = [q for q in self.queues.values() if q.topic == topic and q.end > q.first]
        if (self._folder / "batchconsumequeue" / folder_of(topic)).is_dir():
            self.findings.note(f"topic {topic!r} has batch queues, which are not checked")
        elif any(int(q.read(q.first, q.first + 1)[0]["log"]) < last_log for q in others):
            self.findings.add(
                f"{QUEUES_FOLDER}/{folder_of(topic)}/{queue_id}",
                f"the queue is missing; the log has {count} records of it, the last one at log "
                f"offset {last_log}",
                count,
            )
        else:
            self.findings.note(
                f"topic {topic!r} queue {queue_id} has no files, but {count} records are in the "
                "log: the topic was deleted"
            )
