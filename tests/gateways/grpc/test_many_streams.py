"""Very many Telemetry streams: all are answered, and nobody else waits for that."""

import asyncio
import resource
import struct
from pathlib import Path

import grpc.aio
import pytest
from hpack import Encoder

from onelog.gateways.grpc.clients import CLIENTS_MAX
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import ClientType, Code
from onelog.wire.grpc.http2 import PREFACE, STREAMS_MAX
from tests.gateways.grpc.live import address, grpc_broker, make_topic
from tests.gateways.grpc.raw import SERVICE, RawClient
from tests.gateways.grpc.test_bad_input import frame
from tests.waiting import eventually

DATA, HEADERS, SETTINGS, WINDOW = 0, 1, 4, 8
END_STREAM, END_HEADERS = 1, 4
STREAM_BYTES_MAX = 30_000
"""What a stream may cost, on both sides together."""


def settings_of(group: str, topic: str) -> bytes:
    """How a simple consumer introduces itself, as a message of gRPC."""
    settings = messages.Settings(client_type=ClientType.SIMPLE_CONSUMER)
    settings.subscription.group.name = group
    entry = settings.subscription.subscriptions.add()
    entry.topic.name, entry.expression.expression = topic, "*"
    payload: bytes = messages.TelemetryCommand(settings=settings).SerializeToString()
    return b"\0" + struct.pack(">I", len(payload)) + payload


async def introduce(port: int, first: int, count: int, said: bytes) -> asyncio.StreamWriter:
    """Open streams on one connection, a client each; when all of them were told something."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    encoder = Encoder()
    writer.write(PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW, 0, 0, struct.pack(">I", 1 << 24)))
    for each in range(count):
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", SERVICE + "Telemetry"),
            ("content-type", "application/grpc"),
            ("x-mq-client-id", f"client-{first + each}"),
        ]
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
    return writer


async def test_ten_thousand_streams_are_told_their_settings_while_others_go_on(
    tmp_path: Path,
) -> None:
    count = CLIENTS_MAX
    async with grpc_broker(tmp_path) as server:
        topic = make_topic(server, "there")
        clients = server.gateways["grpc"].shared().clients  # type: ignore[attr-defined]
        async with RawClient(address(server), "beside") as beside:
            made = 0

            async def go_on() -> None:
                nonlocal made
                query = messages.QueryRouteRequest(topic={"name": topic})
                while True:
                    answer = await beside.call("QueryRoute", query)
                    assert answer.status.code == Code.OK
                    made += 1

            await beside.call("QueryRoute", messages.QueryRouteRequest(topic={"name": topic}))
            before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            going = asyncio.create_task(go_on())
            port, said = server.config.grpc.port, settings_of("g", topic)
            writers = [
                await introduce(port, first, STREAMS_MAX, said)
                for first in range(0, count, STREAMS_MAX)
            ]
            going.cancel()
            with pytest.raises(grpc.aio.AioRpcError, match="10000 clients are here"):
                await beside.introduce_consumer("g", topic)
        assert made > 1
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) << 10
        assert grown < count * STREAM_BYTES_MAX
        known = clients._known
        assert all(known[f"client-{each}"].telemetry is not None for each in range(count))
        group = server.core.members.group("g")
        assert group is not None
        assert len(group.members) == count
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        await eventually(lambda: all(client.telemetry is None for client in known.values()))
        clients._give_up(list(known.values()))
        await eventually(lambda: server.core.members.group("g") is None)
