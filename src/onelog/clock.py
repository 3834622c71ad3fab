"""Time as an argument: the real clock, and one that tests move by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    """What the store and the core ask of time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


class MonotonicClock:
    """Time that only goes forward, whatever is done to the machine's clock; it begins anywhere.

    Where the system has such a clock, it also counts while the machine sleeps.
    """

    _FORWARD: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now_ms(self) -> int:
        """Milliseconds since some time in the past."""
        return time.clock_gettime_ns(self._FORWARD) // 1_000_000


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as last set."""
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Move forward (or, to imitate a stepped clock, backward)."""
        self._now_ms += ms
