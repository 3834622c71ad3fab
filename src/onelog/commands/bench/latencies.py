"""Many durations in little room: counted by size, in steps of about one percent.

Step i holds durations from 2**(i/64) to 2**((i+1)/64) nanoseconds; a percentile is the upper end of
its step. Invariants: durations up to `NANOSECONDS_MAX` are told to 1.1 percent, and what several
processes counted can be added.
"""

from collections.abc import Mapping

import numpy as np

STEPS_PER_DOUBLING = 64
NANOSECONDS_MAX = 2**40
"""18 minutes; what takes longer is counted as this."""
_STEPS = 40 * STEPS_PER_DOUBLING + 1
_LOOSE_MAX = 65_536
PERCENTILES = (50.0, 90.0, 99.0, 99.9)


class Latencies:
    """Durations, counted."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self._counts = np.zeros(_STEPS, np.int64)
        self._loose: list[int] = []
        for step, count in (counts or {}).items():
            self._counts[step] = count

    def add(self, nanoseconds: int) -> None:
        """Count one."""
        self._loose.append(nanoseconds)
        if len(self._loose) >= _LOOSE_MAX:
            self._sort_in()

    def counts(self) -> dict[int, int]:
        """How many there are in each step that has any."""
        self._sort_in()
        return {int(step): int(self._counts[step]) for step in np.flatnonzero(self._counts)}

    def include(self, other: "Latencies") -> None:
        """Count what another one has counted."""
        self._sort_in()
        other._sort_in()
        self._counts += other._counts

    @property
    def count(self) -> int:
        """How many there are."""
        self._sort_in()
        return int(self._counts.sum())

    def percentile_ms(self, percent: float) -> float:
        """So many percent of them took no longer; in milliseconds."""
        self._sort_in()
        below = np.cumsum(self._counts)
        assert below[-1] > 0
        step = int(np.searchsorted(below, max(1.0, below[-1] * percent / 100)))
        return float(2.0 ** ((step + 1) / STEPS_PER_DOUBLING)) / 1e6

    def document(self) -> dict[str, float] | None:
        """The usual percentiles in milliseconds; None if nothing was counted."""
        if not self.count:
            return None
        named = {f"p{percent:g}": self.percentile_ms(percent) for percent in PERCENTILES}
        return {
            name: round(ms, 4) for name, ms in {**named, "max": self.percentile_ms(100)}.items()
        }

    def _sort_in(self) -> None:
        if self._loose:
            sizes = np.clip(np.array(self._loose, np.float64), 1, NANOSECONDS_MAX)
            steps = (np.log2(sizes) * STEPS_PER_DOUBLING).astype(np.int64)
            self._counts += np.bincount(steps, minlength=_STEPS)
            self._loose.clear()
