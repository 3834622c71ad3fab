"""One running client: its connections, routes and heartbeats, and what brokers ask of it.

Producers and consumers have one each. A client shows itself to the brokers that it sends to or
reads from. That is not enough for one that any broker may have to find: to ask it about the
transaction of another member, or to hand it a reply. Such a client is present at all masters
(`Presence`).

A namespace is a prefix that keeps the tenants of a cluster apart: `orders` in namespace `shop` is
`shop%orders` on the wire. The marks of retry and dead-letter topics stay in front, as in
`%RETRY%shop%billing`; names of the system get no prefix. These are the rules of RocketMQ's clients.

Invariants: the heartbeat is the first request on every connection to a broker, and is sent again
every 30 s. `close` ends everything that was started here, and unregisters where it can.
`unwrapped(space, wrapped(space, name))` is the name.
"""

import asyncio
import logging
import os
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from onelog.client.admin.cluster import MASTER_ID, Clusters
from onelog.client.connection.address import Address
from onelog.client.connection.nodes import Nodes, at_once, end_all, forgiven
from onelog.client.connection.routes import Route, RouteCache
from onelog.client.options import ClientOptions, client_settings
from onelog.client.producer import unique_id
from onelog.errors import (
    ClientClosedError,
    ForkedError,
    MessageError,
    OnelogError,
    PeerClosedError,
    PeerTimeoutError,
    WrongLoopError,
)
from onelog.message import Buffer
from onelog.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX
from onelog.net.peer import Peer
from onelog.net.tasks import repeat
from onelog.rocketmq.names import REPLY_SUFFIX, SYSTEM_GROUP_PREFIX, SYSTEM_TOPICS
from onelog.wire.remoting.clients import ConsumerData, HeartbeatData, ProducerData
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command

HEARTBEAT_SECONDS = 30.0
VERSION_WITH_TIMERS = 413
"""V5_0_0."""
UNREGISTER_MS_MAX = 1_000
"""How long the end of a client waits for brokers to take note of it."""

log = logging.getLogger(__name__)

_alive: "weakref.WeakSet[Instance]" = weakref.WeakSet()

_MARKS = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
_SYSTEM_PREFIXES = (SYSTEM_PREFIX, SYSTEM_GROUP_PREFIX)


