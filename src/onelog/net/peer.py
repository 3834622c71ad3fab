"""Calling another node: a remoting connection that we opened.

Invariant: every awaited request returns an answer or raises `PeerTimeoutError` or
`PeerClosedError`. A peer that is gone stays gone: connecting again is the caller's decision.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable

from onelog.errors import OnelogError, PeerClosedError, PeerTimeoutError
from onelog.net.connection import Buffer, Connection, Limits, Outbox
from onelog.net.memory import dial
from onelog.net.remoting import RemotingSession
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command

TIMEOUT_MS = 3_000
CLOSE_SECONDS_MAX = 3.0

log = logging.getLogger(__name__)

LIMITS = Limits(write_bytes_max=64 << 20)


class OpenedConnection(Connection):
    """A connection that we opened. It is read from even while the peer does not read.

    A listener protects itself by not reading from such a peer. If we did the same to it, both
    sides could wait for the other for ever.
    """

    flush_bytes = 16 << 10
    """Little, so that the peer works on the first requests while we write the next ones."""
    _behind: asyncio.Future[None] | None = None

    async def caught_up(self) -> None:
        """Wait until the peer reads what was written, or is gone."""
        while self._behind is not None:
            await asyncio.shield(self._behind)

    def flush(self) -> None:
        """Write out now what waits for the end of the tick."""
        super().flush()
        if self._behind is not None and not self.closing:
            waiting = self._transport.get_write_buffer_size()
            if waiting > self._limits.write_bytes_max:
                log.warning("%s does not read: given up with %d bytes unsent", self, waiting)
                self.abort()

    def pause_writing(self) -> None:
        if self._behind is None:
            self._behind = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self._active = True
        self._catch_up()

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is gone."""
        super().connection_lost(error)
        self._catch_up()

    def _catch_up(self) -> None:
        behind, self._behind = self._behind, None
        if behind is not None:
            behind.set_result(None)


class Peer(RemotingSession):
    """Another node, for as long as the connection to it holds."""

    unanswered_max = 1 << 17
    """Brokers hold a pull for each queue that a consumer reads."""

    def __init__(
        self,
        connection: Connection,
        on_request: Callable[["Peer", Command], None] | None = None,
        on_closed: Callable[["Peer"], None] | None = None,
    ) -> None:
        super().__init__(connection)
        self._on_request = on_request
        self._on_closed = on_closed
        self._gone = asyncio.Event()

    @staticmethod
    async def connect(
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        timeout_ms: int = TIMEOUT_MS,
        on_request: Callable[["Peer", Command], None] | None = None,
        on_closed: Callable[["Peer"], None] | None = None,
        limits: Limits | None = None,
        language: str = "JAVA",
    ) -> "Peer":
        """Connect. `on_request` handles what the peer asks us; without it, that is refused."""
        loop = asyncio.get_running_loop()
        peers: list[Peer] = []

        def make(connection: Connection) -> Peer:
            peers.append(Peer(connection, on_request, on_closed))
            peers[0].language = language
            return peers[0]

        connection = OpenedConnection(make, Outbox(loop), limits or LIMITS)
        try:
            if not dial(connection, host, port):
                async with asyncio.timeout(timeout_ms / 1000):
                    await loop.create_connection(lambda: connection, host, port, ssl=tls)
        except TimeoutError:
            raise PeerTimeoutError(f"no connection to {host}:{port} in {timeout_ms} ms") from None
        except (OSError, ssl.SSLError) as error:
            raise PeerClosedError(f"no connection to {host}:{port}: {error}") from None
        return peers[0]

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return not self.connection.closing

    async def ask(
        self,
        code: RequestCode,
        ext: dict[str, str] | None = None,
        body: Buffer = b"",
        timeout_ms: int = TIMEOUT_MS,
    ) -> Command:
        """Send a request and wait for its answer, whatever its code."""
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()

        def answered(result: Command | OnelogError) -> None:
            if answer.done():
                return
            if isinstance(result, Command):
                answer.set_result(result)
            else:
                answer.set_exception(result)

        self.request(code, ext, body, timeout_ms, answered)
        return await answer

    async def caught_up(self) -> None:
        """Wait while the peer is behind with reading what we write."""
        if isinstance(self.connection, OpenedConnection):
            await self.connection.caught_up()

    async def close(self) -> None:
        """Send what was written, close, and wait until the connection is gone."""
        self.connection.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._gone.wait()
        except TimeoutError:
            self.connection.abort()
            await self._gone.wait()

    def handle(self, command: Command) -> None:
        if self._on_request is None:
            self.refuse_unknown(command)
        else:
            self._on_request(self, command)

    def closed(self) -> None:
        """The connection is gone."""
        self._gone.set()
        if self._on_closed is not None:
            self._on_closed(self)
