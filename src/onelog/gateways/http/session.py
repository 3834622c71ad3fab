"""One client of the HTTP port: between our `Connection` and uvicorn's protocol.

The protocol believes that it has a transport; what it writes goes to the connection, whose limits
hold here as everywhere. Headers may not be longer than `HEADER_BYTES_MAX`, and a request has to
come whole within `net.frame_timeout_ms`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from onelog.net.connection import Buffer, Connection

HEADER_BYTES_MAX = 64 << 10
FED_BYTES = 4 << 10
"""What uvicorn gets at once: in so little, there are not many requests."""
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class HttpTransport(asyncio.Transport):
    """A connection, as uvicorn's protocols want it."""

    def __init__(self, connection: Connection, session: "HttpSession") -> None:
        super().__init__(
            {
                "peername": connection.remote,
                "sockname": connection.local,
                "sslcontext": connection if connection.secure else None,
                "peercert": connection.certificate,
                "onelog": connection,
            }
        )
        self._connection = connection
        self._session = session

    def write(self, data: Buffer) -> None:
        """Send this with what else is sent in this tick; it is told if the peer is behind."""
        self._connection.write(bytes(data))
        if self._connection.congested:
            self._session.fall_behind()

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._connection.closing

    def close(self) -> None:
        """End it, after what was written."""
        self._connection.close()

    def abort(self) -> None:
        self._connection.abort()

    def pause_reading(self) -> None:
        """Read nothing for a while."""
        self._connection.hold(True)

    def resume_reading(self) -> None:
        self._session.read_on()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """From now on this one is told: the connection has become a WebSocket."""
        self._session.protocol = protocol


class HttpSession:
    """Hands bytes to and fro. They wait until the server is imported, and while a request that came
    before is answered: uvicorn would read all that follow, and keep them."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.protocol: Any = None
        self._early = b""
        self._is_behind = False
        self._cycle: object = None
        self._header_bytes = self._body_bytes = 0
        """Of a request that has not come whole."""

    def start(self, make_protocol: Callable[[], Any]) -> None:
        """Begin to serve."""
        if self.connection.closing:
            return
        self.protocol = make_protocol()
        self.protocol.connection_made(HttpTransport(self.connection, self))
        self.read_on()

    def read_on(self) -> None:
        """Go on with what had to wait, in the next turn, and read what comes."""
        if self._early:
            self.connection.wait_for_turn()
        self.connection.hold(False)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        if self._early:
            data, self._early = self._early + data, b""
        if self.protocol is None:
            self._early = data
            self.connection.hold(True)
            return
        at = 0
        while at < len(data):
            if self._is_answering() or (at and self.connection.turn_is_over()):
                self._early = data[at:]
                break
            before, piece = self.protocol, data[at : at + FED_BYTES]
            before.data_received(piece)
            if self.connection.closing:
                return
            at += len(piece)
            if self.protocol is before:
                self._watch(len(piece))
        self._keep()

    def _is_answering(self) -> bool:
        """Whether a request waits for the answer to one before; that reads on when it is sent."""
        is_answering = bool(getattr(self.protocol, "pipeline", False))
        if is_answering:
            self.protocol.flow.pause_reading()
        return is_answering

    def _watch(self, size: int) -> None:
        """Look after requests that have not come whole."""
        cycle: Any = getattr(self.protocol, "cycle", None)
        is_body = cycle is not None and cycle.more_body
        if cycle is not self._cycle or is_body or not hasattr(self.protocol, "cycle"):
            self._cycle, self._header_bytes = cycle, 0
        else:
            self._header_bytes += size
            if self._header_bytes > HEADER_BYTES_MAX:
                self.connection.write(_TOO_LARGE)
                self.connection.close()
                return
        self._body_bytes = len(cycle.body) + 1 if is_body else 0

    def _keep(self) -> None:
        unread = self.connection.unread
        if unread is not None:
            size = len(self._early) + (self._body_bytes or self._header_bytes)
            unread.keep(self.connection, size, bool(self._early))

    def fall_behind(self) -> None:
        """The peer does not read as fast as it is written to."""
        if not self._is_behind:
            self._is_behind = True
            self.protocol.pause_writing()

    def writable(self) -> None:
        """The peer reads again."""
        if self._is_behind:
            self._is_behind = False
            self.protocol.resume_writing()

    def connection_lost(self) -> None:
        protocol, self.protocol = self.protocol, None
        if protocol is not None:
            protocol.connection_lost(None)
            # Each request that it has knows it: nothing else would free them soon.
            protocol.cycle = self._cycle = None
            protocol.pipeline = ()
