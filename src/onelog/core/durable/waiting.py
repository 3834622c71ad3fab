"""Everything that waits for messages: long polls now, fetches and pushes of other protocols too.

A wait names the queues it is about. It ends once: when a message arrives in one of them (and its
`ready`, if it has one, agrees), when its time is up, or, silently, when its owner's connection
closes. Arrivals are told once per queue and tick, not per message.

Fifty thousand polls that all end early cost no timers (`deadlines`).

Invariant: an open wait is in `keys` under each of its keys, among the deadlines, and under its
owner; a closed one is in none of them.
"""

import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from onelog.clock import Clock
from onelog.core.durable.deadlines import Deadlines, Schedule

log = logging.getLogger(__name__)

Key = tuple[str, int]
"""A topic and a queue id; ANY_QUEUE stands for all of the topic's."""
ANY_QUEUE = -1
TIMEOUT_MAX_MS = 3_600_000
ROUND_COUNT = 500
"""Waits that are ended one after the other, before anything else has its turn."""

OnEnd = Callable[["Wait", bool], None]
"""Called with what has waited, and whether its time was up."""


@dataclass(slots=True, eq=False)
class Wait:
    """One wait. `on_end` is called with it, and with whether its time was up."""

    keys: Sequence[Key]
    on_end: OnEnd
    owner: Hashable
    ready: Callable[[], bool] | None
    due_ms: int
    open: bool = field(init=False, default=True)


class OpenWaits:
    """All open waits."""

    def __init__(
        self, clock: Clock, schedule: Schedule, *, waits_max: int = 100_000, tick_ms: int = 100
    ) -> None:
        self._clock = clock
        self._schedule = schedule
        self._waits_max = waits_max
        self._deadlines: Deadlines[Wait] = Deadlines(
            clock, schedule, self._end_overdue, tick_ms, ROUND_COUNT
        )
        self.keys: dict[Key, dict[Wait, None]] = {}
        """What is waited for; the writer looks here before it tells of arrivals."""
        self._owners: dict[Hashable, dict[Wait, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def wait(
        self,
        keys: Sequence[Key],
        timeout_ms: int,
        on_end: OnEnd,
        owner: Hashable = None,
        ready: Callable[[], bool] | None = None,
    ) -> Wait | None:
        """Wait. None if too many do already: then the answer must go out as it is."""
        if self._count >= self._waits_max:
            return None
        due_ms = self._clock.now_ms() + max(0, min(timeout_ms, TIMEOUT_MAX_MS))
        wait = Wait(keys, on_end, owner, ready, due_ms)
        for key in keys:
            waits = self.keys.get(key)
            if waits is None:
                waits = self.keys[key] = {}
            waits[wait] = None
        if owner is not None:
            owned = self._owners.get(owner)
            if owned is None:
                owned = self._owners[owner] = {}
            owned[wait] = None
        self._deadlines.add(wait, due_ms)
        self._count += 1
        return wait

    def _end_overdue(self, due: list[Wait]) -> None:
        for wait in due:
            self._end(wait, timed_out=True)

    def arrived(self, topic: str, queue_id: int) -> None:
        """A message is in the queue: end the waits for it that are ready."""
        for key in ((topic, queue_id), (topic, ANY_QUEUE)):
            waits = self.keys.get(key)
            if waits is not None:
                self._wake(deque(waits))

    def _wake(self, waits: deque[Wait]) -> None:
        """End those that are ready; of very many some at a time."""
        for _ in range(min(len(waits), ROUND_COUNT)):
            wait = waits.popleft()
            try:
                ready = wait.open and (wait.ready is None or wait.ready())
            except Exception:
                # Looking again, it finds out for itself; the others are told as well.
                log.exception("a wait for %s could not be looked at", wait.keys)
                ready = True
            if ready:
                self._end(wait, timed_out=False)
        if waits:
            self._schedule(0, lambda: self._wake(waits))

    def _end(self, wait: Wait, *, timed_out: bool) -> None:
        if not wait.open:
            return
        self.cancel(wait)
        try:
            wait.on_end(wait, timed_out)
        except Exception:
            # One broken connection must not keep the others waiting.
            log.exception("a wait for %s could not be ended", wait.keys)

    def cancel(self, wait: Wait) -> None:
        """End a wait without a word. Nothing happens if it has ended."""
        if not wait.open:
            return
        wait.open = False
        self._deadlines.remove(wait, wait.due_ms)
        for key in wait.keys:
            waits = self.keys[key]
            del waits[wait]
            if not waits:
                del self.keys[key]
        if wait.owner is not None:
            owned = self._owners[wait.owner]
            del owned[wait]
            if not owned:
                del self._owners[wait.owner]
        self._count -= 1

    def cancel_owned(self, owner: Hashable) -> None:
        """The owner's connection is closed: end its waits without a word."""
        for wait in list(self._owners.get(owner, ())):
            self.cancel(wait)

    def end_all(self) -> None:
        """The broker stops: let everyone answer what there is."""
        for wait in list(self._deadlines):
            self._end(wait, timed_out=True)
