"""A node behind a proxy that a test can make half dead: it accepts, and never answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Proxy:
    """Passes bytes on, until it is muted."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_mute = False

    @property
    def address(self) -> str:
        """Where it listens."""
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)

    async def close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            theirs, ours = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(self._pass_on(reader, ours), self._pass_on(theirs, writer))
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                if not self.is_mute:
                    writer.write(data)
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def proxied(port: int) -> AsyncIterator[Proxy]:
    """A proxy of a port of this machine, for as long as the block lasts."""
    proxy = Proxy(port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
