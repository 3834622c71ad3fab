"""A broker with a clock that tests move, behind a real socket; tools and clients before it."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from onelog.config import Config, TlsConfig
from onelog.config_sources import Loaded
from onelog.core.access import SELF
from onelog.core.filters.tags import subscribe
from onelog.core.membership.members import Client, ConsumerData
from onelog.errors import OnelogError
from onelog.gateways import Changed, GatewayContext, MakeSession
from onelog.gateways.remoting.admin import broker as broker_admin
from onelog.gateways.remoting.admin import client_relay
from onelog.gateways.remoting.admin import groups as group_admin
from onelog.gateways.remoting.admin import topics as topic_admin
from onelog.gateways.remoting.session import BrokerSession, Gateway
from onelog.message import encode_host
from onelog.net.connection import Connection
from onelog.net.listener import Listener
from onelog.net.peer import Peer
from onelog.net.stall_watch import Stalls
from onelog.net.tls import Tls
from onelog.wire.remoting.codes import VERSION, RequestCode
from onelog.wire.remoting.command import Command
from tests.core.world import SMALL_STORE, World
from tests.gateways.remoting.live import PATIENCE_MS

HANDLERS = {
    **topic_admin.HANDLERS,
    **group_admin.HANDLERS,
    **broker_admin.HANDLERS,
    **client_relay.HANDLERS,
}


@dataclass
class Member:
    """A client of the broker, as the broker sees it and as it sees the broker."""

    peer: Peer
    session: BrokerSession
    asked: list[Command] = field(default_factory=list)
    """What the broker wanted of it."""
    respond: Callable[[Peer, Command], None] | None = None

    def on_request(self, peer: Peer, command: Command) -> None:
        self.asked.append(command)
        if self.respond is not None:
            self.respond(peer, command)


@dataclass
class Desk:
    """Where questions are asked."""

    world: World
    gateway: Gateway
    listener: Listener
    sessions: list[BrokerSession]
    peers: list[Peer] = field(default_factory=list)
    changes: list[dict[str, str]] = field(default_factory=list)
    """What was reconfigured."""

    async def connect(self, on_request: Callable[[Peer, Command], None] | None = None) -> Peer:
        peer = await Peer.connect(
            *self.listener.address, on_request=on_request, timeout_ms=PATIENCE_MS
        )
        self.peers.append(peer)
        return peer

    async def ask(self, code: RequestCode, body: bytes = b"", /, **ext: object) -> Command:
        """What an admin tool asks, over the first connection."""
        peer = self.peers[0] if self.peers else await self.connect()
        texts = {name: str(value) for name, value in ext.items()}
        return await peer.ask(code, texts, body, PATIENCE_MS)

    async def told(self, code: RequestCode, body: bytes = b"", /, **ext: object) -> Command:
        """`ask`, for an answer that must be a good one."""
        answer = await self.ask(code, body, **ext)
        assert answer.code == 0, answer.remark
        return answer

    async def member(
        self,
        client_id: str,
        group: str,
        *topics: str,
        version: int = VERSION,
        language: str = "JAVA",
        expression: str = "*",
        kind: str = "TAG",
    ) -> Member:
        """A client joins a consumer group, and a producer group of the same name."""
        members: list[Member] = []
        peer = await self.connect(lambda peer, command: members[0].on_request(peer, command))
        await peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, timeout_ms=PATIENCE_MS)
        session = self.sessions[-1]
        members.append(Member(peer, session))
        address = session.connection.remote_address
        subscriptions = tuple(subscribe(topic, expression, kind, 9) for topic in topics)
        self.world.broker.groups.heartbeat(
            SELF,
            Client(client_id, session, language, version, address),
            [ConsumerData(group, subscriptions=subscriptions)],
            [group],
        )
        return members[0]


def run_at_once(work: Callable[[], None], then: Callable[[], None]) -> None:
    work()
    then()


async def not_here(
    port: int, make_session: MakeSession, prepare: Callable[[], object] | None = None
) -> None:
    raise AssertionError("nobody listens here")


@contextlib.asynccontextmanager
async def open_desk(folder: Path) -> AsyncIterator[Desk]:
    """A broker that is asked over real sockets, for as long as the block lasts."""
    world = World(folder / "store")
    config = Config(store=SMALL_STORE, broker=world.broker_config)
    sessions: list[BrokerSession] = []
    changes: list[dict[str, str]] = []

    def reconfigure(changed: dict[str, str], done: Changed) -> None:
        changes.append(changed)
        done(None)

    def retain(manual: bool, then: Callable[[OnelogError | None], None]) -> None:
        world.core.prepare_retention()
        world.store.retention.run(world.core.topics.retention_ms(), manual=manual)
        then(None)

    context = GatewayContext(
        world.broker,
        world.pop,
        world.clock,
        Loaded(config, {}),
        encode_host("127.0.0.1", 10911),
        run_at_once,
        run_at_once,
        Random(7),
        reconfigure,
        retain,
        not_here,
        Tls(TlsConfig()),
        Stalls(),
    )
    gateway = Gateway(context, HANDLERS)

    def make_session(connection: Connection) -> BrokerSession:
        sessions.append(BrokerSession(connection, gateway))
        return sessions[-1]

    listener = await Listener.open("127.0.0.1", 0, make_session, clock=world.clock)
    desk = Desk(world, gateway, listener, sessions, changes=changes)
    try:
        yield desk
    finally:
        for peer in desk.peers:
            await peer.close()
        await listener.close()
        world.close()
