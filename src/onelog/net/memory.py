"""Connections inside one process: listening, connecting, and a transport without a socket.

A `MemoryListener` puts its address into a table of the process. `dial` finds it there and makes a
pair of transports, one for each side; everything above them works as it does on sockets.

What one side writes the other reads, as the same bytes objects, in the next round of its event
loop. The two sides may be on different loops, in different threads:

    write -> inbox of the other side -> its loop calls _deliver -> data_received

Invariants: an address is in the table exactly as long as its listener accepts connections. As with
TCP, bytes arrive in order, and before the end that follows them; `close` loses nothing that was
written, `abort` may; each protocol gets `connection_lost` once; a side that does not read makes the
other side's write buffer grow, and `pause_writing` follows.
"""

import asyncio
import itertools
import os
import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

from onelog.errors import ListenError
from onelog.net.connection import Buffer, Connection
from onelog.net.line import Line
from onelog.net.listener import CLOSE_SECONDS_MAX, Listener

READ_BYTES_MAX = 256 << 10
"""Up to here, what was written piece by piece is read in one."""
WRITE_HIGH_BYTES = 64 << 10

Address = tuple[str, int]

# Names and addresses that nothing outside a process has: 240.0.0.0/8 is never routed. Records keep
# the address of their broker and no name, so a broker in memory needs a number too.
_ONLY_HERE = re.compile(r"embedded-\d+|240(?:\.\d{1,3}){3}")
_listening: dict[Address, "MemoryListener"] = {}
_client_ports = itertools.count()

# A listener runs on a loop, and no loop of the parent runs in the child.
os.register_at_fork(after_in_child=_listening.clear)


class MemoryTransport(asyncio.Transport):
    """One end of a connection. It changes its own state only; of the other's it reads values."""

    _other: "MemoryTransport"
    _post: Callable[..., object]

    def __init__(self, loop: asyncio.AbstractEventLoop, local: Address, remote: Address) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.loop = self._loop = loop
        self._protocol = asyncio.Protocol()
        self._inbox: deque[bytes] = deque()
        self._due = False
        """Whether the loop will call `_deliver`."""
        self._reading = False
        self._written = 0
        self._taken = 0
        """Bytes of the other side that were delivered here, ever."""
        self._high, self._low = WRITE_HIGH_BYTES, WRITE_HIGH_BYTES // 4
        self._paused = False
        self._ended = False
        """Whether the other side will write no more."""
        self._end_reported = False
        self._wrote_eof = False
        self._closing = False
        self._lost = False

    def __repr__(self) -> str:
        host, port = self.get_extra_info("peername")
        return f"<MemoryTransport to {host}:{port}>"

    # Making a connection.

    @staticmethod
    def join(one: "MemoryTransport", other: "MemoryTransport") -> None:
        """Make the two the ends of one connection."""
        for end, far in ((one, other), (other, one)):
            end._other = far
            is_same = end._loop is far._loop
            end._post = far._loop.call_soon if is_same else far._loop.call_soon_threadsafe

    def start(self, protocol: asyncio.Protocol) -> None:
        """Begin to read; called in the loop of this end."""
        self._protocol = protocol
        self._reading = True
        self._guard(protocol.connection_made, self)
        self._schedule()

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Have the other end's loop call something."""
        try:
            self._post(call, *arguments)
        except RuntimeError:
            # Its loop was closed without closing what ran on it.
            self._fall(ConnectionResetError("the other side's event loop is closed"))

    # Writing.

    def write(self, data: Buffer) -> None:
        """Have the other side read this."""
        if self._wrote_eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        other = self._other
        if self._closing or other._closing:
            self._write_in_vain()
            return
        if type(data) is not bytes:
            data = bytes(data)
        if not data:
            return
        self._written += len(data)
        other._inbox.append(data)
        if not other._due and other._reading:
            other._due = True
            self.post(other._deliver)
        if self._written - other._taken > self._high and not self._paused:
            self._pause()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Have the other side read these, one after the other."""
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """Write no more, but go on reading."""
        if self._closing or self._wrote_eof:
            return
        self._wrote_eof = True
        self._tell_end()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        """Bytes that the other side has not read."""
        if self._lost or self._other._closing:
            return 0
        return self._written - self._other._taken

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Low and high water mark."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """How much may be unread before the protocol is told to pause, and to resume."""
        if high is None:
            high = WRITE_HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        if self._paused:
            self._loop.call_soon(self._resume)
        elif self.get_write_buffer_size() > high:
            self._pause()

    def _pause(self) -> None:
        self._paused = True
        self._protocol.pause_writing()
        # The other side may have read everything before it could see that we wait for it.
        if self.get_write_buffer_size() <= self._low:
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        if self._paused and not self._lost and self.get_write_buffer_size() <= self._low:
            self._paused = False
            self._protocol.resume_writing()

    def _write_in_vain(self) -> None:
        """Nobody will read it. Who reads will see the end; who does not has to be told."""
        if not self._closing and not self._reading:
            self._fall(BrokenPipeError("the other side has closed"))

    # Reading.

    def is_reading(self) -> bool:
        """Whether what arrives is handed to the protocol."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """Leave what arrives where it is."""
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing:
            self._reading = True
            self._schedule()

    def _schedule(self) -> None:
        if not self._due and self._reading and (self._inbox or self._ended):
            self._due = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._due = False
        if not self._reading or self._closing:
            return
        inbox, other = self._inbox, self._other
        if not inbox:
            if self._ended and not self._end_reported:
                self._end_reported = True
                if not self._guard(self._protocol.eof_received):
                    self.close()
            return
        data = inbox.popleft()
        if inbox:
            data = self._joined(data)
        self._taken += len(data)
        if other._paused and not other._closing:
            self.post(other._resume)
        if inbox or self._ended:
            self._schedule()
        self._guard(self._protocol.data_received, data)

    def _joined(self, first: bytes) -> bytes:
        pieces, size = [first], len(first)
        inbox = self._inbox
        while inbox and size + len(inbox[0]) <= READ_BYTES_MAX:
            pieces.append(inbox.popleft())
            size += len(pieces[-1])
        return first if len(pieces) == 1 else b"".join(pieces)

    def _guard(self, call: Callable[..., Any], *arguments: object) -> object:
        try:
            return call(*arguments)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler(
                {
                    "message": "Fatal error: the protocol failed",
                    "exception": error,
                    "transport": self,
                    "protocol": self._protocol,
                }
            )
            self.abort()
            return True

    # The end.

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._closing

    def close(self) -> None:
        """Read no more, write no more; what was written reaches the other side."""
        if self._closing:
            return
        self._stop()
        self._tell_end()
        self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """End the connection at once, for both sides."""
        if self._lost:
            return
        self._stop()
        self.post(self._other._fall, ConnectionResetError("Connection reset by peer"))
        self._loop.call_soon(self._lose, None)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who is told what arrives."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Tell somebody else from now on."""
        self._protocol = cast(asyncio.Protocol, protocol)

    def _stop(self) -> None:
        self._closing = True
        self._inbox.clear()
        if self._other._paused:
            # It waits for us to read.
            self.post(self._other._resume)

    def _tell_end(self) -> None:
        other = self._other
        other._ended = True
        if not other._due and other._reading:
            other._due = True
            self.post(other._deliver)

    def _fall(self, error: Exception) -> None:
        """The connection broke; called in the loop of this end."""
        if not self._lost:
            self._closing = True
            self._inbox.clear()
            self._loop.call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._guard(self._protocol.connection_lost, error)
            # Breaks the cycles, so that all is freed now: the collector may not look for hours.
            self._protocol = asyncio.Protocol()
            self._other = self


