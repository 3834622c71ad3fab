"""Gateways: a protocol each. They translate requests into the broker's verbs, and answers back.

A gateway is a class that takes a `GatewayContext`, and has `listen`, `refresh` and `close`;
`server` lists them all. Gateways do not import each other: what two of them need is here, or in the
core.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from random import Random
from typing import Any, Protocol, TypeVar, cast

from onelog.clock import Clock
from onelog.config_sources import Loaded
from onelog.core.access import Principal
from onelog.core.broker import Broker
from onelog.errors import BrokerBusyError, ConfigError, OnelogError
from onelog.message import Message
from onelog.net.connection import Connection, Session
from onelog.net.stall_watch import Stalls
from onelog.net.tls import Tls
from onelog.net.websocket import WebSocket
from onelog.rocketmq.pop import Pop

Offload = Callable[[Callable[[], None], Callable[[], None]], None]
"""Runs the first function in a worker thread, then the second one in the loop."""
Changed = Callable[[ConfigError | None], None]
"""Called when settings were changed, or with the reason why not."""
MakeSession = Callable[[Connection], Session]

RABBITMQ_VERSION = "3.13.7"
"""The version of RabbitMQ that its clients and tools are told, by every protocol: the last one that
has a prefetch for a whole channel, frames of 4,096 bytes, and logins with a password only. Clients
ask that of the version: from 4.0 on, they would do without the one, and expect others."""
Operate = Callable[[Principal, str, bytes, bool, tuple[str, int]], Coroutine[Any, Any, bytes]]
LOOKUPS_MAX = 1_000
"""Questions to the disk that may wait at a time."""

_Code = TypeVar("_Code")
_Found = TypeVar("_Found")


class RefusedError(OnelogError):
    """What is refused with a code of the protocol's own."""

    def __init__(self, code: IntEnum, text: str) -> None:
        super().__init__(text)
        self.code: Any = code


def code_of(
    error: OnelogError, codes: Mapping[type[OnelogError], _Code], otherwise: _Code
) -> _Code:
    """The code of an error; one that is not among them has that of its nearest parent."""
    if isinstance(error, RefusedError):
        return cast(_Code, error.code)
    return next((codes[kind] for kind in type(error).__mro__ if kind in codes), otherwise)


@dataclass(frozen=True, slots=True)
class FollowerState:
    """A node that follows this one."""

    node_id: int
    """Below 0 if it did not say."""
    address: str
    acknowledged: int
    """Up to where it has the log."""
    behind_bytes: int
    behind_ms: int
    in_sync: bool


@dataclass(slots=True)
class ReplicaStatus:
    """What this node is in its replica set, as name servers are told."""

    broker_id: int | None = None
    """0 for a master, above for those who follow it; None for what the configuration says."""
    epoch: int = 0
    """Which master of the set this is: name servers list a later one in the place of an earlier."""
    ha_address: str = ""
    """Where followers connect to; empty for the port above the gateway's."""
    replicated: bool = False
    """Whether a follower may act for a missing master: clients read there, and do not write."""
    leaves: bool = True
    """Whether name servers are told goodbye: not by a node that only changes its role."""
    found_master: Callable[[str, str], None] = lambda address, ha_address: None
    """Called with the addresses of a slave's master when the name servers tell of another one."""
    followers: Callable[[], Sequence[FollowerState]] = tuple
    """Who follows this node now."""
    in_sync: Callable[[], Sequence[int]] = tuple
    """The nodes of an elected set that have all that is confirmed, its master among them."""
    epochs: Callable[[], Sequence[tuple[int, int]]] = tuple
    """The masters' epochs, and where in the log each of them begins."""
    kafka_nodes: Callable[[], Mapping[int, str]] = dict
    """Where Kafka's clients find each node of the set."""
    master: Callable[[], tuple[int, int] | None] = lambda: None
    """Which node of an elected set is master, and its epoch."""


@dataclass(frozen=True, slots=True)
class ChannelState:
    """A channel of a client that consumes declared queues, as management tools are told of it."""

    channel: object
    number: int
    consumers: Sequence[object]
    """Those of the core that are this channel's."""
    prefetch: int
    window: int
    """How many messages its consumers may have together; 0: as many as they like."""
    unacked: int
    unconfirmed: int
    mode: str
    """plain, confirm or tx."""
    published: int
    delivered: int


@dataclass(frozen=True, slots=True)
class ClientState:
    """A client that is connected, as management tools are told of it."""

    connection: Connection
    user: str
    vhost: str
    state: str
    since_ms: int
    says: Mapping[str, object]
    """What it says of itself."""
    channels: Sequence[ChannelState]
    frame_max: int
    channel_max: int
    heartbeat_seconds: int


