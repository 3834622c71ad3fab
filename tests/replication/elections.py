"""Nodes that take part in elections on a simulated etcd, and do nothing else."""

import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from onelog.replication.election import Election
from onelog.replication.identity import Identity
from onelog.replication.registry import Put, ReplicaSetState, Request, View, encode, view_of
from onelog.replication.roles import ElectionNode, InSync, LogProgress, Role, Self
from tests.replication.fake_etcd import FakeEtcd, FakeRegistry, Timeline

LEASE_MS = 3_000


@dataclass
class World:
    """Nodes and their etcd."""

    time: Timeline = field(default_factory=Timeline)
    replicas: int = 3
    unclean: bool = False
    ack: str = "local"

    def __post_init__(self) -> None:
        self.etcd = FakeEtcd(self.time, late_ms=100)
        self.disks = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, self.disks)
        self.nodes: dict[int, FakeNode] = {}
        self.reigns: dict[int, int] = {}
        """Who was master, per epoch."""

    def start(self, number: int, **how: object) -> "FakeNode":
        old = self.nodes.get(number)
        node = FakeNode(self, number, end=old.end if old else 0, epoch=old.epoch if old else 0)
        if old is not None:
            node.folder = old.folder
        for name, value in how.items():
            setattr(node, name, value)
        self.nodes[number] = node
        node.begin()
        return node

    def view(self) -> View:
        return view_of(self.etcd.read())

    def state(self) -> ReplicaSetState:
        state = self.view().state
        assert state is not None
        return state

    def masters(self) -> list[int]:
        """Who would acknowledge at this moment."""
        return [number for number, node in self.nodes.items() if node.can_acknowledge()]

    def master(self) -> "FakeNode":
        self.time.run_until(lambda: len(self.masters()) == 1)
        return self.nodes[self.masters()[0]]

    def ask(self, number: int, request: Request) -> str:
        key = f"requests/{number}"
        self.etcd.write({}, {key: Put(encode(request))})

        def answer() -> str | None:
            return self.view().requests[number][0].answer

        self.time.run_until(lambda: answer() is not None)
        return answer() or ""


class FakeNode(ElectionNode):
    """A node that has a role, and says what it is told to say."""

    def __init__(self, world: World, number: int, end: int, epoch: int) -> None:
        self.world, self.number = world, number
        self.end, self.epoch = end, epoch
        self.fit = self.alive = self.intact = True
        self.clean = True
        """Whether it was stopped so before this start."""
        self.boot = "boot"
        self.folder = self.disk()
        self.truncates = False
        self.stopped = False
        self.waiting: list[Callable[[], None]] = []
        self.rate = 1.0
        """How fast its clock runs."""
        self.travel: Callable[[], float | None] = lambda: 1
        self.travel_back: Callable[[], float | None] = lambda: self.travel()
        self.in_sync = InSync(frozenset(), 0, 0)
        self.paused = False
        self.catches_up = True

    def disk(self) -> Path:
        """An empty one."""
        return Path(tempfile.mkdtemp(dir=self.world.disks))

    def begin(self) -> None:
        time = self.world.time
        boot = self.boot if self.intact else f"another than {self.boot}"
        identity = Identity(self.number, self.folder, clean=self.clean and self.intact, boot=boot)
        registry = FakeRegistry(
            self.world.etcd, time, lambda: self.travel(), lambda: self.travel_back()
        )
        registry.run = self.call
        me = Self(
            self.number,
            f"{self.number}@{time.now_ms}",
            f"host:{self.number}",
            f"ha:{self.number}",
            self.world.replicas,
            LEASE_MS,
            self.world.ack,
            self.world.unclean,
        )
        self.election = Election(
            me,
            self,
            registry,
            self.monotonic_ms,
            lambda: 0,
            lambda delay, call: time.after(delay / self.rate, lambda: self.call(call)),
            identity=identity,
        )
        self.election.start()

    def monotonic_ms(self) -> float:
        return self.world.time.now_ms * self.rate

    def call(self, call: Callable[[], None]) -> None:
        if self.stopped:
            self.waiting.append(call)
        elif self.alive:
            call()

    def stop(self) -> None:
        """As SIGSTOP does."""
        self.stopped = True

    def wake(self) -> None:
        self.stopped = False
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            self.call(call)

    def can_acknowledge(self) -> bool:
        return self.alive and not self.paused and self.election.is_proven()

    # -- what the election asks and tells

    def progress(self) -> LogProgress:
        follows = self.election.role.master is not None
        held = (self.epoch, self.end)
        return LogProgress(self.epoch, self.end, self.end, self.fit, follows, (), held)

    def has(self, epoch: int, confirmed: int) -> bool:
        return self.end >= confirmed and (not confirmed or self.epoch >= epoch)

    def is_empty(self) -> bool:
        return self.end == 0 and self.epoch == 0

    def may_truncate(self) -> None:
        self.truncates = True

    def become(self, role: Role, in_sync: InSync) -> None:
        self.in_sync, self.paused = in_sync, False
        if role.is_master:
            former = self.world.reigns.setdefault(role.epoch, self.number)
            assert former == self.number, f"two masters of epoch {role.epoch}"
            assert self.number in in_sync.ids
            self.epoch = role.epoch

    def in_sync_is(self, in_sync: InSync) -> None:
        self.in_sync = in_sync

    def prepare_hand_over(self, target: int, ready: Callable[[str], None]) -> None:
        if self.catches_up:
            self.paused = True
            self.world.time.after(5, lambda: self.call(lambda: ready("")))
        else:
            ready("it is too far behind")

    def resume(self) -> None:
        self.paused = False


def started(world: World, count: int = 3) -> "FakeNode":
    """A set of which all are in sync, and its master."""
    for number in range(count):
        world.start(number)
    master = world.master()
    master.election.propose_in_sync(frozenset(range(count)))
    world.time.run_until(lambda: world.state().in_sync == tuple(range(count)))
    world.time.run(100)
    return master