def host_name(number: int) -> str:
    """The name of a host that exists in this process only."""
    return f"embedded-{number}"


def host_address(number: int) -> str:
    """Its number, for what keeps numbers only."""
    return f"240.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def dial(protocol: asyncio.Protocol, host: str, port: int) -> bool:
    """Connect to a listener of this process, at once; False if the address is of the network.

    A name that can be nowhere else is refused when nobody listens there (any more).
    """
    listener = _listening.get((host, port))
    if listener is not None and listener.loop.is_closed():
        # Its owner forgot it.
        del _listening[host, port]
        listener = None
    if listener is None:
        if _ONLY_HERE.fullmatch(host):
            raise ConnectionRefusedError(f"no broker of this process listens on {host}:{port}")
        return False
    here = ("127.0.0.1", 32_768 + next(_client_ports) % 32_768)
    ours = MemoryTransport(asyncio.get_running_loop(), local=here, remote=(host, port))
    theirs = MemoryTransport(listener.loop, local=(host, port), remote=here)
    MemoryTransport.join(ours, theirs)
    ours.start(protocol)
    if isinstance(protocol, Connection) and listener.loop is ours.loop:
        protocol.line = listener.make_line(here)
    ours.post(listener.accept, theirs)
    return True


class MemoryListener(Listener):
    """Listens on a name of this process, where others listen on a port. TLS has no use here."""

    make_line: Callable[[Address], Line | None] = staticmethod(lambda _: None)
    """Gives a client on the same loop, with this address, its line; there need not be one."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that its connections live on."""
        return self._loop

    async def _listen(self, host: str, port: int) -> None:
        if _listening.setdefault((host, port), self) is not self:
            raise ListenError(f"cannot listen on {host}:{port}: another listener does")
        self.address = (host, port)
        self._tasks.add(self._loop.create_task(self._sweep_forever()))

    def accept(self, transport: MemoryTransport) -> None:
        """Take a new connection; called in the listener's loop."""
        if _listening.get(self.address) is not self or not self._capacity.admits():
            transport.abort()
        else:
            transport.start(Connection(self._made, self._outbox, self._limits, self._lost))

    async def close(self, seconds_max: float = CLOSE_SECONDS_MAX) -> None:
        """Stop listening and close all connections, sending first what was already written."""
        if _listening.get(self.address) is self:
            del _listening[self.address]
        await super().close(seconds_max)
