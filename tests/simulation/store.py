"""A real store whose flushes are events of the simulation, and not a thread's."""

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from unittest import mock

from onelog.clock import Clock
from onelog.config import StoreConfig
from onelog.store import message_store
from onelog.store.flush import Flusher, OnFlushed
from onelog.store.message_store import MessageStore
from tests.simulation.disk import Disk
from tests.simulation.kernel import BrokenError, Kernel, Oscillator

USUAL_US = (200, 3_000)
SLOW_US = (50_000, 900_000)

SETTINGS = StoreConfig(
    segment_bytes=64 << 10,
    queue_file_entries=200,
    index_slots=50,
    index_entries=200,
    body_bytes_max=8 << 10,
    flush_interval_ms=100,
    flush_pages_min=1,
    flush_thorough_ms=1_000,
    checkpoint_interval_ms=2_000,
)


@dataclass(eq=False)
class Machine:
    """What a store runs on."""

    kernel: Kernel
    disk: Disk
    oscillator: Oscillator
    after: Callable[[float, Callable[[], None]], None]
    """Has a call made on this machine, so many microseconds from now."""

    def flush_us(self) -> float:
        """How long the disk takes for the next flush."""
        return self.kernel.random.uniform(*(SLOW_US if self.disk.is_slow else USUAL_US))


class SteppedFlusher(Flusher):
    """A flusher whose rounds are events."""

    machine: Machine
    _is_coming = False

    def _start(self) -> None:
        self.machine = _machines[-1]
        self._last_flush = self._last_checkpoint = self._now_s()
        self._tick()

    def _now_s(self) -> float:
        return self.machine.oscillator.now_ms() / 1000

    def _tick(self) -> None:
        machine = self.machine
        if self._log.end > min(self._log.flushed, self._checkpoints.safe_offset):
            self._flush_soon()
        delay_us = machine.oscillator.true_us(self._config.flush_interval_ms)
        machine.after(delay_us, self._tick)

    def _flush_soon(self) -> None:
        if not self._is_coming and not self._stopping and self._failure is None:
            self._is_coming = True
            machine = self.machine
            machine.after(machine.flush_us(), self._flush)

    def _flush(self) -> None:
        self._is_coming = False
        if not self._stopping and self._failure is None:
            again = not self.round(self._now_s()) or self._waiting
            if again:
                self._flush_soon()

    def when_flushed(self, log_offset: int, callback: OnFlushed) -> None:
        """As its parent; the flush comes after the time that the disk takes."""
        super().when_flushed(log_offset, callback)
        if self._waiting:
            self._flush_soon()

    def flush_now(self) -> None:
        """For who would block until the disk has answered."""
        self.round(self._now_s())

    def stop(self) -> None:
        """End; who still waits is served first."""
        self._stopping = True
        if self._failure is None:
            self.end()


_machines: list[Machine] = []


class SteppedFuture(Future[None]):
    """What a worker waits for. It is made ready before the worker runs; the loop may not wait."""

    def __init__(self) -> None:
        super().__init__()
        _made.append(self)

    def result(self, timeout: float | None = None) -> None:
        """As its parent, at once."""
        if not self.done():
            raise BrokenError("somebody waits for what can only come when it does not wait")
        super().result(0)


_made: list[SteppedFuture] = []


def take_made() -> list[SteppedFuture]:
    """What the job that is handed over now will wait for."""
    made, _made[:] = list(_made), []
    return made


class SteppedStore(MessageStore):
    """A store that never blocks: what it would wait for happens at once."""

    def wait_flushed(self, log_offset: int, timeout_s: float = 5.0) -> bool:
        """Flush now."""
        done: list[bool] = []
        errors: list[Exception] = []
        self.when_flushed(
            log_offset, lambda error: errors.append(error) if error else done.append(True)
        )
        flusher = self.flusher
        assert isinstance(flusher, SteppedFlusher)
        if not done and not errors:
            flusher.flush_now()
        if errors:
            raise errors[0]
        return bool(done)

    def kill(self) -> None:
        """Leave everything as it is."""
        with contextlib.suppress(OSError):
            self._lock.release()


def open_store(
    machine: Machine, config: StoreConfig, clock: Clock, *, gated: bool = False
) -> SteppedStore:
    """Open the store of a node's folder."""
    _machines.append(machine)
    try:
        return SteppedStore.open(machine.disk.folder, config, clock, gated=gated)
    finally:
        _machines.pop()


def install() -> Callable[[], object]:
    """Have stores flush by events; the answer takes that back."""
    patch = mock.patch.multiple(message_store, Flusher=SteppedFlusher, Future=SteppedFuture)
    patch.start()
    return patch.stop
