"""A simulated cluster: nodes, their clients, and everything that goes wrong, from one seed."""

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from unittest import mock

from onelog.config import ReplicationConfig, StoreConfig
from onelog.core.cursors import cold_reads
from onelog.core.durable import tables
from onelog.replication.registry import View, view_of
from onelog.store import queue_files
from tests.simulation import endings
from tests.simulation.checks import Promises, Settled
from tests.simulation.clients import Clients
from tests.simulation.disk import Disks
from tests.simulation.etcd import Etcd
from tests.simulation.kernel import BrokenError, Kernel
from tests.simulation.member import Member, World
from tests.simulation.network import Network
from tests.simulation.node import WORKERS, Node
from tests.simulation.store import SETTINGS, install
from tests.simulation.trouble import Trouble

MEMORY = Path("/dev/shm")
QUIET_S = 20
"""How long everything is well before the end is looked at."""
Ack = Literal["local", "one", "majority", "all"]


class _Complaints(logging.Handler):
    """A background job that fails for no reason of ours is a bug, too."""

    def __init__(self, kernel: Kernel, disks: Disks) -> None:
        super().__init__(logging.WARNING)
        self.found: list[logging.LogRecord] = []
        self._kernel, self._disks = kernel, disks

    def emit(self, record: logging.LogRecord) -> None:
        disk = self._disks.current
        self._kernel.note("-" if disk is None else disk.folder.name, "says:", record.getMessage())
        if record.exc_info is not None:
            self.found.append(record)


@dataclass(frozen=True)
class Plan:
    """What kind of cluster a seed has."""

    nodes: int
    ack: Ack
    flush: Literal["sync", "async"]

    @property
    def is_gated(self) -> bool:
        """Whether nobody sees what is not confirmed."""
        return self.nodes > 1 and self.ack in ("majority", "all")

    def __str__(self) -> str:
        return f"{self.nodes} nodes, ack {self.ack}, flush {self.flush}"


def plan_of(kernel: Kernel, nodes: int | None = None, ack: Ack | None = None) -> Plan:
    """Drawn from the seed, but for what is given."""
    acks: Sequence[Ack] = ("majority",) * 6 + ("all", "all", "one", "local")
    flushes: Sequence[Literal["sync", "async"]] = ("sync", "sync", "async")
    drawn = kernel.random.choice((1, 3, 3, 3, 3, 3, 3, 4, 5, 5))
    drawn_ack, flush = kernel.random.choice(acks), kernel.random.choice(flushes)
    return Plan(nodes or drawn, ack or drawn_ack, flush)


