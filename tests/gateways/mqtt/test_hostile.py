"""Bad input: the reason that is specified, or a closed connection; and the broker goes on."""

import random
import socket
from collections.abc import Iterator

import pytest

import onelog
from onelog.wire.mqtt import packets
from onelog.wire.mqtt.codes import V5, V311, Packet, Reason
from onelog.wire.mqtt.packets import Connect, Publish, Will
from onelog.wire.mqtt.properties import Property
from tests.gateways.mqtt.raw import Raw, v5


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with onelog.embedded(mqtt=True, mqtt__receive_maximum=5, mqtt__packet_bytes_max=100_000) as mq:
        yield mq.mqtt_port


@pytest.fixture(autouse=True)
def _goes_on(port: int) -> Iterator[None]:
    yield
    with Raw(port) as client:
        assert client.connect("after").reason == 0
        client.subscribe(("alive", 0))
        client.publish("alive", b"yes")
        assert client.message().payload == b"yes"


BAD_STARTS = {
    "no CONNECT": b"\xc0\0",
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "packet 0": b"\0\0",
    "a length of five bytes": b"\x10\xff\xff\xff\xff\x01",
    "a length that lies": b"\x10\xff\xff\xff\x7f",
    "flags": b"\x11\x10\0\4MQTT\4\2\0\0\0\4abcd",
    "reserved bit": b"\x10\x10\0\4MQTT\4\3\0\0\0\4abcd",
    "cut within": b"\x10\x05\0\4MQT",
    "not UTF-8": b"\x10\x10\0\4MQTT\4\2\0\0\0\4\xff\xfe\xfd\xfc",
    "zero character": b"\x10\x10\0\4MQTT\4\2\0\0\0\4a\0bc",
    "will QoS 3": b"\x10\x14\0\4MQTT\4\x1e\0\0\0\2ab\0\1t\0\1x",
    "password without user": b"\x10\x13\0\4MQTT\4\x42\0\0\0\4abcd\0\1x",
    "bytes behind": b"\x10\x12\0\4MQTT\4\2\0\0\0\4abcd??",
}


@pytest.mark.parametrize("start", BAD_STARTS)
def test_what_is_no_connect_is_closed(port: int, start: str) -> None:
    with Raw(port) as client:
        client.send(BAD_STARTS[start])
        assert client.ends()


def test_another_version_is_told_so(port: int) -> None:
    with Raw(port) as client:
        client.send(b"\x10\x0c\0\4MQTT\x09\2\0\0\0\0")
        assert client.read() == (0x20, b"\0\1")
        assert client.ends()


def test_enhanced_authentication_is_refused_politely(port: int) -> None:
    with v5(port) as client:
        found = client.connect("auth", properties={Property.AUTHENTICATION_METHOD: "SCRAM"})
        assert found.reason == Reason.BAD_AUTHENTICATION_METHOD
        assert "SCRAM" in found.properties[Property.REASON_STRING]
        assert client.ends()


def test_an_empty_client_id_is_for_sessions_that_end(port: int) -> None:
    with Raw(port) as client:
        assert client.connect("", clean=False).reason == 2
    with Raw(port) as client:
        assert client.connect("").reason == 0
    with v5(port) as client:
        assert client.connect("").properties[Property.ASSIGNED_CLIENT_ID]


def test_a_will_to_a_wildcard_is_refused(port: int) -> None:
    with v5(port) as client:
        found = client.connect("w", will=Will("a/#", b"", 0, False, {}))
        assert found.reason == Reason.TOPIC_NAME_INVALID


def _publish(topic: bytes, properties: bytes = b"", flags: int = 0, packet_id: int = 0) -> bytes:
    return packets.encode_publish(V5, Publish(topic, flags, packet_id, properties, b"x"))


PROTOCOL, MALFORMED = Reason.PROTOCOL_ERROR, Reason.MALFORMED_PACKET
BROKEN_RULES: dict[str, tuple[bytes, Reason]] = {
    "second CONNECT": (packets.encode_connect(Connect(V5, "x", True, 0)), PROTOCOL),
    "topic with a wildcard": (_publish(b"a/+"), Reason.TOPIC_NAME_INVALID),
    "topic not UTF-8": (_publish(b"\xff\xfe"), MALFORMED),
    "topic of 65,000 levels": (_publish(b"/" * 65_000), Reason.TOPIC_NAME_INVALID),
    "no topic and no alias": (_publish(b""), Reason.TOPIC_NAME_INVALID),
    "alias 0": (_publish(b"a", b"\x23\0\0"), Reason.TOPIC_ALIAS_INVALID),
    "alias too high": (_publish(b"a", b"\x23\xff\xff"), Reason.TOPIC_ALIAS_INVALID),
    "unknown alias": (_publish(b"", b"\x23\0\1"), PROTOCOL),
    "subscription identifier": (_publish(b"a", b"\x0b\1"), PROTOCOL),
    "property twice": (_publish(b"a", b"\1\1\1\1"), PROTOCOL),
    "unknown property": (_publish(b"a", b"\x7f\1"), MALFORMED),
    "QoS 3": (_publish(b"a", b"", 6, 1), MALFORMED),
    "packet id 0": (b"\x32\x05\0\1a\0\0", PROTOCOL),
    "duplicate of QoS 0": (_publish(b"a", b"", 8), MALFORMED),
    "SUBSCRIBE without filters": (b"\x82\x03\0\1\0", PROTOCOL),
    "SUBSCRIBE flags": (b"\x80\x07\0\1\0\0\1a\0", MALFORMED),
    "QoS 3 in SUBSCRIBE": (b"\x82\x07\0\1\0\0\1a\3", PROTOCOL),
    "shared and no local": (b"\x82\x10\0\1\0\0\x0a$share/g/a\4", PROTOCOL),
    "UNSUBSCRIBE without filters": (b"\xa2\x03\0\1\0", PROTOCOL),
    "AUTH": (b"\xf0\0", PROTOCOL),
    "CONNACK": (b"\x20\x03\0\0\0", PROTOCOL),
    "too large": (b"\x30\xff\xff\x7f", Reason.PACKET_TOO_LARGE),
    "expiry raised from 0": (b"\xe0\x07\0\x05\x11\0\0\0\5", PROTOCOL),
}


