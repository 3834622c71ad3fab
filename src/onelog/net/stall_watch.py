"""Stalls: how long the event loop was kept from its other work, and by what.

A timer beats in the loop; when a beat comes late, the loop was held. What the thread spent waiting
for a processor meanwhile is the machine's doing and does not count (Linux tells; elsewhere it does
count). A second thread looks at the beat now and then, and while that is late takes the stack of
the loop's thread: that names the culprit, also if it computes nothing but waits in a system call.

    beat     .  .  .  .  |=== held ================|  .  .  .
    look       ^           ^           ^           ^
    stack                              taken       told, if it was long

Invariant: nothing is done per request. A hold is measured to within a beat, of which there are a
hundred a second while the loop is busy and few while it is idle; one that is longer than two looks
has a stack.
"""

import asyncio
import gc
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from operator import call
from types import FrameType
from typing import Any, Self

from onelog.logs import Lines

log = logging.getLogger(__name__)

STALL_MS = 20
"""What is counted."""
REPORT_MS = 100
"""What is logged, with the stack."""
QUIET_SECONDS = 10.0
"""Between two reports; what happens meanwhile is counted in the next."""
STUCK_SECONDS = 2.0
"""After which a stall is told of, though it is not over."""
_BUSY_BEAT_SECONDS = 0.010
_IDLE_BEAT_SECONDS = 0.050
_IDLE_RATIO = 0.05
_LOOK_SECONDS = 0.050
_FRAMES_MAX = 25


@dataclass(slots=True)
class Stalls:
    """Since the start: how often the loop was held for over 20 ms, for how long in all, at most."""

    count: int = 0
    total_ms: int = 0
    longest_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Held:
    """One stall that is over. The loop's thread used so much of the time to compute."""

    ms: int
    cpu_ms: int
    stack: list[str]


class StallWatch:
    """Watches the running loop, for as long as the block lasts."""

    def __init__(self, stalls: Stalls | None = None) -> None:
        self.stalls = stalls or Stalls()
        self._stop = threading.Event()
        self._looker = threading.Thread(target=self._look, name="onelog-stalls", daemon=True)
        self._timer: asyncio.TimerHandle | None = None
        self._schedstat = -1
        self._used = (0, 0)
        self._due = self._beat_seconds = 0.0
        self._sample: tuple[float, list[str]] = (0.0, [])
        """The beat that was late, and what the loop's thread did meanwhile."""
        self._unreported: list[_Held] = []

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        try:
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._schedstat = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            log.debug("the system does not tell how long a thread waited for a processor")
        self._used = self._cpu_and_delay()
        self._begin(time.perf_counter(), _BUSY_BEAT_SECONDS)
        self._looker.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._stop.set()
        self._looker.join()
        if self._schedstat >= 0:
            os.close(self._schedstat)

    # In the loop.

    def _begin(self, now: float, seconds: float) -> None:
        self._due = now + seconds
        self._beat_seconds = seconds
        self._timer = self._loop.call_later(seconds, self._beat)

    def _beat(self) -> None:
        now = time.perf_counter()
        late = now - self._due
        before, self._used = self._used, self._cpu_and_delay()
        cpu_ns, delay_ns = self._used[0] - before[0], self._used[1] - before[1]
        if late * 1000 > STALL_MS:
            self._note(round(late * 1000 - delay_ns / 1_000_000), cpu_ns // 1_000_000)
        is_idle = cpu_ns < _IDLE_RATIO * 1_000_000_000 * (late + self._beat_seconds)
        self._begin(now, _IDLE_BEAT_SECONDS if is_idle else _BUSY_BEAT_SECONDS)

    def _cpu_and_delay(self) -> tuple[int, int]:
        """What this thread has computed, and waited for a processor, in nanoseconds."""
        if self._schedstat < 0:
            return time.thread_time_ns(), 0
        computed, delayed, _ = os.pread(self._schedstat, 64, 0).split()
        return int(computed), int(delayed)

    def _note(self, held_ms: int, cpu_ms: int) -> None:
        if held_ms <= STALL_MS:
            return
        stalls = self.stalls
        stalls.count += 1
        stalls.total_ms += held_ms
        stalls.longest_ms = max(stalls.longest_ms, held_ms)
        if held_ms >= REPORT_MS:
            due, stack = self._sample
            stack = stack if due == self._due else []
            self._unreported.append(_Held(held_ms, min(held_ms, cpu_ms), stack))

    # In the other thread.

    def _look(self) -> None:
        quiet_until = stuck_since = 0.0
        while not self._stop.wait(_LOOK_SECONDS):
            now, due = time.perf_counter(), self._due
            if (now - due) * 1000 > STALL_MS:
                self._sample = (due, self._stack())
            if now - due > STUCK_SECONDS and due != stuck_since:
                stuck_since = due
                log.error(
                    "the event loop is held, since %.1f s:%s", now - due, _lines(self._sample[1])
                )
            if self._unreported and now >= quiet_until:
                quiet_until = now + QUIET_SECONDS
                self._tell()
        if self._unreported:
            self._tell()

    def _stack(self) -> list[str]:
        # Nothing is looked up in files, and no frame is kept: they hold what requests have in hand.
        return [
            f"{each.filename}:{each.lineno} {each.name}"
            for each in traceback.StackSummary.extract(
                ((frame, frame.f_lineno) for frame in _frames(self._thread_id)), lookup_lines=False
            )
        ]

    def _tell(self) -> None:
        unreported, self._unreported = self._unreported, []
        worst = max(unreported, key=lambda held: held.ms)
        others = f", {len(unreported) - 1} others for less" if len(unreported) > 1 else ""
        log.warning(
            "the event loop was held for %d ms (%d ms of them computing)%s; so far %d times:%s",
            worst.ms,
            worst.cpu_ms,
            others,
            self.stalls.count,
            _lines(worst.stack),
        )


def _frames(thread_id: int) -> list[FrameType]:
    """What a thread is in the middle of, from the inside out.

    No step of this is Python, so that the interpreter does not let the thread run in between: a
    coroutine that is left meanwhile leads on to memory that is something else by then. Nor may the
    collector run, as it does where objects are made: what it frees may be Python.
    """
    stacks = map(call, [sys._current_frames])
    steps: Iterator[Any] = chain(
        map(dict.get, stacks, [thread_id]), repeat("f_back", _FRAMES_MAX - 1)
    )
    found: list[Any] = []
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        found.extend(accumulate(steps, getattr))
    except AttributeError:
        pass  # Nothing called the outermost one.
    finally:
        if was_enabled:
            gc.enable()
    return [frame for frame in found if frame is not None]


def _lines(stack: list[str]) -> str:
    return Lines("".join(f"\n  {line}" for line in stack or ["(no stack was taken)"]))
