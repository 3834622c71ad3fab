"""A node whose role is decided by elections: its sockets, its etcd, and what ties them together.

    etcd <- Election -> Replica -> Leader | Follower -> BulkConnection
                            |
                        the server, which opens the core anew when the role changes

Invariant: the core is opened and closed by one task at a time; a node that ends as master hands
over first, if another one is in sync, so that nobody has to wait for a lease to be over.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from uuid import uuid4

from onelog.clock import SystemClock
from onelog.config import Config
from onelog.core.assembly import Assembly
from onelog.core.users.keys import Keys
from onelog.errors import OnelogError, StoreError
from onelog.net.bulk import BulkListener
from onelog.net.capacity import Capacity
from onelog.net.tasks import Tasks
from onelog.net.tls import Tls
from onelog.replication.election import Election
from onelog.replication.epochs import Epochs
from onelog.replication.etcd import Etcd, parse_endpoints, prefix_of
from onelog.replication.fixed import followers_port
from onelog.replication.identity import Identity, boot_id
from onelog.replication.leader import Leader, NodeRuntime
from onelog.replication.node import MasterLine, listen_for_followers, shared
from onelog.replication.replica import Replica
from onelog.replication.roles import Role, Self
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

GOODBYE_SECONDS_MAX = 3.0
ID_OF_FOLLOWER_0 = 1_000
"""What name servers know node 0 as while another one is master, which is 0 to them."""

Rebuild = Callable[[Callable[[], None]], Awaitable[None]]
"""Closes the core, calls a function, opens the core in the role that `ElectedRole` has now."""


def _self_of(config: Config) -> Self:
    """Which node of the set this one is, from its start on."""
    replication, broker = config.replication, config.broker
    host = f"[{broker.client_host}]" if ":" in broker.client_host else broker.client_host
    return Self(
        broker.broker_id,
        uuid4().hex,
        f"{host}:{broker.port}",
        f"{host}:{followers_port(config)}",
        replication.replicas,
        replication.lease_ms,
        replication.ack,
        replication.unclean,
        f"{host}:{config.kafka.port}" if config.kafka.port else "",
    )


def _identity_of(store: MessageStore, node: int) -> Identity:
    is_sync = store.config.flush == "sync"
    clean = store.recovery.clean
    return Identity(node, store.folder, clean=clean, sync=is_sync, boot=boot_id())


class ElectedRole:
    """A node of a set that has etcd. Made before the core; `start` opens it for the first time."""

    def __init__(
        self,
        config: Config,
        store: MessageStore,
        runtime: NodeRuntime,
        capacity: Capacity,
        tls: Tls,
        keys: Keys,
        rebuild: Rebuild,
    ) -> None:
        self.config = config
        self._capacity = capacity
        self._tls = tls
        self._keys = keys
        self._rebuild = rebuild
        self.assembly: Assembly | None = None
        """The core, while there is one."""
        self.leader: Leader | None = None
        """Of the core that is open, or is being opened."""
        self.built = Role()
        """The role of that core."""
        self._clock = runtime.clock
        self._line = MasterLine(
            lambda link, address: self.replica.dialed(link, address), tls, shared(config, keys)
        )
        self._listener: BulkListener | None = None
        self._tasks = Tasks()
        replication, broker = config.replication, config.broker
        identity = _identity_of(store, broker.broker_id)
        prefix = prefix_of(broker.cluster, broker.name)
        self._etcd = Etcd(parse_endpoints(replication.etcd), prefix, replication.lease_ms // 4)
        self.replica = Replica(
            broker.broker_id,
            store,
            Epochs(store.folder),
            replication,
            self,
            runtime,
            is_proven=lambda: self.election.is_proven(),
            propose_in_sync=lambda ids: self.election.propose_in_sync(ids),
            identity=identity,
        )
        me = _self_of(config)
        self.ha_address = me.ha_address
        self.election = Election(
            me,
            self.replica,
            self._etcd,
            self._clock.now_ms,
            SystemClock().now_ms,
            runtime.schedule,
            identity=identity,
        )

    # -- for the server ------------------------------------------------------------------------

    @property
    def is_slave(self) -> bool:
        """Whether the core is a follower's."""
        return not self.built.is_master

    @property
    def broker_id(self) -> int:
        """What name servers know this node as."""
        return (self.election.me.id or ID_OF_FOLLOWER_0) if self.is_slave else 0

    @property
    def epoch(self) -> int:
        """Of the role that the core has."""
        return self.built.epoch

    @property
    def master_node(self) -> tuple[int, int] | None:
        """Which node is master, as far as this one knows, and its epoch."""
        master = self.election.view.master
        return None if master is None else (master.id, master.epoch)

    @property
    def in_sync(self) -> tuple[int, ...]:
        """The nodes that have all that is confirmed."""
        state = self.election.view.state
        return () if state is None else tuple(state.in_sync)

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """The epochs of the log, and where each begins."""
        return self.replica.epochs.entries

    @property
    def kafka_nodes(self) -> dict[int, str]:
        """Where Kafka's clients find each node."""
        nodes = self.election.view.nodes.items()
        return {number: node.kafka_address for number, node in nodes if node.kafka_address}

    @property
    def may_write(self) -> bool:
        """Whether the core may write its last words: not if another node is master by now."""
        return self.replica.leader is not None and self.election.is_proven()

    def found_master(self, address: str, followers_address: str) -> None:
        """Name servers say where a slave's master is: etcd knows better."""

    async def start(self) -> None:
        """Listen for followers, open the core as a follower's, and take part in elections."""
        config = self.config
        self._listener = await listen_for_followers(
            config,
            followers_port(config),
            self.replica.accepted,
            lambda: None if self.assembly is None else self.assembly.broker,
            self._clock,
            self._capacity,
            self._tls,
            self._keys,
        )
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_started(error: OnelogError | None) -> None:
            if opened.done():
                return
            if error is None:
                opened.set_result(None)
            else:
                opened.set_exception(error)

        self.replica.start(on_started)
        await opened
        self.election.start()

    async def leave(self) -> None:
        """Before the end: let another node be master, and nobody wait for this one."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.replica.is_ending = True
        over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.election.leave(lambda error: None if over.done() else over.set_result(error))
        try:
            async with asyncio.timeout(GOODBYE_SECONDS_MAX):
                error = await over
        except TimeoutError:
            error = "it took too long"
        if error:
            log.info("the set could not be left before the end: %s", error)

    def stop_following(self) -> None:
        """Let the core be closed: nothing more comes in."""
        if not self.replica.leads:
            self.replica.close()
        self._line.to("")

    async def close(self) -> None:
        """End everything. The core has been closed."""
        self.replica.close()
        self.election.stop()
        await self._etcd.close()
        self._line.to("")
        for task in self._tasks:
            task.cancel()
        if self._listener is not None:
            await self._listener.close()

    # -- for the replica -----------------------------------------------------------------------

    @property
    def core(self) -> Assembly:
        assert self.assembly is not None
        return self.assembly

    def dial(self, address: str) -> None:
        """Keep a connection to a master."""
        self._line.to("")
        self._line.to(address)

    def rebuild(
        self,
        role: Role,
        leader: Leader | None,
        between: Callable[[], None],
        then: Callable[[OnelogError | None], None],
    ) -> None:
        """Have the server close the core, and open it in another role."""

        async def run() -> None:
            failure: list[OnelogError] = []

            def guarded() -> None:
                self.built, self.leader = role, leader
                try:
                    between()
                except OnelogError as error:
                    failure.append(error)

            try:
                await self._rebuild(guarded)
            except OnelogError as error:
                failure.append(error)
            except Exception as error:
                log.exception("the broker could not take its role")
                failure.append(StoreError(f"a bug: {error!r}"))
            then(failure[0] if failure else None)

        self._tasks.spawn(run())
