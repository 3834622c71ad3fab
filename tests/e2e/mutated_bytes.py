"""What clients of every port say, and the same gone wrong on the way: the same for the same seed.

`PORTS` has for each port how a client may begin, and frames that it may send then.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from onelog.gateways.kafka.handlers import VERSIONS
from onelog.record.forms.kafka import Codec
from onelog.wire.grpc import messages
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.mqtt import packets
from onelog.wire.mqtt.codes import V5, V311, Packet
from onelog.wire.mqtt.packets import Publish, Subscribe, SubscribeFilter, Unsubscribe
from onelog.wire.replication import default_ha, epoch_ha
from tests.e2e import floods
from tests.e2e.floods import amqp, h2, kafka, stomp

FRAME_BYTES_MAX = 200_000
NASTY = (
    b"\0",
    b"\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\xff\xff\xff\xff",
    b"\r\n\r\n",
    b"\xce",
    b"%00",
    b"\x80" * 9 + b"\1",
    b"#" * 100,
    b"a/" * 150,
    b"[" * 200,
)


@dataclass(frozen=True)
class Words:
    """What a client of a port says."""

    hellos: Sequence[bytes]
    frames: Sequence[bytes]


def _kafka() -> list[bytes]:
    found = [
        kafka(key, version)
        for key, versions in VERSIONS.items()
        for version in {versions[0], versions[len(versions) // 2], versions[-1]}
        if key not in (ApiKey.CREATE_TOPICS, ApiKey.SASL_AUTHENTICATE)
    ]
    topic = {"topics": [{"name": "there"}], "allow_auto_topic_creation": True}
    return [
        *found,
        kafka(ApiKey.METADATA, 4, topic),
        kafka(ApiKey.METADATA, 1, {"topics": None}),
        floods.kafka_fetch("there", range(10)),
        *(
            floods.kafka_produce("there", floods.kafka_batch(b"one", b"two", codec=codec))
            for codec in Codec
        ),
    ]


def _amqp() -> list[bytes]:
    queue, answer = "there", ("", False, False, False)
    return [
        amqp("channel.open", channel=2),
        amqp("channel.flow", True),
        amqp("channel.flow", False),
        amqp("channel.close", 200, "", 0, 0, channel=2),
        amqp("channel.close-ok"),
        amqp("exchange.declare", "ex", "topic", False, False, True, False, False, {}),
        amqp("exchange.bind", "ex", "amq.topic", "a.#.*", False, {}),
        amqp("exchange.delete", "ex", False, False),
        amqp("queue.declare", queue, False, False, False, True, False, {"x-max-length": 10}),
        amqp("queue.bind", queue, "amq.topic", "a.*.#", False, {}),
        amqp("queue.bind", queue, "amq.headers", "", False, {"x-match": "any", "a": 1}),
        amqp("queue.purge", queue, False),
        amqp("queue.delete", queue, False, False, False),
        amqp("basic.qos", 0, 10, False),
        amqp("basic.get", queue, False),
        amqp("basic.consume", queue, "tag", *answer, {}),
        amqp("basic.cancel", "tag", False),
        amqp("basic.ack", 1, True),
        amqp("basic.nack", 1, True, True),
        amqp("basic.recover", True),
        amqp("basic.reject", 1, False),
        amqp("confirm.select", False),
        amqp("tx.select"),
        amqp("tx.commit"),
        amqp("tx.rollback"),
        floods.amqp_publish("", queue, b"a message"),
        floods.amqp_publish("ex", "a.b", bytes(300)),
        b"\x08\0\0\0\0\0\0\xce",
        amqp("connection.close", 200, "", 0, 0, channel=0),
    ]


def _stomp() -> list[bytes]:
    return [
        stomp("SEND", b"a message", destination="/queue/there", receipt="1"),
        stomp("SEND", b"a message", destination="/topic/there", content_length="9"),
        stomp("SEND", b"a message", destination="/exchange/amq.topic/a.b", a="1"),
        stomp("SUBSCRIBE", id="1", destination="/queue/there", ack="client"),
        stomp("SUBSCRIBE", id="2", destination="/topic/a.#", selector="a > 1 AND b LIKE '%x%'"),
        stomp("UNSUBSCRIBE", id="1"),
        stomp("ACK", id="1"),
        stomp("NACK", id="1"),
        stomp("BEGIN", transaction="t"),
        stomp("COMMIT", transaction="t"),
        stomp("ABORT", transaction="t"),
        stomp("DISCONNECT", receipt="2"),
        b"\n",
    ]


def _mqtt() -> list[bytes]:
    wanted = [SubscribeFilter("a/+/#", 1), SubscribeFilter("$share/g/there", 2)]
    return [
        packets.encode_publish(V5, Publish(b"a/b/c", 0, 0, b"", b"a message")),
        packets.encode_publish(V5, Publish(b"a/b/c", 2, 1, b"", b"a message")),
        packets.encode_publish(V5, Publish(b"there", 5, 2, b"\x23\0\1", b"a message")),
        packets.encode_subscribe(V5, Subscribe(3, wanted, {})),
        packets.encode_unsubscribe(V5, Unsubscribe(4, ["a/+/#"], {})),
        *(
            packets.encode_answer(kind, V5, 1, 0)
            for kind in (Packet.PUBACK, Packet.PUBREC, Packet.PUBREL, Packet.PUBCOMP)
        ),
        b"\xc0\0",
        packets.encode_ending(Packet.DISCONNECT, V5, 0),
    ]


def _grpc() -> list[bytes]:
    found = []
    for number, (path, (request, _)) in enumerate(messages.methods().items()):
        call, content = floods.grpc_calls(1, path, first=2 * number + 1), _filled(request)
        data = b"\0" + struct.pack(">I", len(content)) + content
        found.append(call + h2(0, 1, 2 * number + 1, data))
    return [
        *found,
        h2(floods.SETTINGS, 0, 0, struct.pack(">HI", 4, 100)),
        h2(floods.PING, 0, 0, bytes(8)),
        h2(floods.WINDOW, 0, 0, b"\0\0\1\0"),
        h2(floods.RESET, 0, 1, b"\0\0\0\x08"),
        h2(floods.HEADERS, 0, 99, b"\x82\x86") + h2(floods.CONTINUATION, 4, 99, b"\x84"),
        h2(2, 0, 1, bytes(5)),
        h2(7, 0, 0, bytes(8)),
    ]


def _filled(kind: type) -> bytes:
    """A request with something in its texts and parts."""
    found = kind()
    for each in found.DESCRIPTOR.fields:
        if each.message_type is not None:
            part = getattr(found, each.name)
            if hasattr(part, "add"):
                part.add()
            elif hasattr(part, "SetInParent"):
                part.SetInParent()
                if "name" in part.DESCRIPTOR.fields_by_name:
                    part.name = "there"
        elif each.type == each.TYPE_STRING and isinstance(getattr(found, each.name), str):
            setattr(found, each.name, "there")
    data: bytes = found.SerializeToString()
    return data


def _http() -> list[bytes]:
    paths = (
        "/",
        "/health",
        "/metrics",
        "/v1/topics",
        "/v1/groups",
        "/api/overview",
        "/api/queues",
        "/api/exchanges/%2F",
        "/v1/topics/there",
        "/api/message/there?type=queue&readTimeout=50",
    )
    body = b'{"messages": [{"body": "x", "key": "k"}]}'
    head = b"host: 127.0.0.1\r\n"
    return [
        *(b"GET %b HTTP/1.1\r\n%b\r\n" % (path.encode(), head) for path in paths),
        b"POST /v1/topics/there/messages HTTP/1.1\r\n%bcontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (head, len(body), body),
        b"POST /api/message/there HTTP/1.1\r\n%btransfer-encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\n0\r\n\r\n" % head,
    ]


def _replication() -> list[bytes]:
    greeting = epoch_ha.encode_greeting(epoch_ha.Greeting(7))
    reports = [default_ha.encode_report(each) for each in (0, 1, 1 << 40)]
    return [greeting, epoch_ha.encode_report(0), epoch_ha.encode_report(1 << 40), *reports]


def words(section: str) -> Words:
    """What a client of this port says."""
    if section == "kafka":
        return Words([b""], _kafka())
    if section == "amqp":
        return Words([floods.AMQP_HELLO, floods.AMQP_HELLO[:8], b""], _amqp())
    if section == "stomp":
        return Words([floods.STOMP_HELLO, b""], _stomp())
    if section == "mqtt":
        hello = floods.mqtt_hello("siege", clean=False, properties={0x11: 10})
        old = packets.encode_connect(packets.Connect(V311, "old", True, 0, None))
        return Words([hello, floods.mqtt_hello(), old, b""], _mqtt())
    if section == "grpc":
        return Words([floods.GRPC_HELLO, b""], _grpc())
    if section == "http":
        return Words([b""], _http())
    assert section == "replication"
    return Words([b"", epoch_ha.encode_greeting(epoch_ha.Greeting(7))], _replication())


class MutatedBytes:
    """Makes bytes of a connection: a greeting, mostly as it should be, and frames that are not."""

    def __init__(self, section: str, random: Random) -> None:
        self._words, self._random = words(section), random

    def hello(self) -> bytes:
        """How a connection begins."""
        random, hellos = self._random, self._words.hellos
        hello = hellos[0] if random.random() < 0.8 else random.choice(hellos)
        return hello if random.random() < 0.95 else self._changed(hello)

    def frame(self) -> bytes:
        """A frame, changed."""
        return self._changed(self._random.choice(self._words.frames))

    def _changed(self, frame: bytes) -> bytes:
        random, data = self._random, bytearray(frame)
        for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
            at, kind = random.randrange(len(data) + 1), random.randrange(7)
            if kind <= 2 and at < len(data):
                data[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
            elif kind == 3:
                data[at:at] = random.choice(NASTY)
            elif kind == 4:
                del data[at : at + random.choice((1, 2, 4, 50))]
            elif kind == 5:
                other = random.choice(self._words.frames)
                data[at : at + 4] = other[random.randrange(len(other)) :]
            else:
                data += data[at:]
        return bytes(data[:FRAME_BYTES_MAX])
