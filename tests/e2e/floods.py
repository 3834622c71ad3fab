"""Bytes that keep a broker busy: for each protocol, how a client begins, and what it then sends.

`press` sends a flood over some connections for a while, and reads what is answered. Nothing here
waits for an answer before it goes on.
"""

import contextlib
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpack import Encoder

from onelog.record.forms import kafka as batches
from onelog.record.forms.kafka import Codec
from onelog.record.forms.neutral import Neutral
from onelog.wire.amqp.frame import GREETING, content_frames, method_frame
from onelog.wire.amqp.methods import ENCODERS
from onelog.wire.grpc.http2 import PREFACE
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.frame import encode_request as kafka_request
from onelog.wire.mqtt import packets
from onelog.wire.mqtt.codes import V5
from onelog.wire.mqtt.packets import Connect
from onelog.wire.remoting.frame import encode_request
from onelog.wire.stomp.frame import encode_frame

SEND_BYTES = 256 << 10
CONNECT_SECONDS_MAX = 30.0


# -- remoting ----------------------------------------------------------------------------------


def remoting(code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    """A request."""
    return b"".join(encode_request(code, 1, ext or {}, body))


# -- Kafka -------------------------------------------------------------------------------------


def kafka(key: ApiKey, version: int, fields: dict[str, Any] | None = None) -> bytes:
    """A request."""
    return b"".join(kafka_request(key, version, 7, "flood", fields or {}))


def kafka_fetch(topic: str, partitions: Sequence[int], bytes_max: int = 1 << 20) -> bytes:
    """A fetch of some partitions, from their beginning."""
    wanted = [
        {"partition": each, "fetch_offset": 0, "partition_max_bytes": bytes_max}
        for each in partitions
    ]
    return kafka(
        ApiKey.FETCH,
        4,
        {
            "replica_id": -1,
            "max_wait_ms": 0,
            "min_bytes": 0,
            "max_bytes": bytes_max,
            "isolation_level": 0,
            "topics": [{"topic": topic, "partitions": wanted}],
        },
    )


def kafka_batch(*values: bytes, codec: Codec = Codec.NONE) -> bytes:
    """A batch as a producer sends it."""
    return batches.from_neutral([Neutral(b"k", value, (), 1_000) for value in values], codec=codec)


def kafka_produce(topic: str, batch: bytes) -> bytes:
    """A batch for one partition."""
    wanted = {"name": topic, "partition_data": [{"index": 0, "records": batch}]}
    fields = {"transactional_id": None, "acks": 1, "timeout_ms": 1_000, "topic_data": [wanted]}
    return kafka(ApiKey.PRODUCE, 7, fields)


# -- AMQP --------------------------------------------------------------------------------------


def amqp(name: str, *arguments: Any, channel: int = 1) -> bytes:
    """A method."""
    return method_frame(channel, ENCODERS[name](*arguments))


AMQP_HELLO = b"".join(
    (
        GREETING,
        amqp("connection.start-ok", {}, "PLAIN", b"\0guest\0guest", "en_US", channel=0),
        amqp("connection.tune-ok", 2047, 131_072, 0, channel=0),
        amqp("connection.open", "/", channel=0),
        amqp("channel.open"),
    )
)


def amqp_publish(exchange: str, key: str, body: bytes) -> bytes:
    """A message."""
    method = ENCODERS["basic.publish"](exchange, key, False, False)
    return b"".join(map(bytes, content_frames(1, method, b"\0\0", body, 131_072)))


# -- STOMP -------------------------------------------------------------------------------------


def stomp(command: str, body: bytes = b"", **headers: str) -> bytes:
    """A frame; `_` in the names of headers is a `-`."""
    found = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return encode_frame(command, found, body)


STOMP_HELLO = stomp("CONNECT", accept_version="1.2", host="/")


# -- MQTT --------------------------------------------------------------------------------------


def mqtt_hello(client_id: str = "", *, clean: bool = True, **options: Any) -> bytes:
    """CONNECT."""
    return packets.encode_connect(Connect(V5, client_id, clean, 0, None, **options))


def websocket_hello(port: int, protocol: str = "mqtt", path: str = "/mqtt") -> bytes:
    """What a browser says that wants a WebSocket."""
    return (
        f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\norigin: http://127.0.0.1:{port}\r\n"
        "upgrade: websocket\r\nconnection: Upgrade\r\n"
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
        f"sec-websocket-protocol: {protocol}\r\n\r\n"
    ).encode()


def websocket_message(data: bytes) -> bytes:
    """A binary message of less than 126 bytes."""
    return bytes((0x82, 0x80 | len(data))) + bytes(4) + data


# -- gRPC --------------------------------------------------------------------------------------

HEADERS, SETTINGS, PING, WINDOW, RESET, CONTINUATION = 1, 4, 6, 8, 3, 9
TELEMETRY = "/apache.rocketmq.v2.MessagingService/Telemetry"


def h2(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    size = len(payload)
    return struct.pack(">HBBBI", size >> 8, size & 0xFF, kind, flags, number) + payload


GRPC_HELLO = PREFACE + h2(SETTINGS, 0, 0)


def grpc_calls(count: int, path: str = TELEMETRY, first: int = 1, end: bool = False) -> bytes:
    """So many calls that begin."""
    encoder = Encoder()
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("x-mq-client-id", "flood"),
    ]
    numbers = range(first, first + 2 * count, 2)
    return b"".join(
        h2(HEADERS, 5 if end else 4, number, bytes(encoder.encode(fields))) for number in numbers
    )


# -- sending them ------------------------------------------------------------------------------


class Flood:
    """One connection: its greeting once, then the same bytes again and again, or once."""

    def __init__(self, port: int, hello: bytes, data: bytes, *, repeat: bool, reads: bool) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), CONNECT_SECONDS_MAX)
        self.socket.setblocking(False)
        self._left = memoryview(hello + data)
        self._data = memoryview(b"")
        if repeat:
            self.repeat(data)
        self._reads = reads
        self.sent = self.received = 0
        self.is_open = True

    def repeat(self, data: bytes) -> None:
        """Send this again and again from now on."""
        self._data = memoryview(data * (SEND_BYTES // len(data) + 1))

    def tell(self, data: bytes) -> None:
        """Send this once, now that the rest is gone."""
        self._left = memoryview(data)

    def send(self) -> bool:
        """Send what the socket takes; False if that was all, or the broker has hung up."""
        if not self._left:
            self._left = self._data
        try:
            count = self.socket.send(self._left[:SEND_BYTES])
        except BlockingIOError:
            return True
        except OSError:
            self.is_open = False
            return False
        self.sent += count
        self._left = self._left[count:]
        return bool(self._left or self._data)

    def read(self) -> None:
        """Read what there is."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.received += len(data)
        self.is_open = bool(data)

    @property
    def events(self) -> int:
        """What it waits for."""
        is_more = selectors.EVENT_WRITE if self._left or self._data else 0
        return (selectors.EVENT_READ if self._reads else 0) | is_more


def press(
    port: int,
    hello: bytes | Callable[[int], bytes],
    data: bytes | Callable[[int], bytes],
    *,
    connections: int = 4,
    seconds: float = 1.0,
    repeat: bool = True,
    reads: bool = True,
) -> list[Flood]:
    """Send a flood over some connections, for so long; what became of each.

    Greeting and data may differ by the number of the connection.
    """
    with pressing(port, hello, data, connections, repeat=repeat, reads=reads) as floods:
        run(floods, seconds)
    return floods


@contextlib.contextmanager
def pressing(
    port: int,
    hello: bytes | Callable[[int], bytes],
    data: bytes | Callable[[int], bytes],
    connections: int,
    *,
    repeat: bool = True,
    reads: bool = True,
) -> Iterator[list[Flood]]:
    """Connections for a flood, open while the block lasts."""
    floods: list[Flood] = []
    try:
        for number in range(connections):
            first = hello(number) if callable(hello) else hello
            more = data(number) if callable(data) else data
            floods.append(Flood(port, first, more, repeat=repeat, reads=reads))
        yield floods
    finally:
        for flood in floods:
            flood.socket.close()


def run(floods: Sequence[Flood], seconds: float) -> None:
    """Send and read on all of them, for so long."""
    with selectors.DefaultSelector() as selector:
        for flood in floods:
            if flood.events:
                selector.register(flood.socket, flood.events, flood)
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0 and selector.get_map():
            for key, events in selector.select(left):
                flood = key.data
                if events & selectors.EVENT_READ:
                    flood.read()
                if flood.is_open and events & selectors.EVENT_WRITE:
                    flood.send()
                if not flood.is_open or not flood.events:
                    selector.unregister(flood.socket)
                elif flood.events != key.events:
                    selector.modify(flood.socket, flood.events, flood)
