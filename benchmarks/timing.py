"""Taking the time: wall clock for what a user waits, CPU time for what the work costs.

The machine may be busy with other things, so a throughput is the best of a few rounds, and the CPU
time of all threads of the process stands beside it: it says what one core could do at most.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Self

ROUNDS = 3


class Stopwatch:
    """Measures a `with` block."""

    def __enter__(self) -> Self:
        self.wall_s = time.perf_counter()
        self.cpu_s = time.process_time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cpu_s = time.process_time() - self.cpu_s
        self.wall_s = time.perf_counter() - self.wall_s


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast `count` things went."""

    count: int
    wall_s: float
    cpu_s: float

    @property
    def per_second(self) -> float:
        """By the wall clock."""
        return self.count / self.wall_s

    @property
    def cpu_us(self) -> float:
        """CPU time of one thing, in microseconds."""
        return self.cpu_s / self.count * 1e6


def best(measure: Callable[[], Rate], rounds: int = ROUNDS) -> Rate:
    """The fastest of a few rounds by the wall clock; CPU time is the least of them."""
    rates = [measure() for _ in range(rounds)]
    fastest = max(rates, key=lambda rate: rate.per_second)
    least = min(rates, key=lambda rate: rate.cpu_us)
    return Rate(fastest.count, fastest.wall_s, least.cpu_us * fastest.count / 1e6)


@dataclass(frozen=True, slots=True)
class Spread:
    """Many times of one thing, in seconds."""

    times_s: tuple[float, ...]
    cpu_s: float

    @property
    def median_s(self) -> float:
        """Half of them were faster."""
        return median(self.times_s)

    @property
    def p99_s(self) -> float:
        """99 of 100 were faster."""
        return sorted(self.times_s)[len(self.times_s) * 99 // 100]

    @property
    def cpu_us(self) -> float:
        """CPU time of one, in microseconds."""
        return self.cpu_s / len(self.times_s) * 1e6


def spread(actions: Iterator[Callable[[], object]]) -> Spread:
    """Run the actions one by one and time each."""
    times = []
    cpu_s = 0.0
    for action in actions:
        with Stopwatch() as watch:
            action()
        times.append(watch.wall_s)
        cpu_s += watch.cpu_s
    return Spread(tuple(times), cpu_s)


@contextmanager
def prepared_input() -> Iterator[None]:
    """Keep what was made beforehand for the measurement out of the garbage collector's rounds.

    A broker does not hold a hundred thousand messages that it is about to append.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
