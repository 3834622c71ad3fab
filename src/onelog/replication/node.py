"""The sockets of replication: the port of followers, and the connection to the master.

    BulkConnection -> Bridge -> session of the Leader or the Follower

Invariant: there is at most one connection to the master, and none to one that was before; a master
that cannot be reached is tried again and again, with pauses that grow.
"""

import asyncio
import logging
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import cast

from onelog.clock import Clock
from onelog.config import Config
from onelog.core.broker import Broker
from onelog.errors import (
    ConfigError,
    InvalidAddressError,
    ListenError,
    OnelogError,
    PeerClosedError,
)
from onelog.net.bulk import LIMITS, BulkConnection, BulkListener, dial_bulk
from onelog.net.capacity import Capacity
from onelog.net.connection import Connection, Limits, is_here
from onelog.net.tls import Tls
from onelog.replication.link import Buffer, Link, Session

log = logging.getLogger(__name__)

CONNECT_MS = 3_000
PAUSE_SECONDS_MIN = 0.1
PAUSE_SECONDS_MAX = 2.0
LASTING_SECONDS = 5.0
"""A connection that holds for so long was a good one: the next is tried for without delay."""

Connected = Callable[[Link, str], Session]
"""Takes a connection, and the address of the peer."""


class Nobody:
    """In the place of a session, for who may not follow."""

    def received(self, data: Buffer) -> None:
        """Nothing of it is read."""

    def ready(self) -> None:
        """Nothing is told it."""

    def lost(self) -> None:
        """Nothing hung on it."""


class Bridge:
    """Between a connection and what is done with it."""

    def __init__(self, connection: Connection, connected: Connected) -> None:
        self.connection = connection
        self.gone = asyncio.Event()
        self.was_heard = False
        """Whether the peer has said anything."""
        self._session = connected(cast(BulkConnection, connection), connection.remote_address)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        self.was_heard = True
        self._session.received(data)

    def writable(self) -> None:
        """The peer reads again."""
        self._session.ready()

    def connection_lost(self) -> None:
        """The connection is gone."""
        self.gone.set()
        self._session.lost()


def parsed(address: str) -> tuple[str, int]:
    """Host and port of an address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65_535:
        raise InvalidAddressError(f"{address!r} is no address: host:port is expected")
    return host.strip("[]"), int(port)


class Followers:
    """Who may follow, and get everything.

    That is who is on this machine, or on one that `replication.followers` names, or has the
    certificate of an administrator; and everybody where everybody may do everything.
    """

    def __init__(self, config: Config, broker: Callable[[], Broker | None]) -> None:
        self._config = config
        self._broker = broker
        try:
            texts = config.replication.followers.replace(",", ";").split(";")
            self._networks = [ip_network(each, strict=False) for each in texts if each]
        except ValueError as error:
            raise ConfigError(f"replication.followers: {error}") from None

    def admit(self, connection: Connection) -> bool:
        """Whether they may; else the connection is closed."""
        remote, broker = connection.remote[0], self._broker()
        is_open = self._config.security.anonymous and (broker is None or broker.users.is_open)
        if is_open or is_here(remote, connection.local[0]) or self._is_named(remote):
            return True
        if broker is not None:
            who = broker.logins.certified(connection.certificate, "replication", remote)
            if who is not None and broker.users.is_admin(who):
                return True
        connection.warn(
            "%s wants to follow, and may not: name its machine in replication.followers, or have "
            "it show the certificate of an administrator (docs/security.md)",
            remote,
        )
        connection.close()
        return False

    def _is_named(self, remote: str) -> bool:
        if not self._networks:
            return False
        address = ip_address(remote.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        return any(mapped in each for each in self._networks)


async def listen_for_followers(
    config: Config, port: int, connected: Connected, broker: Callable[[], Broker | None],
    clock: Clock, capacity: Capacity, tls: Tls,
) -> BulkListener:  # fmt: skip
    """Open the port of followers."""
    followers = Followers(config, broker)
    limits = Limits(write_pause_bytes=LIMITS.write_pause_bytes, capacity=capacity)

    def bridged(connection: Connection) -> Bridge:
        admitted = connected if followers.admit(connection) else lambda *_: Nobody()
        return Bridge(connection, admitted)

    try:
        return await BulkListener.open(
            config.broker.host, port, bridged, clock=clock, limits=limits, tls=tls
        )
    except ListenError as error:
        raise ListenError(f"{error}: set replication.port to another one") from None


class MasterLine:
    """A connection to the master, made again whenever it is lost, until it is to go nowhere."""

    def __init__(self, connected: Connected, tls: Tls) -> None:
        self._connected = connected
        self._tls = tls
        self._task: asyncio.Task[None] | None = None
        self.address = ""
        """Where the master is; empty for nowhere."""

    def to(self, address: str) -> None:
        """The master is there now: "host:port"."""
        if address != self.address:
            self._stop()
            self.address = address
            if address:
                self._task = asyncio.get_running_loop().create_task(self._keep(address))

    def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _keep(self, address: str) -> None:
        pause, told = PAUSE_SECONDS_MIN, ""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._once(address)
                told = ""
                if loop.time() - began >= LASTING_SECONDS:
                    pause = PAUSE_SECONDS_MIN
            except OnelogError as error:
                if str(error) != told:
                    told = str(error)
                    log.warning("the master at %s cannot be followed: %s", address, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _once(self, address: str) -> None:
        """Connect, and wait for the end of that."""
        bridges: list[Bridge] = []

        def made(connection: Connection) -> Bridge:
            bridges.append(Bridge(connection, self._connected))
            return bridges[0]

        try:
            context = await self._tls.client_context()
            await dial_bulk(*parsed(address), made, CONNECT_MS, context)
            await bridges[0].gone.wait()
            if not bridges[0].was_heard:
                raise PeerClosedError(
                    "it closed the connection without a word. Its log says why: it may want TLS "
                    "(set tls.outgoing=on here), or does not know this machine (name it in "
                    "replication.followers there)"
                )
        finally:
            for bridge in bridges:
                bridge.connection.close()