@dataclass(slots=True)
class GatewayContext:
    """What a server gives to every gateway."""

    broker: Broker
    pop: Pop
    """RocketMQ's POP: its clients take messages through more than one protocol."""
    clock: Clock
    loaded: Loaded
    """The configuration, with where each value came from."""
    store_host: bytes
    """The address that clients reach this broker at, as records keep it."""
    offload: Offload
    run_lookup: Offload
    """The same, for what computes, too: few at a time."""
    random: Random
    reconfigure: Callable[[dict[str, str], Changed], None]
    """Changes settings of the running broker, then calls back; `ConfigError`, here or there, says
    that nothing has changed."""
    retain: Callable[[bool, Callable[[OnelogError | None], None]], None]
    """Makes a round of retention, at any hour if the first argument says so, and calls back."""
    listen: "Listen"
    tls: Tls
    stalls: Stalls
    """How often the event loop was held."""
    replica_status: ReplicaStatus = field(default_factory=ReplicaStatus)
    connections: Callable[[], Iterable[tuple[str, Connection]]] = tuple
    """Who is connected now, and by which section's protocol."""
    serve_websocket: Callable[[WebSocket, MakeSession], Awaitable[None]] | None = None
    """Serves a session on a WebSocket that the HTTP port has accepted, until it ends."""
    routes: list[str] = field(default_factory=list)
    """Where the HTTP port finds its routes, as `module:function`. The modules are imported when the
    first client comes; each function is given the house, and returns routes of Starlette. A gateway
    adds its own in its constructor."""
    make_session: dict[str, MakeSession] = field(init=False, default_factory=dict)
    """How gateways whose protocols go through WebSockets, too, make their sessions; by section."""
    operate: Operate = field(init=False)
    """What comes of an operation of `onelog.admin`: who asks, which one, its arguments as JSON,
    whether it may change something, and where they are."""
    clients: Callable[[], Iterable[ClientState]] = field(init=False, default=tuple)
    """Who is connected by AMQP, with their channels."""
    finish: Callable[[Iterator[None]], None] = field(init=False, default=lambda steps: None)
    """Goes through what is left behind, some steps in each tick."""
    kept: dict[str, Any] = field(init=False, default_factory=dict)
    """What administration keeps from one request to the next, by what it is."""
    at_close: list[Callable[[], Awaitable[None]]] = field(init=False, default_factory=list)
    """What is to be closed with the server."""
    lookups: int = field(init=False, default=0)

    def look_up(
        self, find: Callable[[], _Found], then: Callable[[Callable[[], _Found]], None]
    ) -> None:
        """Find something in a worker, which may have to wait for the disk and changes nothing.

        `then` is called in the loop, with a function that returns it or raises what went wrong; it
        does so once.
        """
        if self.lookups >= LOOKUPS_MAX:
            raise BrokerBusyError(f"{self.lookups} look-ups wait for the disk: try again later")
        self.lookups += 1
        found: list[_Found] = []
        failed: list[Exception] = []

        def work() -> None:
            try:
                found.append(find())
            except Exception as error:
                failed.append(error)

        def result() -> _Found:
            # Taken out: an error leads to all the calls that it came through, and back to itself.
            if failed:
                raise failed.pop()
            return found.pop()

        def end() -> None:
            self.lookups -= 1
            then(result)

        self.run_lookup(work, end)


class ClientProbe(ABC):
    """A client that can be asked what RocketMQ's tools want to know, in its own protocol."""

    @abstractmethod
    def thread_stack(self, timeout_ms: int, then: Callable[[str | OnelogError], None]) -> None:
        """What its threads do."""

    @abstractmethod
    def consume_directly(
        self, message: Message, timeout_ms: int, then: Callable[[int | OnelogError], None]
    ) -> None:
        """Have it consume a message; the status that it answers with."""


class Listen(Protocol):
    """Listens on a port until the server closes; `ListenError` if it is taken.

    What a worker is to `prepare` is there before the first connection is.
    """

    def __call__(
        self, port: int, make_session: MakeSession, prepare: Callable[[], object] | None = None
    ) -> Awaitable[None]: ...


class Gateway(Protocol):
    """A protocol that is served."""

    async def listen(self) -> None:
        """Open its ports; `ListenError` if its usual one is taken. The broker is open by then."""
        ...

    def refresh(self, loaded: Loaded) -> None:
        """Take over settings that were changed."""
        ...

    async def close(self) -> None:
        """Say goodbye, before the broker closes; sessions end after it."""
        ...
