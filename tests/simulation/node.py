"""A node: the real store, the real core and the real replication, on simulated time."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from onelog.config import BrokerConfig, StoreConfig
from onelog.core.assembly import Assembly
from onelog.core.broker import Broker
from onelog.core.durable.storage import Runtime
from onelog.errors import OnelogError, StoreError
from onelog.message import LOOPBACK
from onelog.rocketmq.pop import Pop
from onelog.rocketmq.profile import NAMING, ROCKETMQ
from tests.simulation.disk import Disk, Disks, KilledError
from tests.simulation.kernel import Kernel, Life, Oscillator, WallClock
from tests.simulation.store import Machine, SteppedFuture, SteppedStore, open_store, take_made

TICK_US = (20, 500)
WORKER_US = (100, 20_000)
WAIT_US = 20_000
BROKER = BrokerConfig(
    offsets_flush_ms=1_000,
    transaction_check_interval_ms=5_000,
    transaction_timeout_ms=2_000,
    flush_timeout_ms=2_000,
    client_scan_ms=10_000,
)
Call = Callable[[], None]


class _Workers:
    """In the place of `threading` where it is asked in which thread something runs."""

    in_worker = False

    def get_ident(self) -> int:
        return threading.get_ident() + self.in_worker


WORKERS = _Workers()


class Node:
    """One machine with its disk, up or down."""

    def __init__(
        self, kernel: Kernel, disks: Disks, number: int, folder: Path, config: StoreConfig
    ) -> None:
        self.kernel, self.disks, self.number = kernel, disks, number
        self.name = f"n{number}"
        self.disk = Disk(folder)
        self.config = config
        random = kernel.random
        self.wall = WallClock(kernel, random.uniform(0.9995, 1.0005), random.randrange(-500, 500))
        self.oscillator = Oscillator(kernel, random.uniform(0.99, 1.01))
        self.life = Life(self.name, is_over=True)
        self.starts = self.checked = self._held_end = 0
        self.store: SteppedStore | None = None
        self.running: Assembly | None = None
        self._soon: list[Call] = []
        self._jobs: dict[Call, list[SteppedFuture]] = {}

    @property
    def broker(self) -> Broker | None:
        return None if self.running is None else self.running.broker

    @property
    def core(self) -> Assembly:
        assert self.running is not None
        return self.running

    @property
    def is_up(self) -> bool:
        return not self.life.is_over

    @property
    def life_name(self) -> str:
        """Another one for each start."""
        return f"{self.name}-{self.starts}"

    @property
    def mastership(self) -> str:
        """Under which it promises something; another one for each."""
        return self.life_name

    @property
    def decides(self) -> bool:
        """Whether clients may believe what it says about positions."""
        return self.is_up

    # -- what the core and the store are given ---------------------------------------------------

    def run(self, call: Call) -> None:
        """Make a call on this machine."""
        before, self.disks.current = self.disks.current, self.disk
        try:
            call()
        except KilledError:
            self.kernel.note(self.name, "killed while it wrote")
            self.kill()
        finally:
            self.disks.current = before

    def after(self, delay_us: float, call: Call) -> None:
        """Have a call made later, unless the node has crashed by then."""
        self.kernel.after(delay_us, self.life, partial(self.run, call))

    def schedule(self, delay_ms: int, call: Call) -> None:
        """The same, by the node's own clock."""
        self.after(self.oscillator.true_us(delay_ms), call)

    def call_soon(self, call: Call) -> None:
        """At the end of the tick, which is a little later: others may come before it."""
        if not self._soon:
            self.after(self.kernel.random.uniform(*TICK_US), self.end_tick)
        self._soon.append(call)

    def end_tick(self) -> None:
        """Make the calls that wait for the end of the tick."""
        soon, self._soon = self._soon, []
        for call in soon:
            call()

    def post(self, call: Call) -> None:
        """From another thread to the core's."""
        self.after(self.kernel.random.uniform(*TICK_US), call)

    def offload(self, job: Call) -> None:
        """To a worker, which takes its time."""
        self._jobs[job] = take_made()
        self.after(self.kernel.random.uniform(*WORKER_US), partial(self._work, job))

    def _work(self, job: Call) -> None:
        if all(future.done() for future in self._jobs.get(job, ())):
            self._do(job)
        else:
            self.after(WAIT_US, partial(self._work, job))

    def _do(self, job: Call) -> None:
        if self._jobs.pop(job, None) is not None:
            WORKERS.in_worker = True
            try:
                job()
            finally:
                WORKERS.in_worker = False

    def finish_jobs(self) -> None:
        """Whoever closes the core waits for its workers, and these for nothing any more."""
        for job, futures in list(self._jobs.items()):
            for future in futures:
                if not future.done():
                    future.set_exception(StoreError("not confirmed in time"))
            self._do(job)

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Come up, with what the disk has."""
        assert not self.is_up
        self.life = Life(self.name)
        self.starts += 1
        self.checked = 0
        self._soon, self._jobs = [], {}
        self.run(self._open)

    def _open(self) -> None:
        machine = Machine(self.kernel, self.disk, self.oscillator, self.after)
        self.store = store = open_store(machine, self.config, self.wall)
        self.running = core = Assembly(
            BROKER,
            store,
            Runtime(
                clock=self.wall,
                schedule=self.schedule,
                call_soon=self.call_soon,
                post=self.post,
                offload=self.offload,
                random=Random(self.kernel.random.random()),
                memory_bytes=1 << 30,
                seconds=lambda: self.kernel.now_us / 1e6,
            ),
            naming=NAMING,
        )
        self.pop = Pop(core, Random(7), LOOPBACK)
        core.open(ROCKETMQ)

    def stop(self) -> None:
        """Stop cleanly."""

        def close() -> None:
            assert self.running is not None
            assert self.store is not None
            self.finish_jobs()
            self.running.close()
            self.store.close()

        try:
            self.run(close)
        except OnelogError as error:
            self.kernel.note(self.name, "not stopped cleanly", error)
        self._end()

    def kill(self) -> None:
        """End at once; the files are as they are."""
        if self.store is not None:
            self.store.kill()
        self._end()

    def lose_power(self) -> None:
        """End at once, and lose what was not flushed."""
        self.kill()
        self.disk.lose_power(self.kernel.random)

    def _end(self) -> None:
        self.held_end()
        self.life.is_over = True
        self.store = self.running = None
        self.disk.heal()

    # -- what is checked -------------------------------------------------------------------------

    def settled(self) -> int:
        """Up to where the log may never change any more."""
        assert self.store is not None
        return int(self.store.log.flushed if self.config.flush == "sync" else self.store.log_end)

    def log_end(self) -> int:
        assert self.store is not None
        return int(self.store.log_end)

    def held_end(self) -> int:
        """Up to where its disk has the log, as it would come back after what may happen here."""
        if self.store is not None:
            end, flushed = self.store.tail.raw_end, int(self.store.log.flushed)
            self._held_end = min(end, flushed) if self.config.flush == "sync" else end
        return self._held_end

    def bytes_at(self, log_offset: int, size: int) -> memoryview:
        """Bytes of the log, as the files have them."""
        assert self.store is not None
        return self.store.log.slice(log_offset, size)
