"""The sockets of replication: the port of followers, and the connection to the master.

    BulkConnection -> Bridge -> session of the Leader or the Follower

Invariant: there is at most one connection to the master, and none to one that was before; a master
that cannot be reached is tried again and again, with pauses that grow.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from onelog.clock import Clock
from onelog.errors import InvalidAddressError, ListenError, OnelogError
from onelog.net.bulk import LIMITS, BulkConnection, BulkListener, dial_bulk
from onelog.net.capacity import Capacity
from onelog.net.connection import Connection, Limits
from onelog.replication.link import Link, Session

log = logging.getLogger(__name__)

CONNECT_MS = 3_000
PAUSE_SECONDS_MIN = 0.1
PAUSE_SECONDS_MAX = 2.0
LASTING_SECONDS = 5.0
"""A connection that holds for so long was a good one: the next is tried for without delay."""

Connected = Callable[[Link, str], Session]
"""Takes a connection, and the address of the peer."""


class Bridge:
    """Between a connection and what is done with it."""

    def __init__(self, connection: Connection, connected: Connected) -> None:
        self.connection = connection
        self.gone = asyncio.Event()
        self._session = connected(cast(BulkConnection, connection), connection.remote_address)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
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


async def listen_for_followers(
    host: str, port: int, connected: Connected, clock: Clock, capacity: Capacity
) -> BulkListener:
    """Open the port of followers."""
    limits = Limits(write_pause_bytes=LIMITS.write_pause_bytes, capacity=capacity)
    try:
        return await BulkListener.open(
            host, port, lambda connection: Bridge(connection, connected), clock=clock, limits=limits
        )
    except ListenError as error:
        raise ListenError(f"{error}: set replication.port to another one") from None


class MasterLine:
    """A connection to the master, made again whenever it is lost, until it is to go nowhere."""

    def __init__(self, connected: Connected) -> None:
        self._connected = connected
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
            await dial_bulk(*parsed(address), made, CONNECT_MS)
            await bridges[0].gone.wait()
        finally:
            for bridge in bridges:
                bridge.connection.close()