class Instance:
    """A client's side of all its connections."""

    def __init__(self, options: ClientOptions) -> None:
        settings = client_settings(options)
        self.client_id = settings.client_id or unique_id.client_id()
        self.timeout_ms = settings.timeout_ms
        self.namespace = settings.namespace
        self.credentials = settings.credentials
        self.nodes = Nodes(
            settings.nameservers,
            timeout_ms=settings.timeout_ms,
            tls=settings.tls,
            sign=None if settings.credentials is None else settings.credentials.sign,
            on_connected=self._connected,
            on_request=self._requested,
        )
        self.ask = self.nodes.ask
        self.routes = RouteCache(self.nodes)
        self.presence = Presence(self.nodes)
        self.handlers: dict[int, Callable[[Peer, Command], None]] = {}
        """What is done with the requests of brokers, by code."""
        self.producer_groups: set[str] = set()
        self.consumers: dict[str, Callable[[], ConsumerData]] = {}
        """What heartbeats say about each consumer group."""
        self.versions: dict[Address, int] = {}
        """The versions of brokers, from their answers to heartbeats."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where it runs; None before it was started."""
        self.is_forked = False
        """Whether this is a copy in a child process, where nothing of it works."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        _alive.add(self)

    @property
    def is_open(self) -> bool:
        """Whether it was started, and not closed."""
        return self.loop is not None and not self._closed

    async def start(self) -> None:
        """Begin the work in the background. Nothing is connected before it is needed."""
        if self._closed:
            raise ClientClosedError(f"client {self.client_id} was closed: make a new one")
        if self.loop is None:
            self.loop = asyncio.get_running_loop()
            self.spawn(self.routes.keep_fresh())
            name = f"the heartbeat of client {self.client_id}"
            self.spawn(repeat(name, HEARTBEAT_SECONDS, self._show_itself))

    async def close(self) -> None:
        """Say good-bye to the brokers, end all tasks, close all connections."""
        if self._closed or self.is_forked:
            return  # The sockets of a forked copy are the parent's, too.
        self._closed = True
        if self.loop is None:
            await self.nodes.close()
            return
        await end_all(self._tasks - {asyncio.current_task()})
        for group in sorted(self.producer_groups):
            await self._leave({"producerGroup": group})
        for group in sorted(self.consumers):
            await self._leave({"consumerGroup": group})
        await self.presence.close()
        await self.routes.close()
        await self.nodes.close()

    def can_close(self) -> bool:
        """Whether there is anything to end: nothing is if its loop was closed before it.

        `WrongLoopError` on another loop than its own.
        """
        if self.loop is None or self.loop is asyncio.get_running_loop():
            return True
        if self.loop.is_closed():
            self._closed = True
            return False
        self.check_open()
        return True

    def check_open(self) -> None:
        """`ClientClosedError` unless it runs, `WrongLoopError` on another loop than its own."""
        if self.is_forked:
            raise ForkedError(
                f"client {self.client_id} was made before this process forked, and its "
                f"connections stayed with the parent: make a new one in process {os.getpid()}"
            )
        if self.loop is None:
            raise ClientClosedError("the client is not started: use it in `async with`, or start()")
        if self._closed:
            raise ClientClosedError(f"client {self.client_id} is closed")
        if asyncio.get_running_loop() is not self.loop:
            gone = "is closed" if self.loop.is_closed() else "is another one"
            raise WrongLoopError(
                f"client {self.client_id} belongs to the event loop it was started on, which "
                f"{gone}: make one client for each loop"
            )

    def spawn(self, coroutine: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Run a coroutine until it ends or the client is closed; what it raises is logged."""
        task: asyncio.Task[Any] = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def wrap(self, name: str) -> str:
        """A topic or group as the brokers know it: with the namespace, if there is one."""
        return wrapped(self.namespace, name) if self.namespace else name

    def unwrap(self, name: str) -> str:
        """A topic or group as the user knows it: without the namespace."""
        return unwrapped(self.namespace, name) if self.namespace else name

    # One-way requests.

    def oneway(self, address: Address, code: RequestCode, ext: dict[str, str]) -> None:
        """Notify a node, now if it is connected; it is not reported if that fails."""
        peer = self.nodes.open_peer(address)
        if peer is not None:
            peer.oneway(code, self.sign(ext))
        else:
            self.spawn(self._oneway_later(address, code, ext))

    def sign(self, ext: dict[str, str] | None, body: Buffer = b"") -> dict[str, str] | None:
        """A request's fields as they are sent: with a signature, if there are credentials."""
        return ext if self.credentials is None else self.credentials.sign(ext, body)

    # Reading, which any broker of a set can answer.

    def reader(self, route: Route, broker: str, broker_id: int = MASTER_ID) -> Address:
        """Where to read: the master of a set, or the one that it suggests, if it answers."""
        return route.reading_address(broker, broker_id=broker_id, suspects=self.nodes.suspects)

    async def ask_reader(
        self,
        route: Route,
        broker: str,
        code: RequestCode,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        accept: frozenset[int] = frozenset(),
    ) -> Command:
        """The answer of the master of a set, or of a slave if the master cannot be reached."""
        address = self.reader(route, broker)
        try:
            return await self.ask(address, code, ext, body, accept=accept)
        except (PeerClosedError, PeerTimeoutError):
            other = self.reader(route, broker)
            if other == address:
                raise
        return await self.ask(other, code, ext, body, accept=accept)

    # Being known to brokers.

    async def heartbeat(self) -> None:
        """Send a heartbeat to all brokers of the topics in use, as far as they can be reached."""
        if self.producer_groups or self.consumers:
            body = self._heartbeat_body()
            await at_once(lambda address: self._heartbeat(address, body), self._brokers())

    async def check_timers(self, address: Address) -> None:
        """`MessageError` if a broker is too old to deliver a message at a given time."""
        if address not in self.versions:
            await self._heartbeat(address, self._heartbeat_body())
        if self.versions.get(address, VERSION_WITH_TIMERS) < VERSION_WITH_TIMERS:
            raise MessageError(
                f"broker {address} would deliver the message at once: before RocketMQ 5 only the "
                f"delays of delay_level exist"
            )

    # Inside.

    def _brokers(self) -> list[Address]:
        """The brokers that should know us: slaves matter to those who read only."""
        addresses = [
            address
            for brokers in self.routes.brokers().values()
            for broker_id, address in brokers.members
            if broker_id == MASTER_ID or self.consumers
        ]
        return list(dict.fromkeys([*addresses, *self.presence.masters]))

    def _heartbeat_body(self) -> bytes:
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=each) for each in self.producer_groups],
            consumer_data_set=[describe() for describe in self.consumers.values()],
        ).encode()

    async def _heartbeat(self, address: Address, body: bytes) -> None:
        with forgiven(log, "no heartbeat"):
            answer = await self.ask(address, RequestCode.HEART_BEAT, None, body)
            self.versions[address] = answer.version

    async def _leave(self, group: dict[str, str]) -> None:
        """Unregister from a group at the brokers that we are connected to."""
        ext = {"clientID": self.client_id, **group}
        limit_ms = min(self.timeout_ms, UNREGISTER_MS_MAX)

        async def unregister(address: Address) -> None:
            with forgiven(log, "not unregistered"):
                await self.ask(address, RequestCode.UNREGISTER_CLIENT, ext, timeout_ms=limit_ms)

        await at_once(unregister, filter(self.nodes.open_peer, self._brokers()))

    async def _oneway_later(self, address: Address, code: RequestCode, ext: dict[str, str]) -> None:
        with forgiven(log, "nothing was sent"):
            (await self.nodes.peer(address)).oneway(code, self.sign(ext))

    async def _show_itself(self) -> None:
        await self.presence.refresh()
        await self.heartbeat()

    def _connected(self, address: Address, peer: Peer) -> None:
        if address in self.nodes.nameservers or not (self.producer_groups or self.consumers):
            return

        def answered(answer: Command | OnelogError) -> None:
            if isinstance(answer, Command):
                self.versions[address] = answer.version
            else:
                log.info("no heartbeat: %s", answer)

        body = self._heartbeat_body()
        ext = self.sign(None, body)
        peer.request(RequestCode.HEART_BEAT, ext, body, self.timeout_ms, answered)

    def _requested(self, peer: Peer, command: Command) -> None:
        handle = self.handlers.get(command.code)
        if handle is None:
            peer.refuse_unknown(command)
        else:
            handle(peer, command)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of client %s failed", self.client_id, exc_info=error)


