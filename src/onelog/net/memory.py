"""Listening and connecting inside one process.

A `MemoryListener` puts its address into a table of the process; `dial` finds it there and makes a
pair of transports, one for each side. Everything above them is as it is on sockets.

Invariant: an address is in the table exactly as long as its listener accepts connections.
"""

import asyncio
import itertools
import os
import re
from collections.abc import Callable

from onelog.errors import ListenError
from onelog.net.connection import Connection
from onelog.net.line import Line
from onelog.net.listener import Listener
from onelog.net.memory_transport import Address, MemoryTransport

# Names and addresses that nothing outside a process has: 240.0.0.0/8 is never routed. Records keep
# the address of their broker and no name, so a broker in memory needs a number too.
_ONLY_HERE = re.compile(r"embedded-\d+|240(?:\.\d{1,3}){3}")
_listening: dict[Address, "MemoryListener"] = {}
_client_ports = itertools.count()

# A listener runs on a loop, and no loop of the parent runs in the child.
os.register_at_fork(after_in_child=_listening.clear)


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

    async def close(self) -> None:
        """Stop listening and close all connections, sending first what was already written."""
        if _listening.get(self.address) is self:
            del _listening[self.address]
        await super().close()
