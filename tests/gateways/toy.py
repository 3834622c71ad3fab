"""A toy protocol of three lines, served like any other: it proves what a gateway needs.

    PUT topic key body          -> OK offset
    GET group topic wait-ms     -> MSG queue offset handle key body, or NONE
    ACK group topic queue offset handle  -> OK

A message belongs to who got it for ten seconds; then it is to be had again. Errors are `ERR` and
the reason. Keys and bodies have no spaces, and `-` is none.
"""

import asyncio
from typing import Self

from onelog.config_sources import Loaded
from onelog.core.access import Principal
from onelog.core.durable.waiting import ANY_QUEUE
from onelog.core.queues.lease_supply import LeaseRequest
from onelog.core.queues.lending import Leased
from onelog.errors import OnelogError, WireError
from onelog.gateways import GatewayContext
from onelog.message import Appended, NewMessage
from onelog.net.connection import Connection
from onelog.record.decode import decode_message
from onelog.record.forms import rocketmq
from onelog.record.forms.neutral import Neutral
from onelog.server import BrokerServer

LINE_BYTES_MAX = 1 << 16
LEASE_MS = 10_000


class ToyClient:
    """Says a line, and hears one."""

    @classmethod
    async def connect(cls, server: BrokerServer) -> Self:
        """Of a server that is given the toy gateway now."""
        await ToyGateway(server.context, 0).listen()
        client = cls()
        port = server.listeners[-1].address[1]
        client.reader, client.writer = await asyncio.open_connection("127.0.0.1", port)
        return client

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, line: str) -> str:
        """The answer to a line."""
        self.writer.write(f"{line}\n".encode())
        return await self.hear()

    async def hear(self) -> str:
        """The next line."""
        return (await asyncio.wait_for(self.reader.readline(), 20)).decode().rstrip("\n")


class ToyGateway:
    """The toy protocol on one port."""

    def __init__(self, context: GatewayContext, port: int) -> None:
        self.context = context
        self.port = port

    async def listen(self) -> None:
        """Open the port."""
        await self.context.listen(
            self.port, lambda connection: ToySession(connection, self.context)
        )

    def refresh(self, loaded: Loaded) -> None:
        """It has no settings."""

    async def close(self) -> None:
        """It says no goodbye."""


class ToySession:
    """One connection."""

    def __init__(self, connection: Connection, context: GatewayContext) -> None:
        self.connection = connection
        self.broker = context.broker
        self.principal = Principal("", "toy", connection.remote_address)
        self.context = context
        self.unread = b""

    def data_received(self, data: bytes) -> None:
        """Do what each line says."""
        *lines, self.unread = (self.unread + data).split(b"\n")
        if len(self.unread) > LINE_BYTES_MAX:
            raise WireError(f"a line of more than {LINE_BYTES_MAX} bytes")
        for line in lines:
            verb, *words = line.decode().split()
            try:
                getattr(self, f"do_{verb.lower()}")(*words)
            except (OnelogError, AttributeError, TypeError, ValueError) as error:
                self.say(f"ERR {error}")

    def say(self, line: str) -> None:
        """Answer."""
        self.connection.write(f"{line}\n".encode())

    def do_put(self, topic: str, key: str, body: str) -> None:
        """PUT."""
        neutral = Neutral(
            None if key == "-" else key.encode(), None if body == "-" else body.encode()
        )
        stored, properties = rocketmq.from_neutral(neutral)
        now_ms = self.context.clock.now_ms()
        message = NewMessage(topic, 0, stored, properties, born_ms=now_ms)
        self.broker.publish.send(self.principal, message, self.put)

    def put(self, _: object, appended: Appended | None, error: OnelogError | None) -> None:
        """The message is as safe as configured, or refused."""
        if appended is None:
            self.say(f"ERR {error}")
        else:
            self.say(f"OK {appended.queue_offset}")

    def do_get(self, group: str, topic: str, wait_ms: str) -> None:
        """GET."""
        settings = self.broker.topics.require(self.principal, topic)
        queues = [(topic, each) for each in range(settings.read_queues)]
        request = LeaseRequest(group, lambda: queues, ((topic, ANY_QUEUE),), 1, LEASE_MS)
        self.broker.queues.lease(self.principal, request, int(wait_ms), self.got, self)

    def got(self, _: object, leased: Leased | OnelogError) -> None:
        """Something was leased, or nothing was there in time."""
        if isinstance(leased, OnelogError):
            self.say(f"ERR {leased}")
        elif not leased.parts:
            self.say("NONE")
        else:
            (part,) = leased.parts
            message = decode_message(part.records[0])
            key, body, _, _ = rocketmq.to_neutral(
                bytes(message.body), bytes(message.properties), message.born_ms
            )
            place = f"{part.queue_id} {part.offsets[0]} {leased.handle}"
            said = ["-" if each is None else each.decode() for each in (key, body)]
            self.say(f"MSG {place} {' '.join(said)}")

    def do_ack(self, group: str, topic: str, queue_id: str, offset: str, handle: str) -> None:
        """ACK."""
        place = (int(queue_id), int(offset), int(handle))
        self.broker.queues.acknowledge(self.principal, group, topic, *place)
        self.broker.queues.when_leases_safe(
            lambda error: self.say(f"ERR {error}" if error else "OK")
        )

    def writable(self) -> None:
        """The peer reads again."""

    def connection_lost(self) -> None:
        """Whoever waits for a message is gone."""
        self.broker.groups.channel_closed(self)
