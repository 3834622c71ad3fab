"""Small sessions to listen with, and small clients to talk to them."""

import asyncio
import ssl

from onelog.net.connection import Connection
from onelog.net.listener import Listener
from onelog.net.remoting import RemotingSession
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.frame import RemotingFrameReader

SECONDS_MAX = 30.0


class Echo:
    """Sends back what it gets."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def data_received(self, data: bytes) -> None:
        self.connection.write(data)

    def writable(self) -> None:
        pass

    def connection_lost(self) -> None:
        pass


class Answering(RemotingSession):
    """Answers each request with its own body; remembers what it got."""

    seen: list[Command]

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.seen = []

    def handle(self, command: Command) -> None:
        self.seen.append(command)
        self.reply(command, ext=command.ext, body=command.body)


class Client:
    """A peer made of plain streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = RemotingFrameReader()

    @staticmethod
    async def connect(listener: Listener, tls: ssl.SSLContext | None = None) -> "Client":
        return Client(*await asyncio.open_connection(*listener.address, ssl=tls))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self, size: int) -> bytes:
        async with asyncio.timeout(SECONDS_MAX):
            return await self.reader.readexactly(size)

    async def receive_command(self) -> Command:
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                for command in self._frames.commands():
                    return command
                data = await self.reader.read(65536)
                assert data, "the connection was closed"
                self._frames.feed(data)

    async def is_closed(self) -> bool:
        """Whether the other side has closed; waits for it."""
        async with asyncio.timeout(SECONDS_MAX):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        self.writer.close()