def _forked() -> None:
    for instance in _alive:
        instance.is_forked = True
        instance.loop = None


os.register_at_fork(after_in_child=_forked)


class Presence:
    """The masters that a client is known to, whatever it sends to."""

    def __init__(self, nodes: Nodes) -> None:
        self.masters: tuple[Address, ...] = ()
        """To whom heartbeats go besides."""
        self._nodes = nodes
        self._clusters = Clusters(nodes)
        self._wanted = False
        self._first: asyncio.Task[None] | None = None

    async def ensure(self) -> None:
        """Be present from now on; returns when everybody was tried once."""
        self._wanted = True
        if self._first is None or (self._first.done() and not self.masters):
            self._first = asyncio.ensure_future(self.refresh())
        # One caller that gives up must not keep the others from being found.
        await asyncio.shield(self._first)

    async def refresh(self) -> None:
        """Find new masters, and connect to those that we lost; nothing unless it is wanted."""
        if not self._wanted:
            return
        try:
            brokers = await self._clusters.brokers()
        except OnelogError as error:
            log.info("the masters stay those that were known: %s", error)
        else:
            self.masters = tuple(each.master for each in brokers if each.master is not None)
        await at_once(self._connect, self.masters)

    async def close(self) -> None:
        await end_all([self._first])

    async def _connect(self, address: Address) -> None:
        with forgiven(log, "not present at a broker"):
            await self._nodes.peer(address)  # The heartbeat is the first request on it.


def wrapped(namespace: str, name: str) -> str:
    mark, plain = _split(name)
    if not namespace or plain in SYSTEM_TOPICS or plain.startswith(_SYSTEM_PREFIXES):
        return name
    if plain.endswith(REPLY_SUFFIX):
        return name  # Each cluster has one, and it is the broker's.
    return name if plain.startswith(f"{namespace}%") else f"{mark}{namespace}%{plain}"


def unwrapped(namespace: str, name: str) -> str:
    mark, plain = _split(name)
    return mark + plain.removeprefix(f"{namespace}%") if namespace else name


def _split(name: str) -> tuple[str, str]:
    for mark in _MARKS:
        if name.startswith(mark):
            return mark, name[len(mark) :]
    return "", name
