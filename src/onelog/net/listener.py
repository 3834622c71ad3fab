"""A listening port: accepts peers, tells TLS from plain by their first byte, and looks after them.

    accepted -> waits for its first byte (peeked at, not taken) -> TLS or plain -> Connection

All protocols served here let the client speak first, so waiting for its first byte costs nobody
anything. Invariant: every accepted socket is either in `connections` or in one of the two waiting
sets, and all of them together, of all listeners that share a `Capacity`, are what that admits.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Self

from onelog.clock import Clock
from onelog.errors import ConfigError, ListenError, WireError
from onelog.jobs import Job
from onelog.net.capacity import Capacity
from onelog.net.connection import Connection, Limits, Outbox, Session, is_here
from onelog.net.proxy_prefix import PREFIX_BYTES_MAX, parse
from onelog.net.tasks import repeat
from onelog.net.tls import HANDSHAKE_BYTE, Tls

BACKLOG = 4096
HANDSHAKE_SECONDS_MAX = 10.0
ABORT_SECONDS_MAX = 1.0
CLOSE_SECONDS_MAX = 3.0
ACCEPT_PAUSE_SECONDS = 0.2
SWEEP_SECONDS = 5.0
PREFIX_PAUSE_SECONDS = 0.02

log = logging.getLogger(__name__)


class Listener:
    """One port and its connections. Made by `open`, ended by `close`."""

    connection_kind = Connection

    def __init__(
        self,
        make_session: Callable[[Connection], Session],
        outbox: Outbox,
        limits: Limits,
        tls: Tls | None,
        clock: Clock,
        prepare: Callable[[], object] | None = None,
    ) -> None:
        self._make_session = make_session
        self._outbox = outbox
        self._capacity = limits.capacity or Capacity(clock=clock)
        self._limits = replace(limits, capacity=self._capacity)
        self._tls = tls if tls is not None and tls.is_enabled else None
        self._clock = clock
        self._prepare = prepare
        self._preparing: asyncio.Future[object] | None = None
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent: dict[socket.socket, int] = {}
        """Sockets whose first byte has not come, and since when they are open."""
        self._sources: dict[socket.socket, tuple[str, int] | None] = {}
        """Of sockets that may begin with a proxy's prefix: whom it named, once it was read."""
        self._greeting: set[asyncio.Task[None]] = set()
        """Sockets that are becoming a connection, or shaking hands."""
        self._unmade: set[Connection] = set()
        """What these are to become, and are not yet."""
        self._empty = asyncio.Event()
        self.connections: set[Connection] = set()
        self.address: tuple[str, int] = ("", 0)
        """Host and port that it listens on."""

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        make_session: Callable[[Connection], Session],
        *,
        clock: Clock,
        outbox: Outbox | None = None,
        limits: Limits | None = None,
        tls: Tls | None = None,
        prepare: Callable[[], object] | None = None,
    ) -> Self:
        """Listen. Port 0 takes a free one; see `address`.

        What the first session takes long to have, such as imports, a worker may `prepare`: the
        first connections wait for that, and nobody else.
        """
        loop = asyncio.get_running_loop()
        outbox = outbox or Outbox(loop)
        listener = cls(make_session, outbox, limits or Limits(), tls, clock, prepare)
        await listener._listen(host, port)
        listener._capacity.listeners.append(listener)
        return listener

    @property
    def open_count(self) -> int:
        """Its sockets, whatever state they are in."""
        return len(self.connections) + len(self._silent) + len(self._unmade)

    def sweep(self) -> None:
        """Close what has been idle for too long. Runs by itself every few seconds."""
        now_ms = self._clock.now_ms()
        for connection in list(self.connections):
            connection.sweep(now_ms)
        for client, since_ms in list(self._silent.items()):
            if now_ms - since_ms >= self._limits.idle_ms:
                self._drop_silent(client)
        if self._capacity.listeners[:1] == [self]:
            self._capacity.sweep()

    async def close(self, seconds_max: float = CLOSE_SECONDS_MAX) -> None:
        """Stop listening and close all connections, sending first what was already written."""
        if self in self._capacity.listeners:
            self._capacity.listeners.remove(self)
        for task in self._tasks | self._greeting:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._greeting, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        for client in list(self._silent):
            self._drop_silent(client)
        for connection in list(self.connections):
            connection.close()
        if not await self._are_gone(seconds_max):
            for connection in list(self.connections):
                connection.abort()
            await self._are_gone(ABORT_SECONDS_MAX)  # Or the loop may end with sockets open.

    async def _are_gone(self, seconds_max: float) -> bool:
        """Wait until all connections are gone; whether they are."""
        try:
            async with asyncio.timeout(seconds_max):
                while self.connections:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def _listen(self, host: str, port: int) -> None:
        try:
            found = await self._loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            # A name such as localhost may stand for several addresses; all get the same port.
            for family, kind, protocol, _, address in dict.fromkeys(found):
                listening = socket.socket(family, kind, protocol)
                self._sockets.append(listening)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.setblocking(False)
                listening.bind((address[0], port, *address[2:]))
                listening.listen(BACKLOG)
                port = listening.getsockname()[1]
        except OSError as error:
            for listening in self._sockets:
                listening.close()
            raise ListenError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        self.address = self._sockets[0].getsockname()[:2]
        for listening in self._sockets:
            self._tasks.add(self._loop.create_task(self._accept(listening)))
        self._tasks.add(self._loop.create_task(self._sweep_forever()))

    async def _sweep_forever(self) -> None:
        await repeat("closing idle connections", SWEEP_SECONDS, self.sweep)

    async def _accept(self, listening: socket.socket) -> None:
        job = Job("accepting connections")
        while True:
            with job:
                self._take(await self._accepted(listening))
            if job.failed:
                await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
            elif self._outbox.is_over():
                await asyncio.sleep(0)  # Others have their turn, however many come.

    async def _accepted(self, listening: socket.socket) -> socket.socket:
        """The next client. It is taken in one step: one that is accepted and not taken when the
        listener closes would stay open."""
        while True:
            try:
                return listening.accept()[0]
            except (BlockingIOError, InterruptedError):
                await self._readable(listening)
            except OSError as error:
                # The clients wait in the backlog meanwhile.
                raise ListenError(
                    f"{error}; if that is for want of file descriptors, raise their limit "
                    "(ulimit -n)"
                ) from error

    async def _readable(self, listening: socket.socket) -> None:
        """Wait until a client has come."""
        came = asyncio.Event()
        self._loop.add_reader(listening, came.set)
        try:
            await came.wait()
        finally:
            self._loop.remove_reader(listening)

    def _take(self, client: socket.socket) -> None:
        if not self._capacity.admits(client.fileno()):
            client.close()
            return
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None and not self._limits.proxied:
                self._greet(client, None)
            else:
                self._loop.add_reader(client, self._first_byte, client)
                self._silent[client] = self._clock.now_ms()
                if self._limits.proxied:
                    self._sources[client] = None
        except Exception:
            client.close()
            raise

    def _first_byte(self, client: socket.socket) -> None:
        tls = self._tls
        is_proxied = client in self._sources and self._sources[client] is None
        try:
            first = client.recv(PREFIX_BYTES_MAX if is_proxied else 1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if first and is_proxied and not self._take_prefix(client, first):
            return
        is_tls = first[0] == HANDSHAKE_BYTE if first else False
        if not first or (tls is not None and tls.is_required and not is_tls):
            if first:
                log.warning("%s does not speak TLS: closed", _peer(client))
            self._drop_silent(client)
            return
        self._loop.remove_reader(client)
        del self._silent[client]
        self._greet(client, tls if is_tls else None)

    def _take_prefix(self, client: socket.socket, data: bytes) -> bool:
        """Read what a load balancer says before everything else; False if there is more to do."""
        try:
            prefix = parse(data)
            if prefix is None:
                self._sources[client] = client.getpeername()[:2]
                return True
            if prefix.size:
                client.recv(prefix.size)
        except (OSError, WireError) as error:
            log.warning("%s: no prefix of a proxy: %s", _peer(client), error)
            self._drop_silent(client)
            return False
        if prefix.size:
            peer = client.getpeername()[:2]
            # Who is elsewhere cannot be here because he says so.
            is_false = prefix.source is not None and (
                is_here(prefix.source[0], "") and not is_here(peer[0], client.getsockname()[0])
            )
            self._sources[client] = peer if prefix.source is None or is_false else prefix.source
        else:
            # It would be looked at again and again until the rest comes.
            self._loop.remove_reader(client)
            self._loop.call_later(PREFIX_PAUSE_SECONDS, self._look_again, client)
        return False

    def _look_again(self, client: socket.socket) -> None:
        if client in self._silent:
            self._loop.add_reader(client, self._first_byte, client)

    def _drop_silent(self, client: socket.socket) -> None:
        self._loop.remove_reader(client)
        del self._silent[client]
        self._sources.pop(client, None)
        client.close()

    def _greet(self, client: socket.socket, tls: Tls | None) -> None:
        connection = self.connection_kind(self._made, self._outbox, self._limits, self._lost)
        connection.origin = self._sources.pop(client, None)
        task = self._loop.create_task(self._connect(client, tls, connection))
        self._greeting.add(task)
        self._unmade.add(connection)
        task.add_done_callback(partial(self._greeted, client, connection))

    def _greeted(
        self, client: socket.socket, connection: Connection, task: asyncio.Task[None]
    ) -> None:
        self._greeting.discard(task)
        self._unmade.discard(connection)
        if task.cancelled():  # Also one that had not begun.
            client.close()

    async def _connect(
        self, client: socket.socket, tls: Tls | None, connection: Connection
    ) -> None:
        try:
            if self._prepare is not None:
                await self._prepared(self._prepare)
            if tls is None:
                await self._loop.connect_accepted_socket(lambda: connection, client)
            else:
                await self._loop.connect_accepted_socket(
                    lambda: connection,
                    client,
                    ssl=await tls.context(),
                    ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX,
                )
        except (OSError, ssl.SSLError, ConfigError) as error:
            log.warning("%s: no TLS: %s", _peer(client), error)
            client.close()

    async def _prepared(self, prepare: Callable[[], object]) -> None:
        if self._preparing is None:
            self._preparing = self._loop.run_in_executor(None, prepare)
        await asyncio.wait([self._preparing])
        self._preparing.exception()  # The session fails in the same way, and says so.
        self._prepare = None

    def _made(self, connection: Connection) -> Session:
        self._unmade.discard(connection)
        self.connections.add(connection)
        return self._make_session(connection)

    def _lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()


def _peer(client: socket.socket) -> str:
    try:
        host, port = client.getpeername()[:2]
    except OSError:
        return "a client"
    return f"{host}:{port}"
