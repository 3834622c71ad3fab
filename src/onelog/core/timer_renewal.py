"""Timed messages that wait for longer than the log is kept.

A scheduled message is in a file of the log that retention will delete. When two thirds of the
retention time have passed, it is written again, to the same queue, and its new record says which
one it stands for (RocketMQ calls that rolling). Messages that will be delivered before their file
can go are left alone.

Invariant: before retention deletes a file, no pending message is only in it.
"""

import logging
from collections.abc import Iterator

from onelog.clock import Clock
from onelog.core import timed_messages
from onelog.core.publish import Publisher
from onelog.core.timer_runs import Columns
from onelog.core.timers import Timers
from onelog.core.topics import TIMER_TOPIC
from onelog.core.waiting import Schedule
from onelog.core.warming import Warming
from onelog.errors import MessageError, OffsetOutOfRangeError
from onelog.jobs import Job
from onelog.message import NewMessage
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

CHECK_MS = 60_000
"""How often to look for old messages."""
_ROUND_COUNT = 200
_PAUSE_MS = 10


class TimerRenewal:
    """Writes scheduled messages again before their records go."""

    def __init__(
        self,
        timers: Timers,
        store: MessageStore,
        publisher: Publisher,
        clock: Clock,
        schedule: Schedule,
        warming: Warming,
    ) -> None:
        self._timers = timers
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self._schedule = schedule
        self._warming = warming
        self._round: Iterator[Columns] | None = None
        self._job = Job("renewing timed messages")

    def check(self) -> None:
        """Begin to renew what is old, some at a time, unless that is being done."""
        wheel = self._timers.wheel
        oldest = max(wheel.position, int(self._store.min_offset(TIMER_TOPIC, 0)))
        if self._round is None and oldest < wheel.end:
            old_ms = self._clock.now_ms() - self._store.config.retention_ms * 2 // 3
            self._warming.find(lambda: self._end_of_older(oldest, old_ms), self._renew_below)

    def _end_of_older(self, oldest: int, time_ms: int) -> int:
        """The queue offset behind the messages that were stored before a time; 0 if none was."""
        stored_ms = self._store.store_time(TIMER_TOPIC, 0, oldest)
        if stored_ms is None or stored_ms >= time_ms:
            return 0
        return int(self._store.offset_by_time(TIMER_TOPIC, 0, time_ms))

    def _renew_below(self, end: int) -> None:
        if end and self._round is None and not self._timers.is_closed:
            soon_ms = self._clock.now_ms() + self._store.config.retention_ms // 6
            self._round = self._chunks(end, soon_ms)
            self._renew_some()

    def _chunks(self, end: int, due_after_ms: int) -> Iterator[Columns]:
        for found in self._timers.wheel.pending_below(end, due_after_ms):
            for at in range(0, len(found.dues), _ROUND_COUNT):
                yield found.part(slice(at, at + _ROUND_COUNT))

    def _renew_some(self) -> None:
        if self._round is None or self._timers.is_closed:
            return
        chunk: Columns | None = None
        with self._job:
            chunk = next(self._round, None)
            if chunk is not None:
                self._renew(chunk)
        if chunk is None or self._job.failed:
            self._round = None  # What is left is found by the next look.
        else:
            self._schedule(_PAUSE_MS, self._renew_some)

    def _renew(self, chunk: Columns) -> int:
        """Write messages again that are still pending; how many."""
        wheel = self._timers.wheel
        chunk = chunk.part(wheel.pending(*chunk))
        copies = [
            copy for offset in chunk.offsets.tolist() if (copy := self._renewed(offset)) is not None
        ]
        if copies:
            self._publisher.write_now(copies)
            self._timers.collect_all()
        return len(copies)

    def _renewed(self, offset: int) -> NewMessage | None:
        try:
            return timed_messages.renewed(self._timers.queue.message(offset))
        except (OffsetOutOfRangeError, MessageError) as error:
            log.error("the timed message at queue offset %d is lost: %s", offset, error)
            return None

    def prepare_retention(self, reach: int) -> None:
        """Before log files are deleted: renew everything that waits before this log offset."""
        self._timers.collect_all()
        queue = self._store.queue_table.find(TIMER_TOPIC, 0)
        end = 0 if queue is None else queue.first_not_before(lambda entry: entry[0] < reach)
        count = sum(map(self._renew, self._chunks(end, -1))) if end else 0
        if count:
            log.info("%d timed messages were renewed, as their log files may be deleted", count)
