"""Very many Telemetry streams: all are answered."""

import asyncio
import struct
from pathlib import Path

from hpack import Encoder

from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import ClientType
from onelog.wire.grpc.http2 import PREFACE
from tests.gateways.grpc.live import grpc_broker, make_topic
from tests.gateways.grpc.raw import SERVICE
from tests.gateways.grpc.test_bad_input import frame

DATA, HEADERS, SETTINGS, WINDOW = 0, 1, 4, 8
END_STREAM, END_HEADERS = 1, 4


def settings_of(group: str, topic: str) -> bytes:
    """How a simple consumer introduces itself, as a message of gRPC."""
    settings = messages.Settings(client_type=ClientType.SIMPLE_CONSUMER)
    settings.subscription.group.name = group
    entry = settings.subscription.subscriptions.add()
    entry.topic.name, entry.expression.expression = topic, "*"
    payload: bytes = messages.TelemetryCommand(settings=settings).SerializeToString()
    return b"\0" + struct.pack(">I", len(payload)) + payload


async def introduce(
    port: int, first: int, count: int, said: bytes
) -> tuple[asyncio.StreamWriter, int]:
    """Open streams on one connection, a client each; how many of them were told something."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    encoder = Encoder()
    writer.write(PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW, 0, 0, struct.pack(">I", 1 << 24)))
    for each in range(count):
        fields = [
            (":method", "POST"), (":scheme", "http"), (":path", SERVICE + "Telemetry"),
            ("content-type", "application/grpc"), ("x-mq-client-id", f"client-{first + each}"),
        ]  # fmt: skip
        number = 2 * each + 1
        writer.write(frame(HEADERS, END_HEADERS, number, bytes(encoder.encode(fields))))
        writer.write(frame(DATA, 0, number, said))
        await writer.drain()
    told: set[int] = set()
    async with asyncio.timeout(120):
        while len(told) < count:
            high, low, kind, flags, number = struct.unpack(">HBBBI", await reader.readexactly(9))
            await reader.readexactly(high << 8 | low)
            assert kind != HEADERS or not flags & END_STREAM
            if kind == DATA:
                told.add(number)
    return writer, len(told)


async def test_every_stream_of_a_connection_is_told_its_settings(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server:
        topic = make_topic(server, "there")
        known = server.gateways["grpc"].shared().clients._known  # type: ignore[attr-defined]
        writer, told = await introduce(server.config.grpc.port, 0, 300, settings_of("g", topic))
        assert told == 300
        assert all(known[f"client-{each}"].telemetry is not None for each in range(300))
        writer.close()
        await writer.wait_closed()
