"""Which brokers to leave alone for a while: those that were slow, and those that failed.

A broker that took 550 ms or more to answer is avoided for a time that grows with the delay
(RocketMQ's table); one that failed is treated as if it had taken 10 s. Avoided does not mean
forbidden: if all brokers are, the one that is avoided least long is used.

Invariant: only the last answer of a broker counts; a fast one ends its avoidance at once.
"""

from bisect import bisect_right
from collections.abc import Iterable

from onelog.clock import Clock

LATENCIES_MS = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
AVOIDED_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
FAILED_LATENCY_MS = 10_000

_UNNOTICED_MS = 550
"""Below this nothing is avoided, and nothing need be written down."""


class Faults:
    """What one client has seen of its brokers, by their names."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._avoided_until_ms: dict[str, int] = {}

    def answered(self, broker: str, latency_ms: float) -> None:
        """A broker answered after that time."""
        if latency_ms >= _UNNOTICED_MS or self._avoided_until_ms:
            self._note(broker, latency_ms)

    def failed(self, broker: str) -> None:
        """A broker could not be reached, did not answer, or refused for its own reasons."""
        self._note(broker, FAILED_LATENCY_MS)

    def is_avoided(self, broker: str) -> bool:
        """Whether to send elsewhere if possible."""
        until_ms = self._avoided_until_ms.get(broker)
        return until_ms is not None and self._clock.now_ms() < until_ms

    def least_avoided(self, brokers: Iterable[str]) -> str:
        """Of several brokers, the one to use if all are avoided."""
        return min(brokers, key=lambda broker: self._avoided_until_ms.get(broker, 0))

    def _note(self, broker: str, latency_ms: float) -> None:
        avoided_ms = avoided_for_ms(latency_ms)
        if avoided_ms:
            self._avoided_until_ms[broker] = self._clock.now_ms() + avoided_ms
        else:
            self._avoided_until_ms.pop(broker, None)


def avoided_for_ms(latency_ms: float) -> int:
    """How long a broker is avoided that took so long."""
    return AVOIDED_MS[max(0, bisect_right(LATENCIES_MS, latency_ms) - 1)]
