"""One clock for everything that is simulated: events in the order of time, from one seed.

An event is a call that belongs to a life (a node from start to crash, or the world outside); what
was planned for a life that has ended does not happen. Nothing else moves time, and whatever is
random is drawn from the one `random`, so a seed tells the whole story.

Invariant: two runs of the same seed do the same, step by step.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from zlib import crc32

TRACE_MAX = 4_000
BEGIN_MS = 1_700_000_000_000
Call = Callable[[], None]


class BrokenError(AssertionError):
    """An invariant does not hold."""


@dataclass(eq=False)
class Life:
    """Somebody whose events end with it."""

    name: str
    is_over: bool = False
    stands_until_us: int = 0
    """Until then nothing happens in it: its process is stopped, or has to wait for its machine."""


@dataclass(eq=False)
class Kernel:
    """The events to come, and what has happened."""

    seed: int
    tell: Callable[[str], None] | None = None
    """Told of everything at once, for whoever wants to see it."""
    now_us: int = 0
    steps: int = 0
    digest: int = 0
    """The same for two runs that did the same."""
    trace: deque[tuple[int, int, str, str, tuple[Any, ...]]] = field(
        default_factory=lambda: deque(maxlen=TRACE_MAX)
    )

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.outside = Life("-")
        self._events: list[tuple[int, int, Life, Call]] = []
        self._order = itertools.count()

    def after(self, delay_us: float, life: Life, call: Call) -> None:
        """Have a call made when so much time has passed, if its life lasts until then."""
        at = self.now_us + max(0, int(delay_us))
        heapq.heappush(self._events, (at, next(self._order), life, call))

    def step(self) -> Life:
        """Make the next call that still matters; whose it was."""
        while True:
            at, order, life, call = heapq.heappop(self._events)
            if life.is_over:
                continue
            if at >= life.stands_until_us:
                break
            heapq.heappush(self._events, (life.stands_until_us, order, life, call))
        self.now_us = at
        self.steps += 1
        call()
        return life

    def note(self, actor: str, what: str, *details: Any) -> None:
        """Keep what happened for the trace."""
        line = (self.steps, self.now_us, actor, what, details)
        self.digest = crc32(f"{self.steps} {self.now_us} {actor} {what}".encode(), self.digest)
        self.trace.append(line)
        if self.tell is not None:
            self.tell(_text(line))

    def told(self, lines: int = 400) -> str:
        """The last lines of the trace."""
        return "\n".join(map(_text, list(self.trace)[-lines:]))

    def chance(self, probability: float) -> bool:
        """True as often as that."""
        return self.random.random() < probability


def _text(line: tuple[int, int, str, str, tuple[Any, ...]]) -> str:
    step, now_us, actor, what, details = line
    return (
        f"{step:7d} {now_us / 1e6:10.4f} {actor:>3} {what} {' '.join(map(str, details))}".rstrip()
    )


@dataclass(eq=False)
class WallClock:
    """The time of day of a node: it drifts, and somebody sets it now and then."""

    _kernel: Kernel
    rate: float = 1.0
    offset_ms: int = 0

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as the node believes."""
        return BEGIN_MS + self.offset_ms + int(self._kernel.now_us * self.rate) // 1000


@dataclass(eq=False)
class Oscillator:
    """What a node measures spans with: it never goes back, and drifts a little."""

    _kernel: Kernel
    rate: float = 1.0

    def now_ms(self) -> int:
        """Milliseconds since some beginning."""
        return int(self._kernel.now_us * self.rate) // 1000

    def true_us(self, ms: float) -> float:
        """How long it really takes until so much has passed by this one."""
        return ms * 1000 / self.rate
