"""Delayed messages whose file of the log goes before they are due: they become timed messages.

The queue of a level is in the order of due times, so nothing can be written to it again. But the
first messages that wait in it may leave early, all that lie in files that retention wants to
delete, in one append with the level's new position: as timed messages, which are due at the same
time and are renewed for as long as it takes (`timer_renewal`).

Invariant: a message that waits is in its level's queue behind the position, or among the timed
ones; never in both, and never in neither.
"""

import logging

from onelog.clock import Clock
from onelog.core.durable.waiting import Schedule
from onelog.core.schedule import records as timed_messages
from onelog.core.schedule.levels import Delay
from onelog.errors import MessageError
from onelog.jobs import Job
from onelog.message import NewMessage
from onelog.names import SCHEDULE_TOPIC
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

_ROUND_COUNT = 256
_ROUND_BYTES = 1 << 20
_PAUSE_MS = 10


class DelayRenewal:
    """Hands delayed messages over before their records go."""

    def __init__(self, delay: Delay, store: MessageStore, clock: Clock, schedule: Schedule) -> None:
        self._delay = delay
        self._store = store
        self._clock = clock
        self._schedule = schedule
        self._reach = 0
        self._is_running = False
        self._job = Job("handing over delayed messages whose log files should be deleted")

    def prepare_retention(self, reach: int) -> None:
        """Begin to hand over what waits before this log offset, some at a time."""
        self._reach = reach
        if not self._is_running:
            self._hand_over_some()

    def _hand_over_some(self) -> None:
        self._is_running = False
        if self._delay.is_closed:
            return
        with self._job:  # If it fails, the files that hold them stay until it does not.
            for level in range(1, self._delay.levels + 1):
                if count := self._hand_over(level):
                    log.info("%d delayed messages of level %d became timed ones", count, level)
                    self._is_running = True
                    self._schedule(_PAUSE_MS, self._hand_over_some)
                    return

    def _hand_over(self, level: int) -> int:
        """Hand over a bounded number of messages of a level; how many."""
        delay = self._delay
        begin = position = delay.first_waiting(level)
        latest_ms = self._clock.now_ms() + delay.delay_ms(level)
        copies: list[NewMessage] = []
        size = 0
        for at, length, due_ms in self._store.entries(
            SCHEDULE_TOPIC, level - 1, begin, _ROUND_COUNT
        ):
            if at >= self._reach or size > _ROUND_BYTES:
                break
            size += length
            position += 1
            message = delay.restored(at)
            if message is not None:
                # A clock that was ahead made due times that no message of the level can have.
                copies.append(_timed(message, min(due_ms, latest_ms)))
        if position > begin:
            with self._store.head_room():
                delay.write(level, copies, position)
        return position - begin


def _timed(message: NewMessage, due_ms: int) -> NewMessage:
    """The message as it waits among the timed ones."""
    try:
        return timed_messages.scheduled(message, due_ms)
    except MessageError as error:
        log.error("a delayed message to %s is delivered early: %s", message.topic, error)
        return message
