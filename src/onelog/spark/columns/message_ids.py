"""Unique ids of messages, many at once; `client.unique_id` draws them.

One task has ids of its own: four random bytes in them are the task's, not the process's. The time
and the counter behind them are as in every other id.

Invariant: no two ids of a task are the same.
"""

import os
import time
from collections.abc import Callable

import numpy as np

from onelog.client.producer.unique_id import unique_id
from onelog.record.columns import Bytes

ID_BYTES = 32
IDS_PER_MS = 1 << 16
"""What the counter can tell apart."""

_HEX = np.frombuffer("".join(f"{number:02X}" for number in range(256)).encode(), np.uint8)
_DIGITS = _HEX.reshape(256, 2)
_RANDOM = slice(12, 20)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class MessageIds:
    """The ids that one task gives."""

    def __init__(self, now_ms: Callable[[], int] = _now_ms) -> None:
        self._now_ms = now_ms
        self._random = os.urandom(4).hex().upper()
        self._ms = -1
        self._next = 0

    def take(self, count: int) -> Bytes:
        """So many new ids, one in each row."""
        found = np.empty((count, ID_BYTES), np.uint8)
        self._turn()
        done = 0
        while done < count:
            if self._next == IDS_PER_MS:
                self._wait_for_later()
            some = min(count - done, IDS_PER_MS - self._next)
            rows = found[done : done + some]
            stem = unique_id(self._ms)[:-4]
            own = stem[: _RANDOM.start] + self._random + stem[_RANDOM.stop :]
            rows[:, :-4] = np.frombuffer(own.encode(), np.uint8)
            numbers = np.arange(self._next, self._next + some)
            rows[:, -4:-2] = _DIGITS[numbers >> 8]
            rows[:, -2:] = _DIGITS[numbers & 0xFF]
            done += some
            self._next += some
        return found

    def _turn(self) -> None:
        """In a later millisecond, count from the beginning."""
        now = self._now_ms()
        if now > self._ms:
            self._ms, self._next = now, 0

    def _wait_for_later(self) -> None:
        while self._next:
            time.sleep(0.0005)
            self._turn()
