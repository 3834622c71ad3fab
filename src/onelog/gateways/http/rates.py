"""How fast counters grow, for tools that ask from time to time.

Nothing is counted for this: whoever asks is told how much more there is than some seconds ago, when
somebody asked before. The first answer is 0, and so is that after a long silence's first look.

Invariant: what is kept of a counter goes with what it counts.
"""

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from onelog.clock import Clock

SPAN_MS = 5_000
"""What a rate is measured over, at least where two looks are that far apart."""

Sample = tuple[int, dict[str, int]]


class Rates:
    """The counters that were asked for lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: WeakKeyDictionary[Any, tuple[Sample, Sample]] = WeakKeyDictionary()

    def of(self, counted: Any, counts: Mapping[str, int]) -> dict[str, Any]:
        """`message_stats`: each counter, and beside it how much it grows in a second."""
        now_ms = self._clock.now_ms()
        new = now_ms, dict(counts)
        before, last = self._seen.get(counted, (new, new))
        if now_ms - last[0] >= SPAN_MS:
            before, last = last, new
        self._seen[counted] = before, last
        made: dict[str, Any] = {}
        for name, count in counts.items():
            grown = count - before[1].get(name, 0)
            made[name] = count
            rate = grown * 1000 / (now_ms - before[0]) if now_ms > before[0] else 0.0
            made[f"{name}_details"] = {"rate": round(max(0.0, rate), 2)}
        return made
