"""The sockets of replication: the port of followers, and the connection to the master.

    BulkConnection -> Bridge -> session of the Leader or the Follower

A follower that was given a key (`security.key_path`) begins with a proof that it has it, before
anything of RocketMQ's protocols: 8 bytes that none of these can begin with, then `keys.proof`.

Invariant: there is at most one connection to the master, and none to one that was before; a master
that cannot be reached is tried again and again, with pauses that grow.
"""

import asyncio
import logging
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import cast

from onelog.clock import Clock, SystemClock
from onelog.config import Config
from onelog.core.broker import Broker
from onelog.core.users.keys import PROOF_BYTES, Keys
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
from onelog.replication.link import Link, Session

log = logging.getLogger(__name__)

CONNECT_MS = 3_000
PAUSE_SECONDS_MIN = 0.1
PAUSE_SECONDS_MAX = 2.0
LASTING_SECONDS = 5.0
"""A connection that holds for so long was a good one: the next is tried for without delay."""

PROVES = b"\xffonelog\x01"
"""What a proof begins with. As a number, no place in a log, and no state of a greeting."""
PROVEN_BYTES = len(PROVES) + PROOF_BYTES
LOOK_SECONDS, PROOF_SECONDS = 1.0, 10.0
"""How often it is looked whether a follower still may, and how long a proof may take."""

Connected = Callable[[Link, str], Session]
"""Takes a connection, and the address of the peer."""


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
        self.gone.set()
        self._session.lost()


class FollowerDoor:
    """In front of a follower's bridge: hears whether it has the key, and looks if it still may.

    Who may follow anyway is connected at once; what it says is still looked at for a proof.
    """

    def __init__(
        self, connection: Connection, connected: Connected, followers: "Followers"
    ) -> None:
        self._connection, self._connected, self._followers = connection, connected, followers
        self._begin: bytes | None = b""
        """What has come so far, until it is known whether that is a proof."""
        self._has_key = False
        self._bridge = Bridge(connection, connected) if followers.may(connection) else None
        self._look_in(PROOF_SECONDS if self._bridge is None else LOOK_SECONDS)

    def _look_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        """Where there were no users, there may be some by now; and a proof does not take long."""
        if self._has_key or self._connection.closing:
            return
        if self._followers.admit(self._connection):
            self._look_in(LOOK_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        if self._begin is not None:
            self._begin += data
            if len(self._begin) < PROVEN_BYTES and PROVES.startswith(self._begin[: len(PROVES)]):
                return
            data, self._begin = self._begin, None
            if data.startswith(PROVES):
                self._has_key = self._followers.has_key(data[len(PROVES) : PROVEN_BYTES])
                data = data[PROVEN_BYTES:]
        if self._bridge is None and (self._has_key or self._followers.admit(self._connection)):
            self._bridge = Bridge(self._connection, self._connected)
        if self._bridge is not None and data:
            self._bridge.data_received(data)

    def writable(self) -> None:
        """The peer reads again."""
        if self._bridge is not None:
            self._bridge.writable()

    def connection_lost(self) -> None:
        self._timer.cancel()
        if self._bridge is not None:
            self._bridge.connection_lost()


def _now_ms() -> int:
    """The time of day, which the clocks of two machines agree about."""
    return SystemClock().now_ms()


def parsed(address: str) -> tuple[str, int]:
    """Host and port of an address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65_535:
        raise InvalidAddressError(f"{address!r} is no address: host:port is expected")
    return host.strip("[]"), int(port)


class Followers:
    """Who may follow, and get everything.

    That is who has the key of this node, or is on a machine that `replication.followers` names, or
    has the certificate of an administrator. While there are no users, it is also who is on this
    machine; and everybody where everybody may do everything.
    """

    def __init__(
        self,
        config: Config,
        broker: Callable[[], Broker | None],
        has_key: Callable[[bytes], bool] = lambda proof: False,
    ) -> None:
        self.has_key = has_key
        """Whether that is a proof that somebody has the key."""
        self._config = config
        self._broker = broker
        try:
            texts = config.replication.followers.replace(",", ";").split(";")
            self._networks = [ip_network(each, strict=False) for each in texts if each]
        except ValueError as error:
            raise ConfigError(f"replication.followers: {error}") from None

    def admit(self, connection: Connection) -> bool:
        """Whether they may without a key; else the connection is closed."""
        is_admitted = self.may(connection)
        if not is_admitted:
            self.refuse(connection)
        return is_admitted

    def may(self, connection: Connection) -> bool:
        """Whether they may without a key."""
        remote, broker = connection.remote[0], self._broker()
        has_no_users = broker is None or broker.users.is_open
        is_open = self._config.security.anonymous or is_here(remote, connection.local[0])
        if (has_no_users and is_open) or self._is_named(remote):
            return True
        if broker is None:
            return False
        principal = broker.users.logins.certified(connection.certificate, "replication", remote)
        return principal is not None and broker.users.is_admin(principal)

    def refuse(self, connection: Connection) -> None:
        """Close the connection of who may not."""
        connection.warn(
            "%s wants to follow, and may not: name its machine in replication.followers, or give "
            "it the key of this node (security.key_path), or the certificate of an administrator "
            "(docs/security.md)",
            connection.remote[0],
        )
        connection.close()

    def _is_named(self, remote: str) -> bool:
        if not self._networks:
            return False
        address = ip_address(remote.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        return any(mapped in each for each in self._networks)


async def listen_for_followers(
    config: Config,
    port: int,
    connected: Connected,
    broker: Callable[[], Broker | None],
    clock: Clock,
    capacity: Capacity,
    tls: Tls,
    keys: Keys,
) -> BulkListener:
    followers = Followers(config, broker, lambda proof: keys.is_proof(proof, _now_ms()))
    limits = Limits(write_pause_bytes=LIMITS.write_pause_bytes, capacity=capacity)

    def bridged(connection: Connection) -> FollowerDoor:
        return FollowerDoor(connection, connected, followers)

    try:
        return await BulkListener.open(
            config.broker.host, port, bridged, clock=clock, limits=limits, tls=tls
        )
    except ListenError as error:
        raise ListenError(f"{error}: set replication.port to another one") from None


def shared(config: Config, keys: Keys) -> Keys | None:
    """The keys that this node shares with others: not those that it has made for itself."""
    return keys if config.security.key_path else None


class MasterLine:
    """A connection to the master, made again whenever it is lost, until it is to go nowhere."""

    def __init__(self, connected: Connected, tls: Tls, keys: Keys | None) -> None:
        """With `keys` it begins with a proof that it has them."""
        self._connected = connected
        self._tls = tls
        self._keys = keys
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
        pause, reported = PAUSE_SECONDS_MIN, ""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._once(address)
                reported = ""
                if loop.time() - began >= LASTING_SECONDS:
                    pause = PAUSE_SECONDS_MIN
            except OnelogError as error:
                if str(error) != reported:
                    reported = str(error)
                    log.warning("the master at %s cannot be followed: %s", address, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _once(self, address: str) -> None:
        """Connect, and wait for the end of that."""
        bridges: list[Bridge] = []

        def made(connection: Connection) -> Bridge:
            if self._keys is not None:
                cast(BulkConnection, connection).send([PROVES + self._keys.proof(_now_ms())])
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
                    "replication.followers there, or give both the same security.key_path)"
                )
        finally:
            for bridge in bridges:
                bridge.connection.close()
