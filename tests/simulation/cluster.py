"""A simulated cluster: nodes, their clients, and everything that goes wrong, from one seed."""

import errno
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from onelog.store import spare_queues
from tests.simulation.checks import Promises, Settled
from tests.simulation.clients import Clients
from tests.simulation.disk import Disks
from tests.simulation.kernel import BrokenError, Kernel
from tests.simulation.node import Node
from tests.simulation.store import SETTINGS, install

MEMORY = Path("/dev/shm")


class _Complaints(logging.Handler):
    """A background job that fails for no reason of ours is a bug, too."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None:
            self.found.append(record)


@dataclass(eq=False)
class Cluster:
    """Some nodes in one world."""

    seed: int
    count: int = 1
    tell: Callable[[str], None] | None = None
    faults: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.kernel = kernel = Kernel(self.seed, self.tell)
        self._undo = install()
        self._disks = Disks(kernel.random)
        self._in_place = self._disks.in_place()
        self._in_place.__enter__()
        spare_queues.MISSES_MIN = 1 << 60  # No stock of queues, and no thread that fills it.
        where = MEMORY if MEMORY.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="onelog-simulation-", dir=where))
        flushes: tuple[Literal["sync", "async"], ...] = ("sync", "sync", "async")
        self.flush = kernel.random.choice(flushes)
        config = replace(SETTINGS, flush=self.flush)
        self.nodes = [
            Node(kernel, self._disks, number, self.folder / f"n{number}", config)
            for number in range(self.count)
        ]
        for node in self.nodes:
            # With the other order an acknowledged timed message can be lost on a single node: a
            # record that says it left may be on disk, and the message in front of it not.
            node.disk.writes_in_order = self.count == 1
        self.settled = Settled(config.segment_bytes, may_be_damaged=self.count == 1)
        self.promises = Promises(self.settled)
        self.clients = Clients(kernel, self.nodes, self.promises, self.check)
        self.complaints = _Complaints()
        logging.getLogger("onelog").addHandler(self.complaints)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node in self.nodes:
            if node.is_up:
                node.kill()
        self._in_place.__exit__(None, None, None)
        self._undo()
        logging.getLogger("onelog").removeHandler(self.complaints)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- running ---------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """So many steps, with faults; then all must become well."""
        for node in self.nodes:
            self._start(node)
        self.clients.begin()
        self._trouble_later()
        while self.kernel.steps < steps:
            self._step()
        self._become_well()

    def _step(self) -> None:
        self.kernel.step()
        for node in self.nodes:
            if node.is_up:
                self.check(node)
        if self.complaints.found:
            record = self.complaints.found[0]
            raise BrokenError(record.getMessage()) from (record.exc_info or (None, None))[1]

    def check(self, node: Node) -> None:
        """What must hold for a node now."""
        upto = node.settled()
        if upto > node.checked:
            self.settled.compare(node, upto, may_grow=True)

    def _start(self, node: Node) -> None:
        node.disk.heal()
        node.start()
        self.kernel.note(node.name, "up", node.log_end(), "settled", len(self.settled.log))
        if node.log_end() < len(self.settled.log):
            raise BrokenError(
                f"{node.name} has {node.log_end()} bytes of {len(self.settled.log)} settled ones"
            )
        self.settled.compare(node, min(node.log_end(), len(self.settled.log)), may_grow=False)

    def _become_well(self) -> None:
        self.clients.is_quiet = True
        for node in self.nodes:
            node.disk.heal()
            if node.is_up and node.store is not None and node.store._refusal is not None:
                node.kill()
            if not node.is_up:
                self._start(node)
        end_us = self.kernel.now_us + 20_000_000
        while self.kernel.now_us < end_us:
            self._step()
        self.promises.all_kept()
        self.promises.timed_are_delivered(min(node.wall.now_ms() for node in self.nodes) - 10_000)

    # -- trouble ---------------------------------------------------------------------------------

    def _trouble_later(self) -> None:
        delay_us = self.kernel.random.expovariate(1) * 400_000
        self.kernel.after(delay_us, self.kernel.outside, self._trouble)

    def _trouble(self) -> None:
        if self.clients.is_quiet:
            return
        self._trouble_later()
        random = self.kernel.random
        node = random.choice(self.nodes)
        if not node.is_up:
            self._start(node)
            return
        kinds = {
            self._kill: 2, self._kill_writing: 2, self._lose_power: 3 if self.flush == "sync" else 0, self._restart: 1,
            self._refuse_writes: 3, self._refuse_flushes: 1, self._slow_disk: 3,
            self._set_clock: 2,
        }  # fmt: skip
        (make,) = random.choices(list(kinds), list(kinds.values()))
        self.faults[make.__name__.strip("_")] += 1
        self.kernel.note(node.name, "trouble", make.__name__)
        make(node)

    def _later(self, seconds: float, node: Node, call: Callable[[Node], None]) -> None:
        delay_us = self.kernel.random.expovariate(1) * seconds * 1e6
        self.kernel.after(delay_us, self.kernel.outside, lambda: call(node))

    def _up_again(self, node: Node) -> None:
        if not node.is_up:
            self._start(node)

    def _kill(self, node: Node) -> None:
        node.kill()
        self._later(0.5, node, self._up_again)

    def _kill_writing(self, node: Node) -> None:
        node.disk.kills_at = self.kernel.random.randint(1, 20)
        self._later(1.5, node, self._up_again)

    def _lose_power(self, node: Node) -> None:
        node.lose_power()
        self._later(0.5, node, self._up_again)

    def _restart(self, node: Node) -> None:
        node.stop()
        self._later(0.1, node, self._up_again)

    def _refuse_writes(self, node: Node) -> None:
        node.disk.refuses_writes = self.kernel.random.choice((errno.ENOSPC, errno.EIO))
        self._later(0.3, node, self._take_writes)

    def _take_writes(self, node: Node) -> None:
        node.disk.refuses_writes = 0

    def _refuse_flushes(self, node: Node) -> None:
        node.disk.refuses_flushes = True
        self._later(1.0, node, self._replace)

    def _replace(self, node: Node) -> None:
        """A disk that failed to flush is looked after, and the node is started anew."""
        if node.is_up:
            node.lose_power() if self.flush == "sync" else node.kill()
        self._up_again(node)

    def _slow_disk(self, node: Node) -> None:
        node.disk.is_slow = True
        self._later(2.0, node, lambda node: node.disk.heal())

    def _set_clock(self, node: Node) -> None:
        node.wall.offset_ms += self.kernel.random.choice((-3_000, 2_000, 60_000, 3_600_000))
