"""Calling another node: a remoting connection that we opened.

Invariant: every awaited request returns an answer or raises `PeerTimeoutError` or
`PeerClosedError`. A peer that is gone stays gone: connecting again is the caller's decision.
"""

import asyncio
import ssl
from collections.abc import Callable

from onelog.errors import OnelogError, PeerClosedError, PeerTimeoutError
from onelog.net.connection import Buffer, Connection, Limits, Outbox
from onelog.net.remoting import RemotingSession
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import Command

TIMEOUT_MS = 3_000
CLOSE_SECONDS_MAX = 3.0


class Peer(RemotingSession):
    """Another node, for as long as the connection to it holds."""

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
    ) -> "Peer":
        """Connect. `on_request` handles what the peer asks us; without it, that is refused."""
        loop = asyncio.get_running_loop()
        peers: list[Peer] = []

        def make(connection: Connection) -> Peer:
            peers.append(Peer(connection, on_request, on_closed))
            return peers[0]

        connection = Connection(make, Outbox(loop), limits or Limits())
        try:
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
        """A request of the peer."""
        if self._on_request is None:
            self.refuse_unknown(command)
        else:
            self._on_request(self, command)

    def closed(self) -> None:
        """The connection is gone."""
        self._gone.set()
        if self._on_closed is not None:
            self._on_closed(self)
