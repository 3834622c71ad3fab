"""Deadlines of many things with few timers.

Things that fall due within the same tick share a slot, and one timer is set for the next slot in
use. Taking a thing out again costs one look-up. What is due is handed over in rounds, so that a
million things that fall due at once do not keep everything else waiting.

Invariant: nothing is handed over before its time; it may be a tick late.
"""

import heapq
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Generic, TypeVar

from onelog.clock import Clock

Schedule = Callable[[int, Callable[[], None]], None]
"""Calls a function after so many milliseconds, in the thread of the core."""
Thing = TypeVar("Thing", bound=Hashable)


@dataclass(eq=False)
class Deadlines(Generic[Thing]):
    """Things, by the tick in which they are due."""

    _clock: Clock
    _schedule: Schedule
    _on_due: Callable[[list[Thing]], None]
    tick_ms: int = 100
    round_max: int = 32

    def __post_init__(self) -> None:
        self._slots: dict[int, dict[Thing, None]] = {}
        self._ticks: list[int] = []
        self._armed: int | None = None
        self._closed = False

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def __iter__(self) -> Iterator[Thing]:
        return chain.from_iterable(self._slots.values())

    def add(self, thing: Thing, due_ms: int) -> None:
        """Hand the thing over at that time, or as soon as possible if it is past."""
        tick = -(-due_ms // self.tick_ms)
        slot = self._slots.get(tick)
        if slot is None:
            slot = self._slots[tick] = {}
            heapq.heappush(self._ticks, tick)
            if self._armed is None or tick < self._armed:
                self._arm(tick)
        slot[thing] = None

    def remove(self, thing: Thing, due_ms: int) -> None:
        """Take a thing out that was added with this time. Nothing happens if it is not there."""
        slot = self._slots.get(-(-due_ms // self.tick_ms))
        if slot is not None:
            slot.pop(thing, None)

    def close(self) -> None:
        """Hand nothing over any more."""
        self._closed = True

    def _arm(self, tick: int) -> None:
        self._armed = tick
        wait_ms = max(0, tick * self.tick_ms - self._clock.now_ms())
        self._schedule(wait_ms, partial(self._time_passed, tick))

    def _time_passed(self, tick: int) -> None:
        """Hand over what is due, unless this timer was overtaken by one for an earlier tick."""
        if self._closed or tick != self._armed:
            return
        now_ms = self._clock.now_ms()
        due: list[Thing] = []
        while self._ticks and self._ticks[0] * self.tick_ms <= now_ms:
            slot = self._slots[self._ticks[0]]
            some = list(islice(slot, self.round_max - len(due)))
            due += some
            if len(some) < len(slot):
                for thing in some:
                    del slot[thing]
                break
            del self._slots[heapq.heappop(self._ticks)]
        self._armed = None
        if self._ticks:
            self._arm(self._ticks[0])
        if due:
            self._on_due(due)
