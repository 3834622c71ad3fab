"""Every codec that reads what peers send, for atheris to try.

    python -m tests.wire.fuzzed CODEC SECONDS [CORPUS]

Ends with status 0 if for all that time nothing was raised but what a codec may raise, and no input
took long.
"""

import sys
import time
from collections.abc import Callable

INPUT_BYTES_MAX = 16 << 10
INPUT_CPU_SECONDS_MAX = 1.0
"""How long one input may take; instrumented code is several times slower than it is otherwise."""
RSS_MIB_MAX = 2_048

Read = Callable[[bytes], object]


class SlowInputError(Exception):
    """An input took too long."""


def codecs() -> dict[str, Read]:
    """All of them, by their names. What they import is instrumented, if atheris asks for that."""
    return {**_frames(), **_streams(), **_parts(), **_records()}


def _frames() -> dict[str, Read]:
    from onelog.wire.amqp.frame import EventReader
    from onelog.wire.kafka import frame as kafka
    from onelog.wire.kafka import schema
    from onelog.wire.mqtt.packets import PacketReader
    from onelog.wire.remoting.frame import RemotingFrameReader
    from onelog.wire.stomp.frame import VERSIONS
    from onelog.wire.stomp.frame import StompFrameReader as StompReader

    def remoting(data: bytes) -> None:
        reader = RemotingFrameReader()
        reader.feed(data)
        list(reader.commands())

    def kafka_requests(data: bytes) -> None:
        reader = kafka.KafkaFrameReader(1 << 20)
        reader.feed(data)
        for each in reader.frames():
            header = kafka.read_header(each)
            api = schema.apis().get(header.key)
            if api is not None and header.version in api.versions:
                kafka.read_fields(header, each)

    def amqp(data: bytes) -> None:
        reader = EventReader(131_072, 1 << 20)
        reader.feed(data)
        for event in reader.events():
            if event[3] is not None:
                reader.alike(event)
                reader.scattered(event)

    def stomp(data: bytes) -> None:
        reader = StompReader(1 << 20)
        reader.version = VERSIONS[data[0] % len(VERSIONS)] if data else ""
        for at in range(0, len(data), 1_000):
            reader.feed(data[at : at + 1_000])
            list(reader.frames())

    def mqtt(data: bytes) -> None:
        reader = PacketReader(1 << 20)
        reader.feed(data)
        list(reader.spans())

    return {
        "remoting": remoting,
        "kafka": kafka_requests,
        "amqp": amqp,
        "stomp": stomp,
        "mqtt": mqtt,
    }


def _streams() -> dict[str, Read]:
    from onelog.wire.grpc.http2 import PREFACE, ServerConnection, Stream
    from onelog.wire.replication import default_ha, epoch_ha

    class Calls:
        """Answers each call with its last message."""

        def opened(self, stream: Stream) -> None: ...
        def received(self, stream: Stream, message: bytes) -> None:
            stream.token = message

        def half_closed(self, stream: Stream) -> None:
            stream.answer(stream.token or b"")

        def ended(self, stream: Stream) -> None: ...

    def grpc(data: bytes) -> None:
        connection = ServerConnection(lambda _: None, Calls())
        connection.feed(PREFACE + data)
        connection.lost()

    def replication(data: bytes) -> None:
        readers: tuple[Read, ...] = (
            lambda each: default_ha.ReportReader().feed(each),
            lambda each: list(default_ha.TransferReader().feed(each)),
            lambda each: epoch_ha.FollowerReader().feed(each),
            lambda each: list(epoch_ha.MasterReader().feed(each)),
        )
        readers[data[0] % len(readers) if data else 0](data[1:])

    return {"grpc": grpc, "replication": replication}


