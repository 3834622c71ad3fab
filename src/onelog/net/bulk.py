"""Connections that carry much, and in both directions at once: the log on its way to a replica.

What is sent goes to the kernel at once, without a copy for what the kernel takes. A peer that does
not read is still read from; how much may wait for it is up to the sender, who sees `backlog`, and
is told by `writable` when little waits.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence

from onelog.errors import PeerClosedError, PeerTimeoutError
from onelog.net.connection import JOIN_BYTES_MAX, Buffer, Connection, Limits, Outbox, Session
from onelog.net.listener import Listener

READ_BYTES = 1 << 20
"""What is read at once. After as much in one go, others have their turn."""
LIMITS = Limits(write_pause_bytes=2 << 20)


class BulkConnection(Connection):
    """A connected socket and its session."""

    reads_on = True

    @property
    def backlog(self) -> int:
        """Bytes that were sent, and are not yet with the kernel."""
        return self._transport.get_write_buffer_size()

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send buffers, one after the other."""
        if self.closing:
            return
        if sum(map(len, buffers)) <= JOIN_BYTES_MAX:
            buffers = (b"".join(buffers),)
        try:
            for each in buffers:
                self._transport.write(each)
        except RuntimeError as error:
            self._find_gone(error)
        self._active = True

    def read_much(self) -> None:
        """Read large pieces, to a place of its own: the session is done with each in its call."""
        view = memoryview(bytearray(READ_BYTES))
        read = 0

        def filled(size: int) -> None:
            nonlocal read
            self._active = True
            if not self.closing:
                self.guard(self._session.data_received, view[:size])
            read += size
            if read >= READ_BYTES and not self.closing:
                read = 0
                self._set_reading(False)
                self._outbox.after(self._read_on)

        self.read_to(view, filled)

    def pause_writing(self) -> None:
        """The peer is behind."""
        self.congested = True
        self._keep_unsent(self.backlog)

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.congested = False
        self._keep_unsent(0)
        if not self.closing:
            self.guard(self._session.writable)


class BulkListener(Listener):
    """A port of such connections."""

    connection_kind = BulkConnection


async def dial_bulk(
    host: str,
    port: int,
    make_session: Callable[[Connection], Session],
    timeout_ms: int,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Connect; the session is there when the call returns."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, connection = await loop.create_connection(
                lambda: BulkConnection(make_session, Outbox(loop), LIMITS), host, port, ssl=tls
            )
            connection.read_much()
    except TimeoutError:
        raise PeerTimeoutError(f"no connection to {host}:{port} in {timeout_ms} ms") from None
    except OSError as error:
        raise PeerClosedError(f"no connection to {host}:{port}: {error}") from None