@pytest.mark.parametrize("rule", BROKEN_RULES)
def test_a_broken_rule_has_its_reason(port: int, rule: str) -> None:
    data, reason = BROKEN_RULES[rule]
    with v5(port) as client:
        assert client.connect("rules").reason == 0
        client.send(data)
        assert client.expect(Packet.DISCONNECT).reason == reason
        assert client.ends()


@pytest.mark.parametrize("rule", BROKEN_RULES)
def test_older_clients_are_just_cut_off(port: int, rule: str) -> None:
    with Raw(port, V311) as client:
        assert client.connect("old rules").reason == 0
        client.send(BROKEN_RULES[rule][0] * 2 + b"\xe0\0")
        assert client.ends()


@pytest.mark.parametrize(
    "text",
    ["a#", "#/a", "a/b+", "", "$share/", "$share/g", "$share//a", "$share/+/a", "/" * 60_000],
)
def test_filters_that_are_none(port: int, text: str) -> None:
    with v5(port) as client:
        client.connect("filters")
        assert client.subscribe((text, 0), ("fine", 1)) == bytes((0x8F, 1))
    with Raw(port) as client:
        client.connect("filters")
        assert client.subscribe((text, 0), ("fine", 1)) == bytes((0x80, 1))


def test_more_in_flight_than_allowed_is_told(port: int) -> None:
    with v5(port) as client:
        allowed = client.connect("flood").properties[Property.RECEIVE_MAXIMUM]
        assert allowed == 5
        for packet_id in range(1, allowed + 2):
            client.publish("f", b"x", 2, packet_id)
        while True:
            head, body = client.read()
            if head >> 4 == Packet.DISCONNECT:
                break
        assert body[0] == Reason.RECEIVE_MAXIMUM_EXCEEDED


def test_an_older_client_may_have_all_packet_ids_in_flight(port: int) -> None:
    with Raw(port) as client:
        client.connect("65535")
        run = b"".join(
            packets.encode_publish(V311, Publish(b"f", 4, packet_id, b"", b""))
            for packet_id in range(1, 65_536)
        )
        client.socket.settimeout(60)
        sent = 0
        found = 0
        client.socket.setblocking(False)
        while found < 65_535 * 4:
            if sent < len(run):
                try:
                    sent += client.socket.send(run[sent : sent + 65_536])
                except BlockingIOError:
                    pass
            try:
                found += len(client.socket.recv(1 << 20))
            except BlockingIOError:
                client.socket.setblocking(sent == len(run))
                client.socket.settimeout(60 if sent == len(run) else 0)
        assert found == 65_535 * 4


def test_a_client_that_does_not_read_is_bounded(port: int) -> None:
    with Raw(port) as reader, Raw(port) as sender:
        reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        reader.connect("lazy")
        reader.subscribe(("big", 0))
        sender.connect("sender")
        for _ in range(1_000):
            sender.publish("big", bytes(60_000))
        sender.send(b"\xc0\0")
        assert sender.read()[0] == 0xD0


def test_bytes_one_by_one_are_packets_all_the_same(port: int) -> None:
    with v5(port) as client:
        client.connect("slow")
        client.subscribe(("slow", 0))
        for byte in _publish(b"slow") + b"\xc0\0":
            client.send(bytes((byte,)))
        assert client.message().payload == b"x"
        assert client.read()[0] == 0xD0


@pytest.mark.parametrize("seed", range(20))
def test_fuzzed_packets_close_one_connection_at_most(port: int, seed: int) -> None:
    source = random.Random(seed)
    with v5(port) as client:
        client.connect(f"fuzz-{seed}")
        data = bytearray(
            b"".join((_publish(b"a", b"\1\1"), b"\x82\x07\0\1\0\0\1a\1", b"\x40\2\0\1", b"\xc0\0"))
            * 20
        )
        for _ in range(30):
            data[source.randrange(len(data))] = source.randrange(256)
        client.send(bytes(data))
        client.socket.shutdown(socket.SHUT_WR)
        assert client.ends()