def _parts() -> dict[str, Read]:
    from onelog.net.proxy_prefix import parse
    from onelog.record.forms import amqp_fields
    from onelog.wire.amqp import methods
    from onelog.wire.grpc.header_blocks import HeaderDecoder
    from onelog.wire.mqtt import packets
    from onelog.wire.mqtt.codes import V5, V311
    from onelog.wire.remoting.registration import RegisterBrokerBody, decode_registration
    from onelog.wire.remoting.trace import decode_trace

    def mqtt_packets(data: bytes) -> None:
        if not data:
            return
        head, level, end = data[0], V5 if len(data) % 2 else V311, len(data)
        kind = head >> 4
        if kind == 1:
            packets.read_connect(data, 1, end)
        elif kind == 3:
            properties = packets.read_publish(data, head, 1, end, level).properties
            packets.read_publish_properties(properties)
        elif kind == 8:
            packets.read_subscribe(data, 1, end, level)
        elif kind == 10:
            packets.read_unsubscribe(data, 1, end, level)
        elif kind == 14:
            packets.read_ending(data, head, 1, end, level)
        elif 4 <= kind <= 7:
            packets.read_answer(data, head, 1, end, level)

    def amqp_methods(data: bytes) -> None:
        if len(data) >= 4:
            methods.decode(int.from_bytes(data[:4], "big"), data[4:])

    def amqp_tables(data: bytes) -> None:
        amqp_fields.decode_table(data)

    def amqp_properties(data: bytes) -> None:
        amqp_fields.decode_properties(data)

    def header_blocks(data: bytes) -> None:
        decoder = HeaderDecoder()
        decoder.decode(data[: len(data) // 2])
        decoder.decode(data[len(data) // 2 :])

    def registrations(data: bytes) -> None:
        decode_registration(data[1:], compressed=bool(data and data[0] % 2))
        RegisterBrokerBody.decode(data[1:])

    return {
        "mqtt-packets": mqtt_packets,
        "amqp-methods": amqp_methods,
        "amqp-tables": amqp_tables,
        "amqp-properties": amqp_properties,
        "header-blocks": header_blocks,
        "registrations": registrations,
        "traces": decode_trace,
        "proxy-prefixes": parse,
    }


def _records() -> dict[str, Read]:
    from onelog.record import decode, inner_batch
    from onelog.record.forms import amqp, kafka, mqtt, rocketmq

    def messages(data: bytes) -> None:
        list(decode.decode_messages(memoryview(data)))

    def kafka_batches(data: bytes) -> None:
        kafka.to_neutral(data, bytes_max=1 << 20)

    def amqp_records(data: bytes) -> None:
        amqp.to_neutral(data, 0)

    def rocketmq_records(data: bytes) -> None:
        half = len(data) // 2
        rocketmq.to_neutral(data[:half], data[half:], 0)

    return {
        "messages": messages,
        "inner-batches": inner_batch.split_batch,
        "kafka-batches": kafka_batches,
        "amqp-records": amqp_records,
        "mqtt-records": mqtt.to_neutral,
        "rocketmq-records": rocketmq_records,
    }


def tried(read: Read) -> Read:
    """A codec that may raise an error of ours, and nothing else, and not after long."""
    from onelog.errors import OnelogError

    def once(data: bytes) -> None:
        began = time.process_time()
        try:
            read(data)
        except OnelogError:
            pass
        took = time.process_time() - began
        if took > INPUT_CPU_SECONDS_MAX:
            raise SlowInputError(f"{len(data)} bytes took {took:.1f} s")

    return once


def main() -> None:
    """Try one codec for so long."""
    import atheris

    name, seconds, *corpus = sys.argv[1:]
    with atheris.instrument_imports(include=["onelog.wire", "onelog.record", "onelog.net"]):
        read = codecs()[name]
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-rss_limit_mb={RSS_MIB_MAX}",
        "-timeout=20",
        "-print_final_stats=1",
        "-artifact_prefix=./",
    ]
    atheris.Setup([sys.argv[0], *options, *corpus], tried(read))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
