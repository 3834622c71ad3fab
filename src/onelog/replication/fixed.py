"""A node whose role never changes: broker 0 leads, and those above follow it.

That is how RocketMQ's masters and slaves are, and this is their protocol: either side may be a
RocketMQ. A slave finds its master's port of followers in the configuration, or is told it by the
name servers. Topics, groups and positions come with the log; those of a RocketMQ, which does not
keep them there, are asked for now and then (`rocketmq.config_files`).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from onelog.config import Config
from onelog.core.assembly import Assembly
from onelog.core.users.keys import Keys
from onelog.errors import OnelogError, StoreError
from onelog.jobs import Job
from onelog.net.bulk import BulkListener
from onelog.net.capacity import Capacity
from onelog.net.tasks import repeat
from onelog.net.tls import Tls
from onelog.replication.epochs import Epochs
from onelog.replication.follower import Follower, MasterName
from onelog.replication.leader import Leader, NodeRuntime
from onelog.replication.link import Link, Session
from onelog.replication.node import MasterLine, listen_for_followers, parsed, shared
from onelog.rocketmq.config_files import copy_files
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

TICKING = "looking after replicas"
TICK_SECONDS = 0.1
FILES_SECONDS = 10.0


def followers_port(config: Config) -> int:
    """Where a master listens for followers; 0 for nowhere."""
    port = config.replication.port
    if port >= 0:
        return port
    return config.broker.port + 1 if config.replication.is_on else 0


@dataclass(eq=False)
class FixedRole:
    """A master with its followers, or a slave with its master. Made before the core."""

    config: Config
    store: MessageStore
    _runtime: NodeRuntime
    _capacity: Capacity
    _tls: Tls
    _keys: Keys
    is_slave: bool

    def __post_init__(self) -> None:
        self.assembly: Assembly | None = None
        """The core, as soon as there is one."""
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.master = ""
        """The address of a slave's master, if name servers have told it."""
        self._clock = self._runtime.clock
        self._listener: BulkListener | None = None
        self._line = MasterLine(self._master_connected, self._tls, shared(self.config, self._keys))
        self._master_name = MasterName(
            self._clock,
            self.config.replication.lag_ms,
            lambda address: self._core.master_is(address),
        )
        self._tasks: list[asyncio.Task[None]] = []
        if self.is_slave:
            self._be_slave()
        elif followers_port(self.config):
            self._be_master()

    def _be_master(self) -> None:
        replication = self.config.replication
        self.store.tail.set_gated(replication.ack in ("majority", "all"))
        self.leader = Leader(
            self.store,
            Epochs(),
            self._runtime,
            replication,
            0,
            on_confirmed=lambda _, touched: self._core.confirmed(touched),
            propose_in_sync=self._record,
        )

    def _be_slave(self) -> None:
        if self.store.damage:
            # Before anybody reads it; it is had from the master again.
            self.store.tail.cut(min(each.start for each in self.store.damage), "the log is damaged")
        self.follower = Follower(
            self.store,
            Epochs(),
            self._runtime,
            self.config.broker.broker_id,
            on_confirmed=lambda touched: self._core.follow(touched),
            cut=_cannot_cut,
            with_epochs=False,
        )

    @property
    def _core(self) -> Assembly:
        assert self.assembly is not None
        return self.assembly

    def _record(self, ids: frozenset[int]) -> None:
        """There is no judge: what the leader says is so."""
        assert self.leader is not None
        self.leader.in_sync_is(ids, self.leader.revision + 1)

    @property
    def broker_id(self) -> int:
        """What name servers know this node as."""
        return self.config.broker.broker_id

    epoch = 0
    may_write = True
    """Whether a master's core may write its last words."""

    async def leave(self) -> None:
        """Before the end: nobody takes the place of this node."""

    async def start(self) -> None:
        """Listen for followers, or follow. The core is open by then."""
        config = self.config
        loop = asyncio.get_running_loop()
        if self.leader is not None:
            self._listener = await listen_for_followers(
                config,
                followers_port(config),
                self._follower_connected,
                lambda: None if self.assembly is None else self.assembly.broker,
                self._clock,
                self._capacity,
                self._tls,
                self._keys,
            )
            self._tasks.append(loop.create_task(repeat(TICKING, TICK_SECONDS, self.leader.tick)))
        if self.follower is not None:
            if config.replication.master:
                self._line.to(config.replication.master)
            elif not config.broker.nameservers:
                log.warning("a slave needs replication.master, or broker.nameservers to be told it")
            self._tasks.append(loop.create_task(repeat(TICKING, TICK_SECONDS, self._tick_slave)))
            self._tasks.append(loop.create_task(self._copy_files_forever()))

    def _tick_slave(self) -> None:
        assert self.follower is not None
        self.follower.tick()
        self._master_name.tick(self.follower)

    @property
    def master_node(self) -> tuple[int, int] | None:
        """Which node is master: Kafka's clients know of no other one."""
        return None

    @property
    def in_sync(self) -> tuple[int, ...]:
        """The in-sync set: nobody is elected, so there is none."""
        return ()

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """Epochs of masters: there is one master."""
        return ()

    @property
    def kafka_nodes(self) -> dict[int, str]:
        """Where Kafka's clients find other masters: there are none."""
        return {}

    def found_master(self, address: str, followers_address: str) -> None:
        """Name servers say where a slave's master is."""
        if self.follower is None:
            return
        self.master = address
        self._master_name.is_at(address)
        if not self.config.replication.master:
            self._line.to(followers_address)

    def stop_following(self) -> None:
        """Let the core be closed: nothing more comes in."""
        self._line.to("")
        if self.follower is not None:
            self.follower.stop()

    async def close(self) -> None:
        """End all connections. Followers of a master may have got the last words of its core."""
        self.stop_following()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.leader is not None:
            self.leader.fence()
        if self._listener is not None:
            await self._listener.close()

    def _follower_connected(self, link: Link, address: str) -> Session:
        assert self.leader is not None
        return self.leader.connected(link, address, epochs=False)

    def _master_connected(self, link: Link, address: str) -> Session:
        assert self.follower is not None
        return self.follower.connected(link, address)

    async def _copy_files_forever(self) -> None:
        job = Job("copying the master's topics, groups and positions")
        folder = self.store.folder / "config"
        while True:
            # The log of a OneLog has them all.
            if self.master and not self.store.max_offset(self._core.tables.topic, 0):
                with job:
                    await copy_files(*parsed(self.master), folder)
            await asyncio.sleep(FILES_SECONDS if self.master else TICK_SECONDS)


def _cannot_cut(offset: int, why: str, then: Callable[[OnelogError | None], None]) -> None:
    then(StoreError(f"{why}: restart this slave, and it is cut at {offset}"))
