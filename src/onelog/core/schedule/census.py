"""How many timed messages of each topic wait: counted when somebody asks, some at a time.

The wheel knows when messages are due, but not whose they are: that is in their records, which a
worker reads. Counting a million takes seconds, and keeps nobody waiting but those who asked; who
asks meanwhile is told the same numbers.

Invariant: what waits all the while is counted once; what comes or leaves meanwhile, perhaps.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator

from onelog.core.schedule.levels import REAL_TOPIC
from onelog.core.schedule.sorted_files import Columns
from onelog.core.schedule.timers import Timers
from onelog.errors import OnelogError
from onelog.message import property_bytes
from onelog.names import TIMER_TOPIC
from onelog.store.message_store import MessageStore
from onelog.store.record import decode_message

log = logging.getLogger(__name__)

PART_COUNT = 2_000
_TOPIC_NEEDLE = REAL_TOPIC.encode() + b"\x01"

Places = list[tuple[int, int]]
"""Where records are in the log, and how long."""
Offload = Callable[[Callable[[], None], Callable[[], None]], None]
"""Runs the first function in a worker thread, then the second one in the loop."""
OnCounted = Callable[[dict[str, int]], None]


class TimerCensus:
    """Counts what waits, by topic."""

    def __init__(self, timers: Timers, store: MessageStore, offload: Offload) -> None:
        self._timers = timers
        self._store = store
        self._offload = offload
        self._asking: list[OnCounted] = []

    def count(self, on_counted: OnCounted) -> None:
        """Call back with how many messages of each topic wait."""
        self._asking.append(on_counted)
        if len(self._asking) == 1:
            self._timers.collect_all()
            self._go_on(self._parts(self._timers.wheel.pending_messages()), Counter())

    def _go_on(self, parts: Iterator[Places], counted: Counter[str]) -> None:
        is_counted = [True]

        def count() -> None:
            for places in itertools.islice(parts, 1):
                self._count_part(places, counted)
                is_counted.clear()

        def then() -> None:
            if not is_counted and not self._timers.is_closed:
                self._go_on(parts, counted)
                return
            asking, self._asking = self._asking, []
            for on_counted in asking:
                on_counted(dict(counted))

        self._offload(count, then)

    def _parts(self, pending: Iterator[Columns]) -> Iterator[Places]:
        """The places of all messages that wait; to be asked by the worker."""
        for columns in pending:
            for at in range(0, len(columns.offsets), PART_COUNT):
                queue = self._store.queue_table.find(TIMER_TOPIC, 0)
                if queue is None:
                    return
                offsets = columns.offsets[at : at + PART_COUNT].tolist()
                there = (offset for offset in offsets if queue.start <= offset < queue.end)
                yield [queue.read_entry(offset)[:2] for offset in there]

    def _count_part(self, places: Places, counted: Counter[str]) -> None:
        """What cannot be read will not be delivered either."""
        for at, size in places:
            try:
                message = decode_message(memoryview(self._store.read_cold(at, size)))
            except OnelogError as error:
                log.warning("the timed message at %d in the log cannot be read: %s", at, error)
                continue
            topic = property_bytes(message.properties, _TOPIC_NEEDLE)
            if topic is not None:
                counted[topic.decode("utf-8", "replace")] += 1