class Cluster:
    """Some nodes in one world."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int | None = None,
        ack: Ack | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.kernel = kernel = Kernel(seed, tell)
        self.plan = plan = plan_of(kernel, nodes, ack)
        self._disks = Disks(kernel.random)
        where = MEMORY if MEMORY.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="onelog-simulation-", dir=where))
        self._config = replace(SETTINGS, flush=plan.flush)
        self.network: Network | None = None
        self._etcd: Etcd | None = None
        self.members: list[Member] = []
        if plan.nodes == 1:
            self.nodes: Sequence[Node] = [self._single(self._config)]
        else:
            self.nodes = self._set(self._config)
        self.may_lose_power = plan.flush == "sync"
        self.is_quiet = False
        self.settled = Settled(self._config.segment_bytes, may_be_damaged=plan.nodes == 1)
        self.promises = Promises(
            self.settled, strict=plan.nodes == 1 or plan.is_gated, gated=plan.is_gated
        )
        self.clients = Clients(kernel, self.nodes, self.promises, self.check, self._acknowledged)
        self.trouble = Trouble(self, 0.4 if plan.nodes == 1 else 0.6)
        self.masters: dict[int, str] = {}
        self._acknowledged_epoch = 0
        self._complaints = _Complaints(kernel, self._disks)
        self._undo = contextlib.ExitStack()

    def _single(self, config: StoreConfig) -> Node:
        node = Node(self.kernel, self._disks, 0, self.folder / "n0", config)
        # With the other order an acknowledged timed message can be lost on a single node: a
        # record that says it left may be on disk, and the message in front of it not.
        node.disk.writes_in_order = True
        return node

    def _set(self, config: StoreConfig) -> list[Member]:
        kernel = self.kernel
        self.network = network = Network(kernel)
        self._etcd = etcd = Etcd(kernel, network)
        replication = ReplicationConfig(
            ack=self.plan.ack,
            replicas=self.plan.nodes,
            etcd="etcd:2379",
            lease_ms=1_000,
            lag_ms=500,
            timeout_ms=1_500,
        )
        world = World(kernel, self._disks, network, etcd, replication, self.members)
        for number in range(self.plan.nodes):
            self.members.append(Member(world, number, self.folder / f"n{number}", config))
        return self.members

    def __enter__(self) -> Self:
        self._undo.enter_context(self._disks.in_place())
        self._undo.callback(install())
        # No thread that makes the files of queues.
        self._undo.enter_context(mock.patch.object(queue_files, "IN_THREAD", False))
        self._undo.enter_context(mock.patch.object(cold_reads, "threading", WORKERS))
        # A core is opened in many steps here, too, where there is little to remember.
        self._undo.enter_context(mock.patch.object(tables, "_REPLAY_RECORDS", 4))
        onelog = logging.getLogger("onelog")
        level = onelog.level
        onelog.setLevel(logging.WARNING)
        onelog.addHandler(self._complaints)
        onelog.propagate, propagated = False, onelog.propagate
        self._undo.callback(setattr, onelog, "propagate", propagated)
        self._undo.callback(onelog.setLevel, level)
        self._undo.callback(onelog.removeHandler, self._complaints)
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
        self._undo.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- running -------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """So many steps, with faults; then all must become well."""
        self.kernel.note("-", "seed", self.kernel.seed, self.plan)
        for node in self.nodes:
            self.start(node)
        self.clients.begin()
        self.trouble.begin()
        while self.kernel.steps < steps:
            self._step()
        self._become_well()

    def _step(self) -> None:
        self.kernel.step()
        for node in self.nodes:
            if node.is_up:
                self.check(node)
        if self._complaints.found:
            record = self._complaints.found[0]
            raise BrokenError(record.getMessage()) from (record.exc_info or (None, None))[1]

    def check(self, node: Node) -> None:
        """What must hold for a node now."""
        if self.promises.strict:
            upto = node.settled()
            if upto > len(self.settled.log):
                self._is_held(upto)
            if upto > node.checked:
                self.settled.compare(node, upto, may_grow=True)
        if isinstance(node, Member):
            self._check_master(node)

    def _is_held(self, upto: int) -> None:
        """What is settled is on as many disks as the mode promises."""
        ends = {node.name: node.held_end() for node in self.nodes}
        needed = self.plan.nodes if self.plan.ack == "all" else self.plan.nodes // 2 + 1
        if sum(end >= upto for end in ends.values()) < needed:
            raise BrokenError(f"settled up to {upto}, but only these nodes have so much: {ends}")

    def _check_master(self, node: Member) -> None:
        """One master per epoch, and one that lacks nothing."""
        role = node.election.role if node.election is not None else None
        if role is None or not role.is_master or self.masters.get(role.epoch) == node.life_name:
            return
        if role.epoch in self.masters:
            raise BrokenError(
                f"{node.life_name} is master of epoch {role.epoch}, as "
                f"{self.masters[role.epoch]} is"
            )
        self.masters[role.epoch] = node.life_name
        self.kernel.note(node.name, "master of epoch", role.epoch, "log", node.log_end())
        if self.promises.strict:
            self._has_settled(node)

    def _has_settled(self, node: Node) -> None:
        if node.log_end() < len(self.settled.log):
            raise BrokenError(
                f"{node.name} has {node.log_end()} bytes of {len(self.settled.log)} settled ones"
            )
        self.settled.compare(node, len(self.settled.log), may_grow=False)

    def _acknowledged(self, node: Node, mastership: str) -> None:
        """Nobody acknowledges what it was asked as another, nor anything after a later master."""
        if node.mastership != mastership or not mastership:
            raise BrokenError(
                f"{node.name} acknowledged as {node.mastership or 'nobody'} what it was asked as "
                f"{mastership or 'nobody'}"
            )
        if isinstance(node, Member):
            if node.epoch < self._acknowledged_epoch:
                raise BrokenError(
                    f"{node.name} acknowledged in epoch {node.epoch}, after somebody did in "
                    f"{self._acknowledged_epoch}"
                )
            self._acknowledged_epoch = node.epoch

    def start(self, node: Node) -> None:
        """Have a node come up."""
        node.disk.heal()
        node.start()
        self.kernel.note(node.name, "up", node.log_end(), "settled", len(self.settled.log))
        if not isinstance(node, Member):
            self._has_settled(node)

    def set_etcd_down(self, down: bool) -> None:
        """Have the registry answer nobody, or answer again."""
        assert self._etcd is not None
        self._etcd.is_down = down

    def registered(self) -> View:
        """What the registry has."""
        assert self._etcd is not None
        return view_of(self._etcd.keys.read())

    def empty_etcd(self) -> None:
        """Have the registry lose all that it has."""
        assert self._etcd is not None
        self._etcd.keys.lose_all()

    # -- the end -------------------------------------------------------------------------------

    def _become_well(self) -> None:
        self.kernel.note("-", "everything becomes well")
        self.is_quiet = self.clients.is_quiet = True
        if self.network is not None:
            self.network.blocked.clear()
            self.network.is_slow = False
            self.set_etcd_down(False)
        start_anew = self.kernel.chance(0.3)
        for node in self.nodes:
            node.life.stands_until_us = 0
            node.disk.heal()
            if node.is_up and (start_anew or node.store is None or node.store.refusal is not None):
                node.kill()
            if not node.is_up:
                self.start(node)
        self._pass(QUIET_S / 2)
        if not self.promises.strict:
            self._give_up_lone_logs()
        self._pass(QUIET_S / 2)
        master = self._the_master()
        self._all_confirm()
        for node in self.nodes:
            endings.queues_are_equal(self.settled, node)
            endings.tables_are_equal(self.settled, node)
        if self.promises.strict:
            self._are_kept(master)
            self._all_confirm()
        for node in self.nodes:
            node.stop()
            endings.files_are_right(node)

    def _give_up_lone_logs(self) -> None:
        """As somebody who looks after the set, and reads what the nodes' logs say."""
        for node in self.members:
            assert node.replica is not None
            follower = node.replica.follower
            if follower is not None and "have nothing in common" in follower.hindrance:
                self.kernel.note(node.name, "may truncate its log")
                node.replica.may_truncate()

    def _pass(self, seconds: float) -> None:
        end_us = self.kernel.now_us + seconds * 1_000_000
        while self.kernel.now_us < end_us:
            self._step()

    def _all_confirm(self) -> None:
        """Wait until nothing is on its way: jobs write now and then, also when nobody asks.

        A master may be handing over: where all have to have everything, it does so for one who is
        late for a moment.
        """
        end_us = self.kernel.now_us + QUIET_S * 1_000_000
        while len(
            {each for node in self.nodes for each in (node.log_end(), node.settled())}
        ) > 1 or not any(node.decides for node in self.nodes):
            self._step()
            if self.kernel.now_us > end_us:
                break
        endings.logs_are_equal(self.settled, self._the_master(), self.nodes)

    def _are_kept(self, master: Node) -> None:
        self.promises.all_kept()
        now_ms = min(node.wall.now_ms() for node in self.nodes)
        self.promises.timed_are_delivered(now_ms - QUIET_S * 500)
        for node in self.nodes:
            endings.positions_are_kept(self.promises, node)
        endings.nothing_done_comes_again(self.promises, master)

    def _the_master(self) -> Node:
        masters = [node for node in self.nodes if node.decides]
        if len(masters) != 1:
            raise BrokenError(f"masters after all became well: {[each.name for each in masters]}")
        return masters[0]
