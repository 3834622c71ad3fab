"""A session on a WebSocket: what it writes leaves as binary messages, what they hold it is given.

The HTTP port accepts the WebSocket; from there on the session is one like those on sockets, with a
`Connection` of its own, so that all limits are the same. Messages and packets need not coincide.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Protocol

from onelog.net.connection import Buffer, Connection, Limits, Outbox, Session

WRITE_HIGH_BYTES = 64 << 10
MESSAGE_BYTES_MAX = 256 << 10


class WebSocket(Protocol):
    """A WebSocket of Starlette, as far as it matters here."""

    @property
    def scope(self) -> MutableMapping[str, Any]:
        """Who is connected to whom."""

    async def receive(self) -> Mapping[str, Any]:
        """The next message, or the end."""

    async def send_bytes(self, data: bytes) -> None:
        """Send a binary message."""

    async def close(self, code: int = 1000, reason: str | None = None) -> None:
        """Say goodbye."""


class WebSocketTransport(asyncio.Transport):
    """Looks like a socket to a `Connection`."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        extra = {
            "peername": scope.get("client"),
            "sockname": scope.get("server"),
            "peercert": scope.get("state", {}).get("certificate"),
        }
        super().__init__(extra)
        self._is_secure = scope.get("scheme") == "wss"
        self._protocol: asyncio.BaseProtocol | None = None
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._high = WRITE_HIGH_BYTES
        self._is_paused = False
        self._is_closing = False
        self.is_aborted = False
        self.has_more = asyncio.Event()
        """Set when there is something to send, or it is to end."""
        self.may_read = asyncio.Event()
        self.may_read.set()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the peer; whether there is TLS is all that is known of it."""
        if name == "ssl_object":
            return self if self._is_secure else default
        return super().get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Who is told that the peer is behind."""
        self._protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """From where on the peer is behind."""
        self._high = WRITE_HIGH_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    def write(self, data: Buffer) -> None:
        """Send this, in its turn."""
        if self._is_closing or not data:
            return
        self._out.append(bytes(data))
        self._out_bytes += len(data)
        self.has_more.set()
        if self._out_bytes > self._high and not self._is_paused and self._protocol is not None:
            self._is_paused = True
            self._protocol.pause_writing()

    def take(self) -> bytes:
        """What is to be sent now, as one message, which no client finds too large."""
        parts, size = [], 0
        while self._out and size < MESSAGE_BYTES_MAX:
            parts.append(self._out.popleft())
            size += len(parts[-1])
        out = b"".join(parts)
        if size > MESSAGE_BYTES_MAX:
            self._out.appendleft(out[MESSAGE_BYTES_MAX:])
            out = out[:MESSAGE_BYTES_MAX]
        if not self._out and not self._is_closing:
            self.has_more.clear()
        return out

    def sent(self, size: int) -> None:
        """So much of it was sent."""
        self._out_bytes -= size
        if self._is_paused and self._out_bytes <= self._high // 4 and self._protocol is not None:
            self._is_paused = False
            self._protocol.resume_writing()

    def is_reading(self) -> bool:
        """Whether messages are taken."""
        return self.may_read.is_set()

    def pause_reading(self) -> None:
        """Leave the next messages where they are."""
        self.may_read.clear()

    def resume_reading(self) -> None:
        """Take messages again."""
        self.may_read.set()

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._is_closing

    def can_write_eof(self) -> bool:
        """One side of a WebSocket cannot end alone."""
        return False

    def close(self) -> None:
        """End it, after what was written."""
        self._is_closing = True
        self.has_more.set()

    def abort(self) -> None:
        self.is_aborted = True
        self._out.clear()
        self.close()


async def serve(
    websocket: WebSocket,
    make_session: Callable[[Connection], Session],
    outbox: Outbox,
    limits: Limits,
) -> None:
    """Serve a session on a WebSocket that was accepted, until either side ends it."""
    transport = WebSocketTransport(websocket.scope)
    connection = Connection(make_session, outbox, limits)
    transport.set_protocol(connection)
    connection.connection_made(transport)
    reading = asyncio.create_task(_read(websocket, transport, connection))
    writing = asyncio.create_task(_write(websocket, transport))
    try:
        await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (reading, writing):
            task.cancel()
        ended = await asyncio.gather(reading, writing, return_exceptions=True)
        transport.close()
        connection.connection_lost(None)
    for result in ended:
        # Whoever is gone cannot be written to; everything else is to be known.
        if isinstance(result, Exception) and not isinstance(result, OSError | RuntimeError):
            raise result


async def _read(
    websocket: WebSocket, transport: WebSocketTransport, connection: Connection
) -> None:
    while True:
        await transport.may_read.wait()
        message = await websocket.receive()
        if message["type"] != "websocket.receive":
            return
        data = message.get("bytes")
        if data is None:
            await websocket.close(1003, "binary messages only")
            return
        connection.data_received(data)


async def _write(websocket: WebSocket, transport: WebSocketTransport) -> None:
    while True:
        await transport.has_more.wait()
        out = transport.take()
        if out and not transport.is_aborted:
            await websocket.send_bytes(out)
            transport.sent(len(out))
        if transport.is_closing() and not transport.get_write_buffer_size():
            break
        if transport.is_aborted:
            break
    await websocket.close()
