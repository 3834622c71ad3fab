"""Timed messages that wait for longer than the log is kept.

A scheduled message is in a file of the log that retention will delete. When two thirds of the
retention time have passed, it is written again, to the same queue, and its new record says which
one it stands for (RocketMQ calls that rolling). Messages that will be delivered before their file
can go are left alone.

When retention wants to delete files, what waits in them is renewed file by file, so that each can
go as soon as it is free. On a disk that is too full for messages of others this has head room; when
that is used up, too, the files stay.

Invariant: before retention deletes a file, no pending message is only in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from onelog.core.durable.storage import Storage
from onelog.core.schedule import records as timed_messages
from onelog.core.schedule.sorted_files import Columns
from onelog.core.schedule.timers import Timers
from onelog.jobs import Job
from onelog.names import TIMER_TOPIC
from onelog.record.entries import ENTRY_DTYPE, PADDING_SIZE
from onelog.store.consumequeue import ConsumeQueue

CHECK_MS = 60_000
"""How often to look for old messages."""
_ROUND_COUNT = 200
_PAUSE_MS = 10
_SAMPLE_COUNT = 1_000
_MOST = 7 / 8


@dataclass(eq=False)
class TimerRenewal:
    """Writes scheduled messages again before their records go."""

    storage: Storage
    timers: Timers

    def __post_init__(self) -> None:
        self.store, self.writer = self.storage.store, self.storage.writer
        self.cold_reads, runtime = self.storage.cold_reads, self.storage.runtime
        self.clock, self.schedule = runtime.clock, runtime.schedule
        self._round: Iterator[Columns] | None = None
        self._job = Job("renewing timed messages")
        self._is_urgent = False
        self.free_below = 0
        """No message below this queue offset is pending; it was looked at."""
        self._copied_until = 0
        """The queue offset behind the last copy."""

    def check(self) -> None:
        """Begin to renew what is old, some at a time, unless that is being done."""
        wheel = self.timers.wheel
        oldest = max(wheel.position, int(self.store.min_offset(TIMER_TOPIC, 0)))
        if self._round is None and oldest < wheel.end:
            old_ms = self.clock.now_ms() - self.store.config.retention_ms * 2 // 3
            self.cold_reads.find(lambda: self._end_of_older(oldest, old_ms), self._renew_below)

    def _begin(self, chunks: Iterator[Columns], urgent: bool) -> None:
        is_waiting = self._round is not None
        if not is_waiting and self.store.max_offset(TIMER_TOPIC, 0) < self._copied_until:
            return  # What waits to be confirmed would be copied again.
        self._round, self._is_urgent = chunks, urgent
        if not is_waiting:
            self._renew_some()

    def _end_of_older(self, oldest: int, time_ms: int) -> int:
        """The queue offset behind the messages that were stored before a time; 0 if none was."""
        stored_ms = self.store.store_time(TIMER_TOPIC, 0, oldest)
        if stored_ms is None or stored_ms >= time_ms:
            return 0
        return int(self.store.offset_by_time(TIMER_TOPIC, 0, time_ms))

    def _renew_below(self, end: int) -> None:
        if end and self._round is None and not self.timers.is_closed:
            soon_ms = self.clock.now_ms() + self.store.config.retention_ms // 6
            self._begin(self._chunks(end, soon_ms), urgent=False)

    def _chunks(self, end: int, due_after_ms: int) -> Iterator[Columns]:
        for found in self.timers.wheel.pending_below(end, due_after_ms):
            found = found.part(found.offsets >= self.free_below)
            for at in range(0, len(found.dues), _ROUND_COUNT):
                yield found.part(slice(at, at + _ROUND_COUNT))

    def _chunks_by_file(self, reach: int) -> Iterator[Columns]:
        """All that waits before a log offset; of one file after the other."""
        store = self.store
        for segment in store.log.segments:
            queue = store.queue_table.find(TIMER_TOPIC, 0)
            end_of_file = segment.start + segment.size
            if queue is None or end_of_file > reach:
                return
            end = _first_from(queue, end_of_file)
            yield from self._chunks(end, -1)
            # Whoever asks for more has renewed all of it.
            self.free_below = max(self.free_below, end)

    def _renew_some(self) -> None:
        """Renew about as many as one round may, and leave the rest to the next."""
        if self._round is None or self.timers.is_closed:
            return
        looked_at = 0
        with self._job:
            for chunk in self._round:
                self._renew(chunk)
                looked_at += len(chunk.dues)
                if looked_at >= _ROUND_COUNT:
                    self.schedule(_PAUSE_MS, self._renew_some)
                    return
        self._round = None  # Unless it is done, what is left is found by the next look.

    def _renew(self, chunk: Columns) -> None:
        """Write messages again that are still pending."""
        wheel = self.timers.wheel
        chunk = chunk.part(wheel.pending(*chunk))
        copies = [
            copy
            for offset in chunk.offsets.tolist()
            if (copy := self.timers.queue.made_of(offset, timed_messages.renewed)) is not None
        ]
        if copies:
            with self.writer.head_room():
                self.writer.write_now(copies)
            if self.store.max_offset(TIMER_TOPIC, 0) < self.store.next_offset(TIMER_TOPIC, 0):
                # Replicas have not confirmed them, or the queue's file had no room for them.
                self.timers.hold(chunk.offsets.tolist())
                self._copied_until = self.store.next_offset(TIMER_TOPIC, 0)
            self.timers.collect_all()

    def prepare_retention(self, reach: int) -> None:
        """Before log files are deleted: renew everything that waits before this log offset."""
        self.timers.collect_all()
        if (
            self.needed_from() < reach
            and not (self._round is not None and self._is_urgent)
            and not (self.store.retention.is_forced and self._is_most())
        ):
            self._begin(self._chunks_by_file(reach), urgent=True)

    def _is_most(self) -> bool:
        """Whether the log is full of what waits: then to write that again frees next to nothing.

        What is due leaves it, and frees files, too.
        """
        queue = self.store.queue_table.find(TIMER_TOPIC, 0)
        if queue is None:
            return False
        entries = np.frombuffer(
            b"".join(queue.raw_entries(max(queue.start, queue.end - _SAMPLE_COUNT), _SAMPLE_COUNT)),
            ENTRY_DTYPE,
        )
        sizes = entries["size"][entries["size"] != PADDING_SIZE]
        log_bytes = self.store.confirmed - self.store.log_min
        return len(sizes) > 0 and self.timers.wheel.count * sizes.mean() > log_bytes * _MOST

    def needed_from(self) -> int:
        """Where in the log the first message is that waits, or its end."""
        first = max(self.timers.wheel.position, self.free_below)
        return self.store.log_offset_of(TIMER_TOPIC, 0, first)


def _first_from(queue: ConsumeQueue, log_offset: int) -> int:
    """The queue offset of the first message that is not before a log offset."""
    return queue.first_not_before(lambda entry: entry[0] < log_offset)
