"""How quickly a consumer works, by topic: rates of the last minute, for the tools that ask.

Counters only grow. Every ten seconds their values are noted; a rate is the difference between now
and the oldest note of the last minute.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from onelog.wire.remoting.clients import ConsumeStatus

LOOK_SECONDS = 10.0
_MINUTE_LOOKS = 6
_HOUR_LOOKS = 360


@dataclass(slots=True)
class _Counts:
    pulls: int = 0
    pull_seconds: float = 0.0
    pulled: int = 0
    consumed: int = 0
    failed: int = 0
    listened: int = 0
    listener_seconds: float = 0.0


class ConsumeRates:
    """The counters of one consumer."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._counts: defaultdict[str, _Counts] = defaultdict(_Counts)
        self._looks: dict[str, deque[tuple[float, _Counts]]] = {}

    def pulled(self, topic: str, seconds: float, count: int) -> None:
        counts = self._counts[topic]
        counts.pulls += 1
        counts.pull_seconds += seconds
        counts.pulled += count

    def consumed(self, topic: str, count: int) -> None:
        self._counts[topic].consumed += count

    def failed(self, topic: str, count: int) -> None:
        self._counts[topic].failed += count

    def took(self, topic: str, seconds: float, count: int) -> None:
        counts = self._counts[topic]
        counts.listener_seconds += seconds
        counts.listened += count

    def look(self) -> None:
        """Remember the counters as they are; to be called every `LOOK_SECONDS`."""
        for topic, counts in self._counts.items():
            looks = self._looks.setdefault(topic, deque(maxlen=_HOUR_LOOKS + 1))
            looks.append((self._now(), replace(counts)))

    def status(self, topic: str) -> ConsumeStatus:
        counts = self._counts.get(topic)
        if counts is None:
            return ConsumeStatus()
        looks = self._looks.get(topic) or deque([(self._now() - LOOK_SECONDS, _Counts())])
        began, before = looks[max(0, len(looks) - _MINUTE_LOOKS)]
        seconds = max(self._now() - began, 0.001)
        failed_before = looks[0][1].failed if len(looks) > _HOUR_LOOKS else 0
        return ConsumeStatus(
            consume_failed_msgs=counts.failed - failed_before,
            consume_failed_tps=(counts.failed - before.failed) / seconds,
            consume_ok_tps=(counts.consumed - before.consumed) / seconds,
            consume_rt=_mean_ms(
                counts.listener_seconds - before.listener_seconds, counts.listened - before.listened
            ),
            pull_rt=_mean_ms(
                counts.pull_seconds - before.pull_seconds, counts.pulls - before.pulls
            ),
            pull_tps=(counts.pulled - before.pulled) / seconds,
        )


def _mean_ms(seconds: float, count: int) -> float:
    return seconds * 1000 / count if count else 0.0
