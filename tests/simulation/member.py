"""A node of a replicated set: what a server does around its `Replica`, on simulated time."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from onelog.config import ReplicationConfig, StoreConfig
from onelog.core.assembly import Assembly
from onelog.core.durable.storage import Runtime
from onelog.errors import NotMasterError, OnelogError
from onelog.message import LOOPBACK
from onelog.replication.election import Election
from onelog.replication.epochs import Epochs
from onelog.replication.identity import Identity
from onelog.replication.leader import Leader, NodeRuntime
from onelog.replication.link import Session
from onelog.replication.replica import Replica
from onelog.replication.roles import Role, Self
from onelog.rocketmq.pop import Pop
from onelog.rocketmq.profile import NAMING, ROCKETMQ
from tests.simulation.disk import Disk, Disks
from tests.simulation.etcd import Etcd
from tests.simulation.kernel import Kernel
from tests.simulation.network import End, Network
from tests.simulation.node import BROKER, Call, Node
from tests.simulation.store import Machine, open_store

REBUILD_US = (100, 20_000)
OPENING_US = (20, 3_000)
"""Between the steps in which a core is opened: others have their turns."""
PAUSE_US_MIN, PAUSE_US_MAX = 100_000, 1_000_000


@dataclass(eq=False)
class World:
    """What the nodes of a set share."""

    kernel: Kernel
    disks: Disks
    network: Network
    etcd: Etcd
    replication: ReplicationConfig
    members: "list[Member]"


class Member(Node):
    """One node of a set."""

    def __init__(self, world: World, number: int, folder: Path, config: StoreConfig) -> None:
        super().__init__(world.kernel, world.disks, number, folder, config)
        self.world = world
        self.replica: Replica | None = None
        self.election: Election | None = None
        self.has_lost_writes = False
        """Whether its disk may lack what it had, and the set has not taken it in since."""
        self._had_end = self._boots = 0
        self._address = ""
        self._dials = 0
        self._pause_us = PAUSE_US_MIN
        self._line: End | None = None
        self._opening: Assembly | None = None

    # -- life ----------------------------------------------------------------------------------

    def _open(self) -> None:
        world = self.world
        machine = Machine(self.kernel, self.disk, self.oscillator, self.after)
        self.store = store = open_store(machine, self.config, self.wall, gated=True)
        self._address, self._line, self._dials = "", None, 0
        identity = Identity(
            self.number,
            store.folder,
            clean=store.recovery.clean,
            sync=self.config.flush == "sync",
            boot=f"{self.name}-{self._boots}",
        )
        self.replica = Replica(
            self.number,
            store,
            Epochs(store.folder),
            world.replication,
            self,
            NodeRuntime(self.oscillator, self.schedule, self.post, self._offload_then),
            is_proven=lambda: self.election is not None and self.election.is_proven(),
            propose_in_sync=lambda ids: self._election().propose_in_sync(ids),
            identity=identity,
        )
        me = Self(
            self.number,
            self.life_name,
            f"{self.name}:1",
            self.name,
            world.replication.replicas,
            world.replication.lease_ms,
            world.replication.ack,
        )
        self.election = Election(
            me,
            self.replica,
            world.etcd.registry(self),
            lambda: float(self.oscillator.now_ms()),
            self.wall.now_ms,
            self.schedule,
            identity=identity,
        )
        self.replica.start()
        self.election.start()

    def _election(self) -> Election:
        assert self.election is not None
        return self.election

    def stop(self) -> None:
        """Stop cleanly."""

        def close() -> None:
            assert self.replica is not None
            assert self.store is not None
            self._election().stop()
            self.replica.close()
            self.finish_jobs()
            for core in (self.running, self._opening):
                if core is not None:
                    core.close(write=False)
            self.store.close()

        try:
            self.run(close)
        except OnelogError as error:
            self.kernel.note(self.name, "not stopped cleanly", error)
        self._end()

    def lose_power(self) -> None:
        """End at once, and lose what was not flushed."""
        if self.config.flush != "sync":
            self._lose()
        super().lose_power()
        self._boots += 1

    def _lose(self) -> None:
        self._had_end = max(self.held_end(), self._had_end if self.has_lost_writes else 0)
        self.has_lost_writes = True

    def replace_disk(self, copy: Path | None = None) -> None:
        """End at once, and come back with an empty disk, or a copy of what it was once."""
        self._lose()
        if self.is_up:
            self.kill()
        folder = self.disk.folder
        shutil.rmtree(folder)
        if copy is not None:
            shutil.copytree(copy, folder)
        self.disk = Disk(folder)
        self.disk.flush_all()

    def held_end(self) -> int:
        """Up to where its disk has the log; one that was lost had it, and counted."""
        return max(super().held_end(), self._had_end if self.has_lost_writes else 0)

    @property
    def is_sound(self) -> bool:
        """Whether it has all that the set thinks it has."""
        if self.has_lost_writes and self.is_up:
            election = self._election()
            state = election.view.state
            is_in = state is not None and self.number in state.in_sync
            self.has_lost_writes = not is_in or bool(election.identity.doubt)
        return not self.has_lost_writes

    def _end(self) -> None:
        self.world.network.cut(self, silently=False)
        super()._end()
        self.replica = self.election = self._opening = None

    @property
    def decides(self) -> bool:
        """Whether clients may believe what it says about positions."""
        return self.replica is not None and self.replica.leads and self._election().is_proven()

    @property
    def mastership(self) -> str:
        """Under which it promises something; another one for each, empty if it may not."""
        role, replica = self._election().role, self.replica
        # A node that is to lead has a follower's core for a while, which promises nothing.
        leads = role.is_master and replica is not None and replica.leads
        return f"{self.life_name} in epoch {role.epoch}" if leads else ""

    @property
    def epoch(self) -> int:
        """Of which it is master."""
        return self._election().role.epoch

    def hand_over(self) -> None:
        """Somebody asks it to let another node be master."""
        self._election().hand_over(
            lambda error: self.kernel.note(self.name, "handed over", error or "well")
        )

    # -- what a replica is given ---------------------------------------------------------------

    def _offload_then(self, work: Call, then: Call) -> None:
        def done() -> None:
            work()
            self.post(then)

        self.offload(done)

    @property
    def core(self) -> Assembly:
        """The core that is open, or about to be."""
        core = self.running or self._opening
        assert core is not None
        return core

    def rebuild(
        self,
        role: Role,
        leader: Leader | None,
        between: Call,
        then: Callable[[OnelogError | None], None],
    ) -> None:
        """Close the core, and a little later open it in its new role."""
        self.kernel.note(self.name, "closes", "master" if role.is_master else "follower", role)
        self.finish_jobs()
        if self.running is not None:
            self.running.close(write=False)
        self.running = None
        self._soon = []
        delay_us = self.kernel.random.uniform(*REBUILD_US)
        self.after(delay_us, partial(self._rebuild, role, leader, between, then))

    def _rebuild(
        self,
        role: Role,
        leader: Leader | None,
        between: Call,
        then: Callable[[OnelogError | None], None],
    ) -> None:
        problem: OnelogError | None = None
        try:
            between()
        except OnelogError as error:
            problem = error
        assert self.store is not None
        core = Assembly(
            BROKER,
            self.store,
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
            replication=self.world.replication,
            replicas=leader,
        )
        self._opening = core
        self.pop = Pop(core, Random(7), LOOPBACK)
        steps = core.opening(ROCKETMQ, follower=not role.is_master, master=role.address)

        def opened(problem: OnelogError | None) -> None:
            self.running, self._opening = core, None
            what = "master" if role.is_master else "follower"
            self.kernel.note(self.name, "opened", what, problem)
            then(problem)

        def step() -> None:
            try:
                next(steps)
            except StopIteration:
                opened(problem)
            except OnelogError as error:
                opened(problem or error)
            else:
                self.after(self.kernel.random.uniform(*OPENING_US), step)

        step()

    # -- connections ---------------------------------------------------------------------------

    def dial(self, address: str) -> None:
        """Keep a connection to a master; empty: hang up."""
        if address != self._address:
            self._address = address
            self._dials += 1
            line, self._line = self._line, None
            if line is not None:
                line.close()
            self._pause_us = PAUSE_US_MIN
            if address:
                self._dial(address, self._dials)

    def _dial(self, address: str, dials: int) -> None:
        if dials != self._dials:
            return
        other = next(each for each in self.world.members if each.name == address)

        def failed() -> None:
            pause_us, self._pause_us = self._pause_us, min(2 * self._pause_us, PAUSE_US_MAX)
            self.after(pause_us, partial(self._dial, address, dials))

        def made(end: End) -> Session | None:
            assert self.replica is not None
            if dials != self._dials:
                return None
            self._line = end
            self._pause_us = PAUSE_US_MIN
            return _Kept(self.replica.dialed(end, address), failed)

        self.world.network.connect(self, other, made, other.accept, failed)

    def accept(self, end: End) -> Session | None:
        """Somebody wants to follow."""
        assert self.replica is not None
        try:
            return self.replica.accepted(end, end.peer.machine.name)
        except NotMasterError:
            return None

    # -- what is checked -----------------------------------------------------------------------

    def settled(self) -> int:
        """Up to where the log is confirmed."""
        assert self.store is not None
        return self.store.confirmed


@dataclass(eq=False)
class _Kept:
    """A session whose connection is made anew when it is lost."""

    session: Session
    again: Call

    def received(self, data: bytes | bytearray | memoryview) -> None:
        """Bytes arrived."""
        self.session.received(data)

    def ready(self) -> None:
        """The backlog is small again."""
        self.session.ready()

    def lost(self) -> None:
        """The connection is gone."""
        self.session.lost()
        self.again()
