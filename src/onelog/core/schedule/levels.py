"""Delayed messages: the levels, RocketMQ's way.

A message of level n is written to queue n-1 of SCHEDULE_TOPIC_XXXX instead, with its own topic
and queue in REAL_TOPIC and REAL_QID. As all messages of a level wait equally long, each such queue
is in the order of due times: one position per level says what has been delivered, and one timer per
level waits for the first that has not.

What falls due is written to its own topic in one append together with the record of the new
position, so that not even a killed process delivers twice; only a torn write (lost power) can.

A file of the log may have to go before the messages in it are due. The queue of a level is in the
order of due times, so nothing can be written to it again; but its first messages may leave early,
in one append with the level's new position: as timed messages, which are due at the same time and
are renewed for as long as it takes (`renewal`).

Invariant: everything below a level's position was delivered or is among the timed messages, nothing
from it on is.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onelog.core.durable.storage import Storage
from onelog.core.schedule import records
from onelog.errors import MessageError, OffsetOutOfRangeError, StoreBusyError, StoreError
from onelog.jobs import Job
from onelog.message import NewMessage
from onelog.names import SCHEDULE_TOPIC

log = logging.getLogger(__name__)

_ROUND_COUNT = 256
_ROUND_BYTES = 1 << 20
_TROUBLE_MS = 1_000
_PAUSE_MS = 10


@dataclass(eq=False)
class Delay:
    """The table of delivery positions, and the deliverer."""

    name = "delay"

    _storage: Storage
    _levels_ms: tuple[int, ...]

    def __post_init__(self) -> None:
        storage, runtime = self._storage, self._storage.runtime
        self._store, self._writer, self._tables = storage.store, storage.writer, storage.tables
        self._clock, self._schedule = runtime.clock, runtime.schedule
        self._cold_reads = storage.cold_reads
        self._positions: dict[int, int] = {}
        self._armed: set[int] = set()
        self._jobs = [Job(f"delivering level {n}") for n in range(1, len(self._levels_ms) + 1)]
        self._reach = 0
        self._is_handing_over = False
        self._handing_over = Job("handing over delayed messages whose log files should be deleted")
        self._closed = False

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._positions.pop(int(key), None)
        else:
            self._positions[int(key)] = int(value)

    def parts(self) -> list[dict[str, Any]]:
        """The position of every level."""
        return [{str(level): offset for level, offset in self._positions.items()}]

    def open(self) -> None:
        """Deliver what fell due while nobody was here."""
        for level, (position, end) in self.progress().items():
            if position > end:
                log.warning(
                    "level %d was delivered up to %d, but a crash has cut its queue off at %d: it "
                    "goes on there",
                    level,
                    position,
                    end,
                )
                self._tables.write([(self.name, str(level), end)])
            elif position < end:
                self._arm(level, 0)

    def close(self) -> None:
        """Deliver nothing more."""
        self._closed = True

    def _first_waiting(self, level: int) -> int:
        """The queue offset of the first message of a level that has not been delivered."""
        kept_from = int(self._store.min_offset(SCHEDULE_TOPIC, level - 1))
        return max(self._positions.get(level, 0), kept_from)

    def needed_from(self) -> int:
        """Where in the log the first message is that waits, or its end."""
        return min(
            (
                self._store.log_offset_of(SCHEDULE_TOPIC, level - 1, self._first_waiting(level))
                for level in range(1, len(self._levels_ms) + 1)
            ),
            default=int(self._store.log_end),
        )

    def progress(self) -> dict[int, tuple[int, int]]:
        """Per level, what has been delivered and what there is."""
        return {
            level: (
                self._positions.get(level, 0),
                int(self._store.max_offset(SCHEDULE_TOPIC, level - 1)),
            )
            for level in range(1, len(self._levels_ms) + 1)
        }

    def postpone(self, message: NewMessage, level: int) -> NewMessage:
        """The message as it waits; where there are no levels, it comes back as it is."""
        if not self._levels_ms:
            return message
        level = min(level, len(self._levels_ms))
        self._arm(level, self._levels_ms[level - 1])
        return records.delayed(message, level)

    @property
    def levels(self) -> range:
        return range(1, len(self._levels_ms) + 1)

    def arrived(self, level: int) -> None:
        """Messages are in the queue of a level that may not have been there when it was looked."""
        self._arm(level, 0)

    def _arm(self, level: int, wait_ms: int) -> None:
        if level not in self._armed and not self._closed:
            self._armed.add(level)
            self._schedule(wait_ms, lambda: self._time_passed(level))

    def _time_passed(self, level: int) -> None:
        self._armed.discard(level)
        if self._closed:
            return
        wait_ms: int | None = _TROUBLE_MS
        with self._jobs[level - 1]:
            begin = self._positions.get(level, 0)
            entries = self._store.entries(SCHEDULE_TOPIC, level - 1, begin, _ROUND_COUNT)
            now = self._clock.now_ms()
            due = [at for at, _, due_ms in entries if due_ms <= now]
            if not self._cold_reads.is_ready(due, lambda: self._time_passed(level)):
                self._armed.add(level)  # It comes again by itself.
                return
            wait_ms = self._deliver_due(level)
        if wait_ms is not None:
            self._arm(level, wait_ms)

    def _deliver_due(self, level: int) -> int | None:
        """Deliver a bounded number of due messages; how long to wait for more, or None if empty."""
        begin = self._first_waiting(level)
        lost = begin - self._positions.get(level, 0)
        if lost:
            log.error(
                "%d delayed messages of level %d were deleted by retention before they were due",
                lost,
                level,
            )
        now = self._clock.now_ms()
        # A due time further away than the level's delay was written before the clock was set back;
        # it would block the level.
        latest = now + self._levels_ms[level - 1]
        position, due = self._taken(level, begin, lambda at, due_ms: now < due_ms <= latest)
        self._write(level, [message for message, _ in due], position)
        for _, _, due_ms in self._store.entries(SCHEDULE_TOPIC, level - 1, position, 1):
            return due_ms - now if now < due_ms <= latest else 0
        return None

    def _taken(
        self, level: int, begin: int, stays: Callable[[int, int], bool]
    ) -> tuple[int, list[tuple[NewMessage, int]]]:
        """The messages of a level from an offset on, some of them, with when they are due.

        With them, where they end: before the first that `stays`, by its place and due time.
        """
        taken: list[tuple[NewMessage, int]] = []
        position, size = begin, 0
        for at, length, due_ms in self._store.entries(
            SCHEDULE_TOPIC, level - 1, begin, _ROUND_COUNT
        ):
            if stays(at, due_ms) or size > _ROUND_BYTES:
                break
            entry = self._store.entry_at(SCHEDULE_TOPIC, level - 1, position)  # Mended.
            size += length
            position += 1
            message = None if entry is None else self._restored(entry[0])
            if message is not None:
                taken.append((message, due_ms))
        return position, taken

    def _restored(self, log_offset: int) -> NewMessage | None:
        """The message as it was before it was postponed, or None if it cannot be delivered."""
        try:
            return records.restored(self._store.message_at(log_offset))
        except StoreBusyError:
            raise  # It is there, and can be read a moment later.
        except (OffsetOutOfRangeError, MessageError, StoreError) as error:
            log.error("the delayed message at log offset %d is dropped: %s", log_offset, error)
            return None

    def _write(self, level: int, due: list[NewMessage], position: int) -> None:
        """Write what became of messages, and that all below `position` have left their queue."""
        if position != self._positions.get(level, 0):
            self._tables.deliver(due, [(self.name, str(level), position)])

    # -- files that go -------------------------------------------------------------------------

    def prepare_retention(self, reach: int) -> None:
        """Begin to hand over what waits before this log offset, some at a time."""
        self._reach = reach
        if not self._is_handing_over:
            self._hand_over_some()

    def _hand_over_some(self) -> None:
        self._is_handing_over = False
        if self._closed:
            return
        with self._handing_over:  # If it fails, the files that hold them stay until it does not.
            for level in range(1, len(self._levels_ms) + 1):
                if count := self._hand_over(level):
                    log.info("%d delayed messages of level %d became timed ones", count, level)
                    self._is_handing_over = True
                    self._schedule(_PAUSE_MS, self._hand_over_some)
                    return

    def _hand_over(self, level: int) -> int:
        """Hand over a bounded number of messages of a level; how many."""
        begin = self._first_waiting(level)
        position, taken = self._taken(level, begin, lambda at, due_ms: at >= self._reach)
        # A clock that was ahead made due times that no message of the level can have.
        latest_ms = self._clock.now_ms() + self._levels_ms[level - 1]
        copies = [_timed(message, min(due_ms, latest_ms)) for message, due_ms in taken]
        if position > begin:
            with self._writer.head_room():
                self._write(level, copies, position)
        return position - begin


def _timed(message: NewMessage, due_ms: int) -> NewMessage:
    """The message as it waits among the timed ones."""
    try:
        return records.scheduled(message, due_ms)
    except MessageError as error:
        log.error("a delayed message to %s is delivered early: %s", message.topic, error)
        return message
